"""Creates and starts the container of an attempt: folders, the tenant's network, GPU shares, description.

Used by `container_client`. Everything here may be repeated after a crash: an existing container of the attempt's name
is found, and the entry in it runs the command only once (entry.sh).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from commonage.cancellation import to_the_end
from commonage.domain.errors import EngineFailure
from commonage.engines.containers.attempt_backend import Run
from commonage.engines.containers.daemon.connection import DaemonRefused, Json
from commonage.engines.containers.daemon.descriptions import LABEL, AttemptFolders
from commonage.engines.containers.daemon.networks import Network, Relays, TenantNetworks
from commonage.engines.containers.files.control_folder import INSIDE, LOG_INSIDE, StartDecision
from commonage.engines.containers.files.mounts import check_mount_sources, has_sizes
from commonage.engines.containers.files.prepare import ENTRY, ContainerDefaults, prepare_files, prepare_folders
from commonage.engines.containers.lifecycle import StartLimiter
from commonage.engines.containers.program import PORT, ContainerNetwork, Program, program_of
from commonage.engines.docker.client import Client
from commonage.engines.docker.daemon import Daemon
from commonage.engines.docker.translate import ContainerContext, container_config, container_name, network_config
from commonage.engines.docker.warm.containers import StartWarm, WarmContainers
from commonage.engines.docker.warm.description import WARM, may_start_warm, warm_config
from commonage.engines.docker.warm.mounts import Folder
from commonage.engines.rundir.programs import SESSION_COMMAND
from commonage.engines.rundir.tasks import InThread
from commonage.engines.rundir.workspaces import folder_name
from commonage.engines.settings import DockerSettings
from commonage.ports.agents import OnProgress
from commonage.ports.devices import Devices, ShareAssignment


class Networks(TenantNetworks):
    """Bridges, with access to the hub and the control plane at the gateway of each."""

    def __init__(self, client: Client, installation: str, addresses: str, relays: Relays) -> None:
        super().__init__(client, installation, addresses)
        self._relays = relays

    def _config(self, tenant: str, subnet: str) -> Json:
        return network_config(self._installation, tenant, subnet)

    async def _on_added(self, network: Network) -> None:
        # The node also forwards packets for this address from its other networks: only the tenant's own may connect.
        subnet = network.subnet
        await self._relays.open_at(network.gateway, lambda peer: subnet is not None and ip_address(peer) in subnet)

    def _on_removed(self, network: Network) -> None:
        self._relays.close_at(network.gateway)


_AT_ONCE = 16
_NETWORK_GONE = re.compile(r"network \S+ not found")


@dataclass(eq=False)
class Launcher:
    """Creates and starts containers. Without `devices` no share is enforced.

    `injected` is the folder that every container sees. `warm`: containers that wait for sessions, if there are any.
    """

    defaults: ContainerDefaults
    injected: Path
    settings: DockerSettings
    client: Client
    daemon: Daemon
    networks: Networks
    devices: Devices | None
    start_limiter: StartLimiter
    in_thread: InThread
    warm: WarmContainers | None = None
    _at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def release(self, run: Run) -> None:
        devices = self.devices
        if devices is not None and run.request.allocation.shares:
            await self.in_thread(lambda: devices.release(run.id))

    async def launch(self, run: Run, on_progress: OnProgress) -> None:
        """Start the attempt's container. Idempotent. Raises EngineFailure.

        After a DaemonUnreachable the result is unknown: ask again.
        """
        await prepare_files(run, self.defaults, self.daemon.owner, on_progress)
        await self.start_limiter.take(run, run.status.node, os.cpu_count() or 1, on_progress)
        async with self._at_once:
            try:
                await self._create_and_start(run)
                return
            except DaemonRefused as error:
                if not _NETWORK_GONE.search(str(error)):
                    raise
            # The tenant's network was removed from outside. A container created for it can never be started.
            self.networks.forget(run.request.tenant)
            await self.client.remove(container_name(run.id))
            await self._create_and_start(run)

    async def _create_and_start(self, run: Run) -> None:
        network = await self.networks.of(run.request.tenant)
        quota = has_sizes(run.request.mounts) and await self.client.limits_volume_size()
        program, config = await self.in_thread(lambda: self._prepare(run, network, volume_quota=quota))
        if self.warm is not None and await self._start_warm(self.warm, run, program, config):
            return
        container = await self._create_container(run, config)
        if await self.in_thread(run.control_folder.decision) is StartDecision.UNDECIDED:
            await self.client.start(container)

    async def _start_warm(self, warm: WarmContainers, run: Run, program: Program, config: Json) -> bool:
        """Start it in a warm container. False if it needs a container of its own, or no warm one fits."""
        request = run.request
        is_new = run.control_folder.decision() is StartDecision.UNDECIDED
        name = request.environment.image if is_new and may_start_warm(request, self.settings) else None
        image = None if name is None else await self.client.image(name)
        if image is None:
            return False
        ask = {
            "variables": {**program.variables, **program.secrets},
            "cwd": program.cwd,
            "arguments": SESSION_COMMAND[1:],
        }
        workspace = self.defaults.workspaces / folder_name(request.owner)
        with ExitStack() as closing:
            log = run.folder.log.open(os.O_RDONLY)
            closing.callback(os.close, log)
            folders = (
                Folder(closing.enter_context(workspace.open_path()), program.home),
                Folder(closing.enter_context(run.control_folder.place.open_path()), INSIDE),
                Folder(log, LOG_INSIDE, is_file=True),
            )
            wish = StartWarm(run.id, folders, ask, lambda: run.control_folder.decision() is StartDecision.STARTED)
            return await warm.start(warm_config(config, program, str(image["Id"])), wish)

    def _prepare(self, run: Run, network: Network, *, volume_quota: bool) -> tuple[Program, Json]:
        request, defaults, owner = run.request, self.defaults, self.daemon.owner
        check_mount_sources(request, self.settings.mounts)
        program = self._program(run, network)
        workspace = prepare_folders(run, program, defaults, owner)
        context = ContainerContext(
            installation=defaults.installation,
            network=network.name,
            folders=AttemptFolders(str(workspace), str(run.control_folder.path), str(run.folder.log)),
            injected=str(self.injected),
            user=f"{owner.uid}:{owner.gid}",
            gpus=self.daemon.gpus,
            volume_quota=volume_quota,
        )
        return program, container_config(request, program, context, ENTRY, self.settings)

    def _program(self, run: Run, network: Network) -> Program:
        request = run.request
        held: Mapping[str, str] = {}
        if self.devices is not None and request.allocation.shares:
            held = self.devices.enforce(ShareAssignment(run.id, request.allocation.shares, in_container=True))
            if (
                run.control_folder.decision() is StartDecision.FORBIDDEN
            ):  # it was stopped meanwhile, and its shares may have been released before
                self.devices.release(run.id)
        # Docker answers for the name of each container on the network of its tenant.
        peers = tuple(container_name(one) for one in request.gang)
        inside = ContainerNetwork(network.gateway, frozenset(self.settings.reaches), request.port or PORT, peers)
        return program_of(request, inside, self.defaults.shared, held)

    async def _create_container(self, run: Run, config: Json) -> str:
        name = container_name(run.id)
        created = await to_the_end(self.client.create(name, config))
        if created is not None:
            return created
        found = await self.client.inspect(name)
        if found is None:
            raise EngineFailure(f"the container {name} went while it was looked for", retryable=True)
        if not is_ours(found, run.id, self.defaults.installation):
            raise EngineFailure(f"there is a container {name} that is not ours; rename or remove it")
        if is_warm(found) and run.control_folder.decision() is StartDecision.UNDECIDED:
            # It was about to become this attempt's when the server ended, and ended with it.
            await self.client.remove(str(found["Id"]))
            raise EngineFailure(f"the warm container {name} did not start the command", retryable=True)
        return str(found["Id"])


def is_warm(found: Json) -> bool:
    """True if it was created ahead, and so began before its attempt did."""
    return WARM in (found["Config"]["Labels"] or {})


def is_ours(found: Json, attempt_id: str, installation: str) -> bool:
    """True if this installation created it, and it has the attempt's name: a warm one gets that with its attempt."""
    labels = found["Config"]["Labels"] or {}
    return bool(
        labels.get(f"{LABEL}.installation") == installation
        and (labels.get(f"{LABEL}.attempt") == attempt_id or WARM in labels)
        and found["Name"] == f"/{container_name(attempt_id)}"
    )  # fmt: skip
