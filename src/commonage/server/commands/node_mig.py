"""`commonage node mig`: splits a GPU of this machine into MIG instances, or reverts that.

Runs on the node, as root, with or without a running server. Refused while workloads use the GPU.
"""

from __future__ import annotations

import asyncio
import socket

import click

from commonage.domain.errors import Conflict, InvalidInput
from commonage.domain.nodes import Node
from commonage.engines.rundir.runs import Runs
from commonage.gpu.detect import open_devices
from commonage.gpu.isolation.mig_split import Gpu, carry_out, gpu_of, parse_profiles, plan
from commonage.ports.devices import Devices
from commonage.server.bootstrap import SystemClock, database_of
from commonage.server.commands.common import reads_settings
from commonage.server.settings.settings import Resolved, Settings
from commonage.store.sql_store import SqlStore


@click.command("mig")
@click.argument("name")
@click.argument("gpu")
@click.argument("profiles")
@click.option("--yes", is_flag=True, help="Apply the plan. Without this option it is only shown.")
@reads_settings
def mig(resolved: Resolved, name: str, gpu: str, profiles: str, yes: bool) -> None:
    """Split a GPU of this machine into MIG instances.

    GPU is an index or a UUID. PROFILES are the profiles of the instances; `off` reverts the split. The node must be
    drained, and no workload may use the GPU. The server detects the change automatically.

    \b
    Examples:
      commonage node drain gpu-1
      commonage node mig gpu-1 0 1g.10gb,2g.20gb,3g.40gb
      commonage node mig gpu-1 0 off --yes
    """
    wanted = parse_profiles(profiles)
    found = _gpu(resolved.settings, name, gpu)
    commands = plan(found, wanted)
    now = ", ".join(found.profiles) or ("MIG mode without instances" if found.is_split else "one GPU")
    click.echo(f"GPU {found.index} ({found.model}) is now: {now}; it becomes: {', '.join(wanted) or 'one GPU'}.")
    if not commands:
        click.echo("Nothing to do.")
        return
    for command in commands:
        click.echo(f"  {' '.join(command)}")
    _check_idle(resolved.settings, name, found)
    if not yes:
        click.echo("Not applied. Add --yes to apply it.")
        return
    carry_out(commands)
    click.echo(f"Done. Resume the node with: commonage node resume {name}")


def _gpu(settings: Settings, name: str, gpu: str) -> Gpu:
    here = settings.node_name or socket.gethostname()
    if name != here:
        raise InvalidInput(f"this machine is {here!r}. Run the command on {name[:60]!r}.", field="name")
    devices = _devices(here)
    try:
        return gpu_of(devices.inventory(), gpu)
    finally:
        devices.close()


def _devices(name: str) -> Devices:
    return open_devices("nvml", node_name=name, clock=SystemClock()).devices


def _check_idle(settings: Settings, name: str, gpu: Gpu) -> None:
    """Raises Conflict unless the node is drained and no attempt uses the GPU."""
    if settings.data_dir.exists():
        node = asyncio.run(_node(settings, name))
        if node is not None and not node.drain:
            raise Conflict(f"{name} is not drained. Run `commonage node drain {name}` first.")
    runs = Runs(settings.data_dir / "runs")
    folders = [runs.folder(attempt_id) for attempt_id in runs.all()] if runs.root.is_dir() else []
    requests = [whole[0] for folder in folders if folder.exit() is None and (whole := folder.request()) is not None]
    workloads = [
        request.workload_id
        for request in requests
        if any(share.device_uuid in gpu.uuids for share in request.allocation.shares)
    ]
    if workloads:
        raise Conflict(f"workloads use GPU {gpu.index}: {', '.join(workloads)}. Wait until they end, or stop them.")


async def _node(settings: Settings, name: str) -> Node | None:
    """The node in the database of the control plane; None if the database does not exist."""
    if settings.database_url is None and not (settings.data_dir / "commonage.db").exists():
        return None
    store = SqlStore(database_of(settings, settings.data_dir))
    await store.open()
    try:
        return next((node for node in await store.nodes() if node.name == name), None)
    finally:
        await store.close()
