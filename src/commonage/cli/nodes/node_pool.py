"""`commonage node-pool`: the node pools of clouds, and their cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.wire.docs import docs_page

if TYPE_CHECKING:
    from commonage.wire.nodes import NodePoolOut


@click.group
def node_pool() -> None:
    """List node pools: nodes that a cloud adds and removes on demand.

    \b
    Example:
      commonage node-pool ls
    """


@node_pool.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List the node pools with their nodes, planned changes with reasons, and cost per hour before and after.

    \b
    Example:
      commonage node-pool ls --json
    """
    with connect(server) as client:
        found = client.node_pools()
    if as_json:
        output.print_json(found)
        return
    if not found:
        guide = server.url + docs_page("operate/node-pools")
        click.echo(f"No node pools. Add [[node_pools]] tables to the settings ({guide}).", err=True)
        return
    table = output.table(
        "NODE POOL", "PROVIDER", "NODES", "MIN", "MAX", "CHANGE", "COST", "COST AFTER", right=("COST", "COST AFTER")
    )
    for one in found:
        table.add_row(
            output.text(one.name), output.text(one.provider), str(len(one.nodes)), str(one.min), str(one.max),
            _change(one), _cost(one.cost_per_h, one), _cost(one.cost_after_per_h, one),
        )  # fmt: skip
    output.console().print(table)
    for one in found:
        for node in one.nodes:
            click.echo(f"{node.name}: {node.state}")
        click.echo(f"{one.name}: {one.reason.message}")
        if one.last_error:
            click.echo(f"Note: {one.name}: {one.last_error}", err=True)


def _change(one: NodePoolOut) -> str:
    if one.adding:
        return f"+{one.adding}"
    return f"-{len(one.removing)}" if one.removing else "none"


def _cost(cost: float, one: NodePoolOut) -> str:
    """`3.00 EUR/h`; empty if no price is known."""
    return f"{cost:.2f} {one.currency}/h".replace(" /h", "/h") if one.price_per_h else ""
