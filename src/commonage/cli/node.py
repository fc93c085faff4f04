"""`commonage node`: nodes and their GPUs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

import click

from commonage.cli import devices, show
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.failures import MISUSED, Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from commonage.sdk import Client
    from commonage.wire.devices import DeviceOut
    from commonage.wire.platform import NodeOut
    from commonage.wire.usage_reports import UnattributedProcessOut


class _Group(click.Group):
    """With verbs from elsewhere, by name only, as in the table of all verbs: `mig` needs the server's rooms."""

    elsewhere: ClassVar[dict[str, str]] = {
        "mig": "commonage.server.commands.node_mig",
        **dict.fromkeys(("join", "leave", "rm", "token", "template"), "commonage.cli.node_join"),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.elsewhere]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.elsewhere:
            found: click.Command = getattr(import_module(self.elsewhere[cmd_name]), cmd_name)
            return found
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Group)
def node() -> None:
    """List nodes; have them join and leave; let one take no more work, or again.

    \b
    Example:
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
    """List the nodes, their GPUs, and what is free.

    A node is ready; draining, as somebody wishes that it takes no work; faulty, as something is wrong with it; or
    lost. Why is said below the list.

    \b
    Example:
      commonage node ls
      commonage node ls --json
    """
    with connect(server) as client:
        found = client.nodes()
    if as_json:
        show.print_json(found)
    elif found:
        show.console().print(node_table(found))
        for note in node_notes(found):
            click.echo(f"Note: {note}")
    else:
        click.echo("No node has reported yet.", err=True)


@node.command("show")
@click.argument("name")
@as_json
@calls_server
def show_one(server: Server, name: str, as_json: bool) -> None:
    """Show all that is known of a node and its GPUs.

    \b
    Example:
      commonage node show gpu-1
    """
    with connect(server) as client:
        site, node = find(client, name)
        (found,) = (one for one in client.nodes() if (one.site, one.name) == (site, node))
    if as_json:
        show.print_json(found)
    else:
        devices.print_node(found)


@node.command("drain")
@click.argument("name")
@click.option("--requeue", is_flag=True, help="Have jobs queue again now, and sessions that wish it start elsewhere.")
@click.option("--by", metavar="TIME", help='When all must have left: 2h, 18:00 or "2026-11-24 14:00". Users are told.')
@click.option("--time-zone", metavar="ZONE", help="Of --by: Europe/Berlin, UTC or +01:00; your own if left out.")
@as_json
@calls_server
def drain(server: Server, name: str, requeue: bool, by: str | None, time_zone: str | None, as_json: bool) -> None:
    """Let a node take no more work. For admins.

    What it runs goes on. With --requeue jobs and services begin anew elsewhere, unless they were submitted with
    --no-requeue; with --by whatever still runs then must leave, and its users are told now.

    \b
    Example:
      commonage node drain gpu-1
      commonage node drain gpu-1 --requeue
      commonage node drain gpu-1 --by 18:00
    """
    from commonage.cli.reservation import time_zone as own_zone

    zone = None if by is None else time_zone or own_zone()
    with connect(server) as client:
        site, node = find(client, name)
        changed = client.drain(site, node, requeue=requeue, by=by, time_zone=zone)
    _say(changed, as_json)
    if not as_json and changed.leave_by is not None:
        click.echo(f"What still runs there must leave by {show.clock(changed.leave_by)}.")
    elif not as_json and changed.workloads:
        click.echo("What runs there goes on; drain again with --by TIME to have all leave by then.")


@node.command("resume")
@click.argument("name")
@click.option(
    "--gpu", metavar="INDEX|UUID", help="Only forget the faults of this GPU; what is still wrong shows again."
)
@as_json
@calls_server
def resume(server: Server, name: str, gpu: str | None, as_json: bool) -> None:
    """Let a node take work again, its GPUs included. For admins.

    The opposite of drain. One that is faulty stays so until what is wrong is mended: `commonage node ls` says what.

    \b
    Example:
      commonage node resume gpu-1
      commonage node resume gpu-1 --gpu 0
    """
    with connect(server) as client:
        site, node = find(client, name)
        changed = client.resume(site, node, gpu=gpu)
    _say(changed, as_json)
    if not as_json:
        for line in devices.faults(changed):
            click.echo(line, err=True)


def find(client: Client, name: str) -> tuple[str, str]:
    """The node that is meant by NAME or SITE/NAME."""
    site, slash, node = name.partition("/")
    nodes = client.nodes()
    found = [one for one in nodes if (one.site, one.name) == (site, node) or (not slash and one.name == name)]
    if len(found) == 1:
        return found[0].site, found[0].name
    there = ", ".join(f"{one.site}/{one.name}" for one in found or nodes) or "none"
    what = "could be any of" if found else "is no node here; there are"
    raise Failure(f"{name!r} {what}: {there}", MISUSED)


def _say(changed: NodeOut, as_json: bool) -> None:
    if as_json:
        show.print_json(changed)
    else:
        many = "" if changed.workloads == 1 else "s"
        why = f" ({changed.reason})" if changed.reason else ""
        click.echo(f"{changed.site}/{changed.name} is {changed.state}{why}, {changed.workloads} workload{many} on it")


def node_table(found: Sequence[NodeOut]) -> Table:
    """Nodes, with a line for each GPU."""
    made = show.table(
        "NODE", "STATE", "CORES FREE", "MEMORY FREE", "GPU", "FREE", "USED", "BUSY", "RUNS", right=["RUNS"]
    )
    for one in found:
        devices = [_device(device) for device in one.devices] or [("none", "", "", "")]
        for number, device in enumerate(devices):
            node = (
                f"{show.text(one.name)}",
                show.state(one.state),
                f"{show.cpus(one.free_cpus_milli)} of {show.cpus(one.cpus_milli)}",
                f"{show.memory(one.free_memory_mib)} of {show.memory(one.memory_mib)}",
            )
            made.add_row(*(node if number == 0 else ("",) * 4), *device, str(one.workloads) if number == 0 else "")
    return made


def node_notes(found: Sequence[NodeOut]) -> list[str]:
    """What is to be said about the nodes, each thing once."""
    reasons = [f"{one.name}: {one.reason}" for one in found if one.reason]
    unattributed_processes = [
        f"{one.name}, GPU {device.label}: {_unattributed_process(unattributed_process)} holds "
        f"{'' if unattributed_process.memory_mib is None else f'{show.memory(unattributed_process.memory_mib)} of '}VRAM, and no workload started it"  # noqa: E501
        for one in found
        for device in one.devices
        for unattributed_process in device.unattributed
    ]
    return list(dict.fromkeys([*reasons, *unattributed_processes, *(note for one in found for note in one.notes)]))


def _unattributed_process(unattributed_process: UnattributedProcessOut) -> str:
    name = show.text(unattributed_process.name) or "a process"
    return name if unattributed_process.pid is None else f"{name} (process {unattributed_process.pid})"


def _device(device: DeviceOut) -> tuple[str, str, str, str]:
    simulated = " (simulated)" if device.simulated and "simulated" not in device.model.lower() else ""
    faults = f" [red]{show.text('; '.join(device.faults))}[/]" if device.faults else ""
    busy = "" if device.utilisation is None else f"{device.utilisation:.0%}"
    return (
        f"{device.label}: {show.text(device.model)}{simulated}{faults}",
        f"{show.memory(device.free_mib)} of {show.memory(device.memory_mib)}",
        "" if device.used_mib is None else show.memory(device.used_mib),
        busy,
    )
