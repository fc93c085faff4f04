"""`commonage ps`: the list of workloads."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import show
from commonage.cli.connection import LIVE, as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.failures import Failure

if TYPE_CHECKING:
    from rich.table import Table

    from commonage.sdk import Client
    from commonage.wire.workloads import WorkloadOut

STATES = (*LIVE, "succeeded", "failed", "stopped", "timed_out", "lost")
_WATCH_S = 1.0


@click.command
@click.option("-a", "--all", "ended_too", is_flag=True, help="Those that have ended, too.")
@click.option("-A", "--everyone", is_flag=True, help="Everybody's, for admins.")
@click.option("--user", metavar="NAME", help="Somebody's, for admins.")
@click.option("-s", "--state", "states", multiple=True, type=click.Choice(STATES), help="Only these; may be repeated.")
@click.option("--kind", type=click.Choice(["session", "job", "service"]), help="Only these.")
@click.option("--node", metavar="NAME", help="Only on this machine.")
@click.option("--env", "environment", metavar="NAME", help="Only in this environment.")
@click.option("--array", metavar="ID", help="Only of this array.")
@click.option("--text", metavar="TEXT", help="Only with this in the name, or at the start of the id.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=0), help="At most so many, 0 for all.  [default: 100; all with --json]"
)
@click.option("-w", "--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@as_json
@calls_server
def ps(server: Server, as_json: bool, watch: bool, limit: int | None, **asked: Any) -> None:
    """List your workloads: those that wait or run, the newest first.

    \b
    Example:
      commonage ps
      commonage ps --all --json
      commonage ps --state queued --everyone
    """
    with connect(server) as client:
        which = filters(client, asked)
        if as_json:
            show.print_json(list(islice(client.workloads(**which), limit or None)))
        elif watch:
            _watch(client, which, 100 if limit is None else limit)
        else:
            _once(client, which, 100 if limit is None else limit)


def filters(client: Client, asked: dict[str, Any]) -> Any:
    """What was asked, as the API's filter."""
    which: dict[str, Any] = {
        name: asked[name] for name in ("kind", "node", "environment", "array", "text") if asked[name] is not None
    }
    if asked["states"]:
        which["state"] = list(asked["states"])
    elif not asked["ended_too"]:
        which["state"] = list(LIVE)
    if asked["everyone"] or asked["user"]:
        info = client.info()
        if not info.admin and asked["user"] != info.user:
            raise Failure(f"only admins see other people's work, and {info.user} is none", 2)
        return which | ({"owner": asked["user"]} if asked["user"] else {})
    return which | {"owner": client.info().user}


def _once(client: Client, which: Any, limit: int) -> None:
    found = list(islice(client.workloads(**which), limit + 1 if limit else None))
    if not found:
        hint = "" if "state" not in which else " `commonage ps --all` shows what has ended, too."
        click.echo(f"Nothing there.{hint}", err=True)
        return
    show.console().print(workload_table(found[:limit] if limit else found, with_owner="owner" not in which))
    if limit and len(found) > limit:
        click.echo(f"The newest {limit}; --limit 0 shows all.", err=True)


def _watch(client: Client, which: Any, limit: int) -> None:
    import time

    from rich.live import Live

    with Live(console=show.console(), auto_refresh=False, screen=False) as live:
        try:
            while True:
                found = list(islice(client.workloads(**which), limit or None))
                live.update(workload_table(found, with_owner="owner" not in which), refresh=True)
                time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            return


def workload_table(found: list[WorkloadOut], *, with_owner: bool) -> Table:
    """The list as people read it."""
    owner = ("OWNER",) if with_owner else ()
    made = show.table("ID", "KIND", "NAME", *owner, "STATE", "SINCE", "ASKS FOR", "WHERE, OR WHY NOT")
    for one in found:
        made.add_row(
            one.id,
            one.kind,
            show.text(one.name or "session"),
            *((show.text(one.owner),) if with_owner else ()),
            show.state(one.state),
            show.since(one.since),
            show.text(one.request.text),
            show.text(show.where(one)),
        )
    return made
