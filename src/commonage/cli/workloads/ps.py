"""`commonage ps`: lists workloads."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import LIVE, as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.errors import Failure

if TYPE_CHECKING:
    from rich.table import Table

    from commonage.sdk import Client
    from commonage.wire.workloads import WorkloadOut

STATES = (*LIVE, "succeeded", "failed", "stopped", "timed_out", "lost")
_WATCH_S = 1.0


@click.command
@click.option("-a", "--all", "ended_too", is_flag=True, help="Include ended workloads.")
@click.option("-A", "--everyone", is_flag=True, help="Workloads of all users. For admins.")
@click.option("--user", metavar="NAME", help="Workloads of this user. For admins.")
@click.option(
    "-s", "--state", "states", multiple=True, type=click.Choice(STATES), help="Only in this state. Repeatable."
)
@click.option("--kind", type=click.Choice(["session", "job", "service"]), help="Only of this kind.")
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
        elif watch:
            _watch(client, query, 100 if limit is None else limit)
        else:
            _once(client, query, 100 if limit is None else limit)


def _filters(client: Client, options: dict[str, Any]) -> Any:
    """The filter of the API for the options."""
    query: dict[str, Any] = {
        name: options[name] for name in ("kind", "node", "environment", "array", "text") if options[name] is not None
    }
    if options["states"]:
        query["state"] = list(options["states"])
    elif not options["ended_too"]:
        query["state"] = list(LIVE)
    if options["everyone"] or options["user"]:
        info = client.info()
        if not info.admin and options["user"] != info.user:
            raise Failure(f"only admins can list workloads of other users; {info.user} is not an admin", 2)
        return query | ({"owner": options["user"]} if options["user"] else {})
    return query | {"owner": client.info().user}


def _once(client: Client, query: Any, limit: int) -> None:
    found = list(islice(client.workloads(**query), limit + 1 if limit else None))
    if not found:
        hint = "" if "state" not in query else " `commonage ps --all` includes ended workloads."
        click.echo(f"No workloads.{hint}", err=True)
        return
    output.console().print(workload_table(found[:limit] if limit else found, with_owner="owner" not in query))
    if limit and len(found) > limit:
        click.echo(f"These are the newest {limit}. --limit 0 shows all.", err=True)


def _watch(client: Client, query: Any, limit: int) -> None:
    import time

    from rich.live import Live

    with Live(console=output.console(), auto_refresh=False, screen=False) as live:
        try:
            while True:
                found = list(islice(client.workloads(**query), limit or None))
                live.update(workload_table(found, with_owner="owner" not in query), refresh=True)
                time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            return


def workload_table(found: list[WorkloadOut], *, with_owner: bool) -> Table:
    """The table of workloads, which `top` also shows."""
    owner = ("OWNER",) if with_owner else ()
    table = output.table("ID", "KIND", "NAME", *owner, "STATE", "SINCE", "REQUEST", "NODE / REASON")
    for one in found:
        table.add_row(
            one.id,
            one.kind,
            output.text(one.name or "session"),
            *((output.text(one.owner),) if with_owner else ()),
            output.state(one.state),
            output.since(one.since),
            output.text(one.request.text),
            output.text(output.node_or_reason(one)),
        )
    return table
