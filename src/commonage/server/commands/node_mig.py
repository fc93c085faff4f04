"""`commonage node mig`: split a GPU of this machine into MIG instances, or make it one again.

Runs on the node itself, as root, beside the server or without it; never under running work.
"""

from __future__ import annotations

import asyncio
import socket

import click

from commonage.domain.errors import CommonageError, Conflict, InvalidInput
from commonage.domain.nodes import Node
from commonage.engines.rundir.runs import Runs
from commonage.gpu.detect import open_devices
from commonage.gpu.isolation.mig_split import Gpu, carry_out, gpu_of, parse_profiles, plan
from commonage.ports.devices import Devices
from commonage.server.bootstrap import database_of
from commonage.server.clock import SystemClock
from commonage.server.commands.common import Failure, reads_settings
from commonage.server.settings.settings import Settings
from commonage.server.settings.sources import Resolved
from commonage.store.sql_store import SqlStore


@click.command("mig")
@click.argument("name")
@click.argument("gpu")
@click.argument("profiles")
@click.option("--yes", is_flag=True, help="Do it; without this the plan is only shown.")
@reads_settings
def mig(resolved: Resolved, name: str, gpu: str, profiles: str, yes: bool) -> None:
    """Split a GPU of this machine into MIG instances.

    GPU is its index or uuid. PROFILES are those of the instances; `off` makes it one GPU again. The node must be
    drained, and nothing may run on the GPU. The server sees the change by itself.

    \b
    Example:
      commonage node drain gpu-1
      commonage node mig gpu-1 0 1g.10gb,2g.20gb,3g.40gb
      commonage node mig gpu-1 0 off --yes
    """
    try:
        wanted = parse_profiles(profiles)
        found = _gpu(resolved.settings, name, gpu)
        commands = plan(found, wanted)
        now = ", ".join(found.profiles) or ("MIG mode without instances" if found.is_split else "one GPU")
        click.echo(f"GPU {found.index} ({found.model}) is now: {now}; it becomes: {', '.join(wanted) or 'one GPU'}.")
        if not commands:
            click.echo("Nothing is to be done.")
            return
        for command in commands:
            click.echo(f"  {' '.join(command)}")
        _check_idle(resolved.settings, name, found)
        if not yes:
            click.echo("Nothing was done yet: add --yes to do it.")
            return
        carry_out(commands)
    except CommonageError as error:
        raise Failure(error.message) from None
    click.echo(f"Done. Let the node take work again: commonage node resume {name}")


def _gpu(settings: Settings, name: str, gpu: str) -> Gpu:
    here = settings.node_name or socket.gethostname()
    if name != here:
        raise InvalidInput(f"this machine is {here!r}: run this on {name[:60]!r} itself", field="name")
    devices = _devices(here)
    try:
        return gpu_of(devices.inventory(), gpu)
    finally:
        devices.close()


def _devices(name: str) -> Devices:
    return open_devices("nvml", node_name=name, clock=SystemClock()).devices


def _check_idle(settings: Settings, name: str, gpu: Gpu) -> None:
    """Raises Conflict unless the node is drained and none of its attempts holds a part of the GPU."""
    if settings.data_dir.exists():
        node = asyncio.run(_node(settings, name))
        if node is not None and not node.drain:
            raise Conflict(f"{name} takes work: drain it first (commonage node drain {name})")
    runs = Runs(settings.data_dir / "runs")
    folders = [runs.folder(attempt_id) for attempt_id in runs.all()] if runs.root.is_dir() else []
    requests = [whole[0] for folder in folders if folder.exit() is None and (whole := folder.request()) is not None]
    holding = [
        request.workload_id
        for request in requests
        if any(share.device_uuid in gpu.uuids for share in request.allocation.shares)
    ]
    if holding:
        raise Conflict(f"there is work on GPU {gpu.index}: {', '.join(holding)}; wait for its end, or stop it")


async def _node(settings: Settings, name: str) -> Node | None:
    """The node as the control plane's database has it; None where there is no database yet."""
    if settings.database_url is None and not (settings.data_dir / "commonage.db").exists():
        return None
    store = SqlStore(database_of(settings, settings.data_dir))
    await store.open()
    try:
        return next((node for node in await store.nodes() if node.name == name), None)
    finally:
        await store.close()
