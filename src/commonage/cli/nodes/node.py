"""`commonage node` and `node-pool`: lists, drains and resumes nodes; lists the node pools of clouds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.app import LazyGroup
from commonage.cli.connection import Server, as_json, calls_server, connect, prints
from commonage.cli.errors import MISUSED, Failure
from commonage.cli.nodes import view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commonage.sdk import Client
    from commonage.wire.nodes import NodeOut, NodePoolOut


@click.group(
    cls=LazyGroup,
    lazy={
        "mig": "commonage.server.commands.node_mig:mig",
        **{name: f"commonage.cli.nodes.join:{name}" for name in ("join", "leave", "rm", "token", "template")},
    },
)
def node() -> None:
    """List nodes; let nodes join and leave; drain and resume them.

    \b
    Examples:
      commonage node ls
      commonage node show gpu-1
      commonage node join admin@gpu-2
      commonage node drain gpu-1
      commonage node mig gpu-1 0 1g.10gb,2g.20gb
    """


def _print_nodes(nodes: Sequence[NodeOut]) -> None:
    if not nodes:
        click.echo("No node has reported yet.", err=True)
        return
    output.console().print(view.node_table(nodes))
    for note in view.node_notes(nodes):
        click.echo(f"Note: {note}")


@node.command("ls")
@prints(_print_nodes)
def list_nodes(client: Client) -> Sequence[NodeOut]:
    """List the nodes with their GPUs and free resources.

    States: ready; draining (an admin has drained it); faulty; lost. The reasons are below the table.

    \b
    Examples:
      commonage node ls
      commonage node ls --json
    """
    return client.nodes()


@node.command("show")
@click.argument("name")
@prints(view.print_node)
def show_node(client: Client, name: str) -> NodeOut:
    """Show the details of a node and its GPUs.

    \b
    Example:
      commonage node show gpu-1
    """
    return find(client, name)


def _change(node: NodeOut) -> str:
    plural = "" if node.workloads == 1 else "s"
    reason = f" ({output.messages(node.reasons)})" if node.reasons else ""
    return f"{node.site}/{node.name} is {node.state}{reason}, {node.workloads} workload{plural} on it"


def _print_drained(node: NodeOut) -> None:
    click.echo(_change(node))
    if node.leave_by is not None:
        click.echo(f"Workloads that still run there are evicted at {output.clock(node.leave_by)}.")
    elif node.workloads:
        click.echo("Running workloads continue. Drain again with --by TIME to set a deadline.")


@node.command("drain")
@click.argument("name")
@click.option("--requeue", is_flag=True, help="Requeue jobs and services now, and sessions that allow it.")
@click.option(
    "--by",
    metavar="TIME",
    help='Evict workloads that still run at this time: 2h, 18:00 or "2026-11-24 14:00". Users are notified.',
)
@click.option("--time-zone", metavar="ZONE", help="Time zone of --by: Europe/Berlin, UTC or +01:00.  [default: yours]")
@prints(_print_drained)
def drain(client: Client, name: str, requeue: bool, by: str | None, time_zone: str | None) -> NodeOut:
    """Drain a node: it starts no more workloads. For admins.

    Running workloads continue. With --requeue, jobs and services are requeued now, unless they were submitted with
    --no-requeue. With --by, workloads that still run at that time are evicted; their users are notified now.

    \b
    Examples:
      commonage node drain gpu-1
      commonage node drain gpu-1 --requeue
      commonage node drain gpu-1 --by 18:00
    """
    from commonage.cli.reservation import time_zone as own_zone

    zone = None if by is None else time_zone or own_zone()
    node = find(client, name)
    return client.drain(node.site, node.name, requeue=requeue, by=by, time_zone=zone)


def _print_resumed(node: NodeOut) -> None:
    click.echo(_change(node))
    for fault in view.faults(node):
        click.echo(fault, err=True)


@node.command("resume")
@click.argument("name")
@click.option(
    "--gpu", metavar="INDEX|UUID", help="Only clear the faults of this GPU. A fault that persists is reported again."
)
@prints(_print_resumed)
def resume(client: Client, name: str, gpu: str | None) -> NodeOut:
    """Resume a drained node, and clear the faults of its GPUs. For admins.

    A faulty node stays faulty until the cause is fixed. `commonage node ls` shows the cause.

    \b
    Examples:
      commonage node resume gpu-1
      commonage node resume gpu-1 --gpu 0
    """
    node = find(client, name)
    return client.resume(node.site, node.name, gpu=gpu)


def find(client: Client, name: str) -> NodeOut:
    """The node NAME or SITE/NAME. Raises Failure."""
    nodes = client.nodes()
    matches = [node for node in nodes if name in (node.name, f"{node.site}/{node.name}")]
    if len(matches) == 1:
        return matches[0]
    known = ", ".join(f"{node.site}/{node.name}" for node in matches or nodes) or "none"
    if matches:
        raise Failure(f"{name!r} is ambiguous: {known}. Write SITE/NAME.", MISUSED)
    raise Failure(f"no node {name!r}. Nodes: {known}", MISUSED)


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
def list_node_pools(server: Server, as_json: bool) -> None:
    """List the node pools with their nodes and planned changes. Shows the reasons of the changes, and the cost per hour
    now and after them.

    \b
    Example:
      commonage node-pool ls --json
    """
    with connect(server) as client:
        pools = client.node_pools()
    if as_json:
        output.print_json(pools)
        return
    if not pools:
        from commonage.wire.hub import docs_page

        guide = server.url + docs_page("operate/node-pools")
        click.echo(f"No node pools. Declare a NodePool with `commonage apply` ({guide}).", err=True)
        return
    table = output.table(
        "NODE POOL", "PROVIDER", "NODES", "MIN", "MAX", "CHANGE", "COST", "COST AFTER", right=("COST", "COST AFTER")
    )
    for pool in pools:
        table.add_row(
            output.text(pool.name), output.text(pool.provider), str(len(pool.nodes)), str(pool.min), str(pool.max),
            _planned(pool), _cost(pool.cost_per_h, pool), _cost(pool.cost_after_per_h, pool),
        )  # fmt: skip
    output.console().print(table)
    for pool in pools:
        for rented in pool.nodes:
            click.echo(f"{rented.name}: {rented.state}")
        click.echo(f"{pool.name}: {pool.reason.message}")
        if pool.last_error:
            click.echo(f"Note: {pool.name}: {pool.last_error}", err=True)


def _planned(pool: NodePoolOut) -> str:
    if pool.adding:
        return f"+{pool.adding}"
    return f"-{len(pool.removing)}" if pool.removing else "none"


def _cost(cost: float, pool: NodePoolOut) -> str:
    """`3.00 EUR/h`; empty if no price is known."""
    return f"{cost:.2f} {pool.currency}/h".replace(" /h", "/h") if pool.price_per_h else ""
