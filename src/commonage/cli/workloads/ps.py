"""`commonage ps` and `top`: list and watch workloads and nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import LIVE, Server, as_json, calls_server, connect
from commonage.cli.errors import MISUSED, Failure

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from commonage.sdk import Client
    from commonage.wire.workloads import WorkloadOut

STATES = (*LIVE, "succeeded", "failed", "stopped", "timed_out", "lost")
_MAX_IN_TOP = 40


@click.command
@click.option("-a", "--all", "ended_too", is_flag=True, help="Include ended workloads.")
@click.option("-A", "--everyone", is_flag=True, help="Workloads of all users. For admins.")
@click.option("--user", metavar="NAME", help="Workloads of this user. For admins.")
@click.option(
    "-s", "--state", "states", multiple=True, type=click.Choice(STATES), help="Only in this state. Repeatable."
)
@click.option("--kind", type=click.Choice(["session", "job", "service"]), help="Only of this kind.")
@click.option("--site", metavar="NAME", help="Only at this site.")
@click.option("--node", metavar="NAME", help="Only on this node.")
@click.option("--env", "environment", metavar="NAME", help="Only in this environment.")
@click.option("--array", metavar="ID", help="Only members of this array.")
@click.option("--text", metavar="TEXT", help="Only with this text in the name, or at the start of the id.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    help="Maximum number of workloads; 0 for all.  [default: 100; all with --json]",
)
@click.option("-w", "--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@as_json
@calls_server
def ps(server: Server, as_json: bool, watch: bool, limit: int | None, **options: Any) -> None:
    """List your live workloads, newest first.

    \b
    Examples:
      commonage ps
      commonage ps --all --json
      commonage ps --state queued --everyone
    """
    with connect(server) as client:
        query = _filters(client, options)
        if as_json:
            output.print_json(list(islice(client.workloads(**query), limit or None)))
            return
        limit = 100 if limit is None else limit
        with_owner = "owner" not in query
        if watch:
            _watch(lambda: workload_table(islice(client.workloads(**query), limit or None), with_owner), every_s=1.0)
            return
        workloads = list(islice(client.workloads(**query), limit + 1 if limit else None))
    if not workloads:
        hint = " `commonage ps --all` includes ended workloads." if "state" in query else ""
        click.echo(f"No workloads.{hint}", err=True)
        return
    output.console().print(workload_table(workloads[: limit or None], with_owner))
    if limit and len(workloads) > limit:
        click.echo(f"These are the newest {limit}. --limit 0 shows all.", err=True)


def _filters(client: Client, options: dict[str, Any]) -> Any:
    query: dict[str, Any] = {
        name: options[name]
        for name in ("kind", "site", "node", "environment", "array", "text")
        if options[name] is not None
    }
    if options["states"]:
        query["state"] = list(options["states"])
    elif not options["ended_too"]:
        query["state"] = list(LIVE)
    info = client.info()
    if not options["everyone"] and not options["user"]:
        return query | {"owner": info.user}
    if not info.admin and options["user"] != info.user:
        raise Failure(f"only admins can list workloads of other users; {info.user} is not an admin", MISUSED)
    return query | ({"owner": options["user"]} if options["user"] else {})


def workload_table(workloads: islice[WorkloadOut] | list[WorkloadOut], with_owner: bool) -> Table:
    owner = ("OWNER",) if with_owner else ()
    table = output.table("ID", "KIND", "NAME", *owner, "STATE", "SINCE", "REQUEST", "NODE / REASON")
    for each in workloads:
        table.add_row(
            each.id,
            each.kind,
            output.text(each.name or "session"),
            *((output.text(each.owner),) if with_owner else ()),
            output.state(each.state),
            output.since(each.since),
            output.text(each.request.text),
            output.text(output.node_or_reason(each)),
        )
    return table


@click.command
@click.option("--once", is_flag=True, help="Show it once and exit.")
@click.option(
    "--every", type=click.FloatRange(0.5, 60), default=2.0, show_default=True, help="Seconds between two refreshes."
)
@as_json
@calls_server
def top(server: Server, once: bool, every: float, as_json: bool) -> None:
    """Watch nodes, GPUs and workloads, until Ctrl-C.

    For each node and GPU: the measured use by all programs, the amounts allocated to workloads, and the total.

    \b
    Examples:
      commonage top
      commonage top --once --json
    """
    with connect(server, reconnect_timeout_s=60.0 if not once else 3.0) as client:
        if as_json:
            live = list(islice(client.workloads(state=list(LIVE)), 1000))
            output.print_json({"nodes": client.nodes(), "workloads": live})
        elif once:
            output.console().print(_overview(client))
        else:
            _watch(lambda: _overview(client), every_s=every, whole_screen=True)


def _overview(client: Client) -> Group:
    from rich.console import Group

    from commonage.cli.nodes.view import device_table, usage_table

    info = client.info()
    counts = ", ".join(f"{number} {state}" for state, number in info.counts.items() if number) or "no workloads"
    head = f"[bold]{output.text(info.name)}[/]  {time.strftime('%H:%M:%S')}  {counts}"
    if info.simulated_gpus:
        head += "  [yellow]GPUs are simulated[/]"
    workloads = islice(client.workloads(state=list(LIVE)), _MAX_IN_TOP)
    nodes = client.nodes()
    gpus = ("", device_table(nodes)) if any(node.devices for node in nodes) else ()
    return Group(head, "", usage_table(nodes), *gpus, "", workload_table(workloads, with_owner=True))


def _watch(content: Callable[[], RenderableType], *, every_s: float, whole_screen: bool = False) -> None:
    from rich.live import Live

    try:
        with Live(content(), console=output.console(), auto_refresh=False, screen=whole_screen) as live:
            while True:
                time.sleep(every_s)
                live.update(content(), refresh=True)
    except KeyboardInterrupt:
        return
