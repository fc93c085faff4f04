"""`commonage node`: lists, drains and resumes nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.errors import MISUSED, Failure
from commonage.cli.groups import LazyGroup
from commonage.cli.nodes import gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from commonage.sdk import Client
    from commonage.wire.nodes import DeviceOut, NodeOut, UnattributedProcessOut


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


@node.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List the nodes with their GPUs and free resources.

    States: ready; draining (an admin has drained it); faulty; lost. The reasons are below the table.

    \b
    Examples:
      commonage node ls
      commonage node ls --json
    """
    with connect(server) as client:
        found = client.nodes()
    if as_json:
        output.print_json(found)
    elif found:
        output.console().print(node_table(found))
        for note in node_notes(found):
            click.echo(f"Note: {note}")
    else:
        click.echo("No node has reported yet.", err=True)


@node.command("show")
@click.argument("name")
@as_json
@calls_server
def show_one(server: Server, name: str, as_json: bool) -> None:
    """Show the details of a node and its GPUs.

    \b
    Example:
      commonage node show gpu-1
    """
    with connect(server) as client:
        site, node = find(client, name)
        (found,) = (one for one in client.nodes() if (one.site, one.name) == (site, node))
    if as_json:
        output.print_json(found)
    else:
        gpus.print_node(found)


@node.command("drain")
@click.argument("name")
@click.option("--requeue", is_flag=True, help="Requeue jobs and services now, and sessions that allow it.")
@click.option(
    "--by", metavar="TIME", help='Deadline for all workloads: 2h, 18:00 or "2026-11-24 14:00". Users are notified.'
)
@click.option("--time-zone", metavar="ZONE", help="Time zone of --by: Europe/Berlin, UTC or +01:00.  [default: yours]")
@as_json
@calls_server
def drain(server: Server, name: str, requeue: bool, by: str | None, time_zone: str | None, as_json: bool) -> None:
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
    with connect(server) as client:
        site, node = find(client, name)
        changed = client.drain(site, node, requeue=requeue, by=by, time_zone=zone)
    _print_change(changed, as_json)
    if not as_json and changed.leave_by is not None:
        click.echo(f"Workloads that still run there are evicted at {output.clock(changed.leave_by)}.")
    elif not as_json and changed.workloads:
        click.echo("Running workloads continue. Drain again with --by TIME to set a deadline.")


@node.command("resume")
@click.argument("name")
@click.option(
    "--gpu", metavar="INDEX|UUID", help="Only clear the faults of this GPU. A fault that persists is reported again."
)
@as_json
@calls_server
def resume(server: Server, name: str, gpu: str | None, as_json: bool) -> None:
    """Resume a drained node, and clear the faults of its GPUs. For admins.

    A faulty node stays faulty until the cause is fixed. `commonage node ls` shows the cause.

    \b
    Examples:
      commonage node resume gpu-1
      commonage node resume gpu-1 --gpu 0
    """
    with connect(server) as client:
        site, node = find(client, name)
        changed = client.resume(site, node, gpu=gpu)
    _print_change(changed, as_json)
    if not as_json:
        for line in gpus.faults(changed):
            click.echo(line, err=True)


def find(client: Client, name: str) -> tuple[str, str]:
    """The site and name of the node NAME or SITE/NAME. Raises Failure."""
    site, slash, node = name.partition("/")
    nodes = client.nodes()
    found = [one for one in nodes if (one.site, one.name) == (site, node) or (not slash and one.name == name)]
    if len(found) == 1:
        return found[0].site, found[0].name
    known = ", ".join(f"{one.site}/{one.name}" for one in found or nodes) or "none"
    if found:
        raise Failure(f"{name!r} is ambiguous: {known}. Write SITE/NAME.", MISUSED)
    raise Failure(f"no node {name!r}. Nodes: {known}", MISUSED)


def _print_change(changed: NodeOut, as_json: bool) -> None:
    if as_json:
        output.print_json(changed)
    else:
        many = "" if changed.workloads == 1 else "s"
        why = f" ({output.messages(changed.reasons)})" if changed.reasons else ""
        click.echo(f"{changed.site}/{changed.name} is {changed.state}{why}, {changed.workloads} workload{many} on it")


def node_table(found: Sequence[NodeOut]) -> Table:
    """The table of nodes, with a line for each GPU."""
    table = output.table(
        "NODE",
        "STATE",
        "FREE CORES",
        "FREE MEMORY",
        "GPU",
        "FREE VRAM",
        "USED VRAM",
        "BUSY",
        "WORKLOADS",
        right=["WORKLOADS"],
    )
    for one in found:
        devices = [_device(device) for device in one.devices] or [("none", "", "", "")]
        for number, device in enumerate(devices):
            node = (
                f"{output.text(one.name)}",
                output.state(one.state),
                f"{output.cpus(one.free_cpus_milli)} of {output.cpus(one.cpus_milli)}",
                f"{output.memory(one.free_memory_mib)} of {output.memory(one.memory_mib)}",
            )
            table.add_row(*(node if number == 0 else ("",) * 4), *device, str(one.workloads) if number == 0 else "")
    return table


def node_notes(found: Sequence[NodeOut]) -> list[str]:
    """The notes and problems of the nodes, without repetition."""
    reasons = [f"{one.name}: {output.messages(one.reasons)}" for one in found if one.reasons]
    unattributed = [
        f"{one.name}, GPU {device.label}: {_process_text(process)}"
        for one in found
        for device in one.devices
        for process in device.unattributed
    ]
    return list(dict.fromkeys([*reasons, *unattributed, *(note for one in found for note in one.notes)]))


def _process_text(process: UnattributedProcessOut) -> str:
    name = output.text(process.name) or "a process"
    pid = "" if process.pid is None else f" (process {process.pid})"
    vram = "VRAM" if process.memory_mib is None else f"{output.memory(process.memory_mib)} of VRAM"
    return f"{name}{pid} uses {vram}, and no workload started it"


def _device(device: DeviceOut) -> tuple[str, str, str, str]:
    simulated = " (simulated)" if device.simulated and "simulated" not in device.model.lower() else ""
    faults = f" [red]{output.text(output.messages(device.faults))}[/]" if device.faults else ""
    busy = "" if device.utilisation is None else f"{device.utilisation:.0%}"
    return (
        f"{device.label}: {output.text(device.model)}{simulated}{faults}",
        f"{output.memory(device.free_mib)} of {output.memory(device.memory_mib)}",
        "" if device.used_mib is None else output.memory(device.used_mib),
        busy,
    )
