"""`commonage node_pool`: nodes that are rented while work waits for them, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import show
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.wire.docs import docs_page

if TYPE_CHECKING:
    from commonage.wire.node_pools import NodePoolOut


@click.group
def node_pool() -> None:
    """Show the nodes that are rented while work waits for them.

    \b
    Example:
      commonage node pool ls
    """


@node_pool.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List the node pools: their nodes, what comes or goes next and why, and the cost an hour before and after.

    \b
    Example:
      commonage node pool ls --json
    """
    with connect(server) as client:
        found = client.node_pools()
    if as_json:
        show.print_json(found)
        return
    if not found:
        guide = server.url + docs_page("operate/node-pools")
        click.echo(f"There are no node pools; [[node_pools]] tables in the settings make them ({guide}).", err=True)
        return
    made = show.table("NODE_POOL", "PROVIDER", "MACHINES", "MIN", "MAX", "NEXT", "NOW", "THEN", right=("NOW", "THEN"))
    for one in found:
        made.add_row(
            show.text(one.name), show.text(one.provider), str(len(one.machines)), str(one.min), str(one.max),
            _next(one), _cost(one.cost_per_h, one), _cost(one.cost_after_per_h, one),
        )  # fmt: skip
    show.console().print(made)
    for one in found:
        for machine in one.machines:
            click.echo(f"{machine.name}: {machine.state}")
        click.echo(f"{one.name}: {one.reason.message}")
        if one.last_error:
            click.echo(f"Note: {one.name}: {one.last_error}", err=True)


def _next(one: NodePoolOut) -> str:
    if one.adding:
        return f"+{one.adding}"
    return f"-{len(one.removing)}" if one.removing else "stays"


def _cost(cost: float, one: NodePoolOut) -> str:
    """`3.00 EUR/h`; nothing where no price is known."""
    return f"{cost:.2f} {one.currency}/h".replace(" /h", "/h") if one.price_per_h else ""
