"""Having an attempt's container made and started: its folders, its network, its description.

Used by the engine. Everything here may be done again after a crash: folders are made if they are missing, a container
of the attempt's name is found, and the entry in it runs the command only once (entry.sh).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from commonage.domain.errors import EngineFailure
from commonage.domain.sightings import Order
from commonage.engines.common.board import InThread
from commonage.engines.common.workspaces import make_workspace
from commonage.engines.containers.board import Run
from commonage.engines.containers.box import Claim, Owner, give
from commonage.engines.containers.folders import put_bundle
from commonage.engines.containers.mounts import has_sizes, see_to_folders
from commonage.engines.containers.program import Inside, Program, program_of
from commonage.engines.docker.client import Client, Json, Refused
from commonage.engines.docker.networks import Network, Networks
from commonage.engines.docker.settings import DockerSettings
from commonage.engines.docker.translate import LABEL, Surroundings, container_config, container_name, source_of
from commonage.ports.devices import Devices, Hold

ENTRY = (Path(__file__).parents[1] / "containers" / "entry.sh").read_text(encoding="utf-8")
_AT_ONCE = 16
_NETWORK_GONE = re.compile(r"network \S+ not found")


@dataclass(frozen=True, slots=True)
class Place:
    """What is the same for all containers of an installation."""

    installation: str
    workspaces: Path
    shared: Mapping[str, str]
    settings: DockerSettings


class Launcher:
    """Makes and starts containers."""

    def __init__(self, place: Place, client: Client, networks: Networks, in_thread: InThread, devices: Devices | None):
        self._place = place
        self._client = client
        self._networks = networks
        self._in_thread = in_thread
        self._devices = devices
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self.owner = Owner(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())
        self.gpus: Literal["cdi", "request"] = "request"

    def check(self, order: Order) -> None:
        """Raises EngineFailure for an order that can never be one of a container."""
        words = [*order.command, *(text for pair in (*order.variables, *order.secrets) for text in pair)]
        if any("\0" in word for word in words):
            raise EngineFailure(f"{order.workload_id} has a zero byte in its command or variables")
        program_of(order, Inside("", frozenset()), {}, {})

    async def launch(self, run: Run) -> str:
        """Have the attempt's container started; its id. Idempotent. Raises EngineFailure.

        After a Refused nothing of it runs, or ever will. After a DaemonUnreachable nobody knows: ask again.
        """
        async with self._at_once:
            try:
                return await self._launch(run)
            except Refused as error:
                if not _NETWORK_GONE.search(error.message):
                    await self._in_thread(run.box.claim_never)
                    raise
            # Somebody removed the tenant's network. What was made for it can never be started.
            self._networks.forget(run.order.tenant)
            await self._client.remove(container_name(run.id))
            return await self._launch(run)

    async def _launch(self, run: Run) -> str:
        network = await self._networks.of(run.order.tenant)
        quota = has_sizes(run.order.mounts) and await self._client.holds_volume_sizes()
        config = await self._in_thread(lambda: self._prepare(run, network, volume_quota=quota))
        container = await self._create(run, config)
        if await self._in_thread(run.box.claim) is Claim.NOBODY:
            await self._client.start(container)
        return container

    def _prepare(self, run: Run, network: Network, *, volume_quota: bool) -> Json:
        """Make its folders, hold its shares, and describe its container."""
        order, place = run.order, self._place
        _see_that_nothing_leads_elsewhere(order, place.settings)
        workspace = make_workspace(place.workspaces, order.owner)
        try:
            give(workspace, self.owner)
            if order.bundle_path is not None:
                limit = place.settings.bundle_max_mib
                bundle, staging = Path(order.bundle_path), run.folder.path / "files"
                put_bundle(bundle, staging, workspace, order.workload_id, self.owner, limit)
            program = self._program(order, network)
            run.box.make(program.secrets, self.owner)
            give(run.folder.log, self.owner)
            see_to_folders(order.mounts, workspace, self.owner, here=True)
        except OSError as error:
            raise EngineFailure(f"its folders cannot be made: {error}", retryable=True) from error
        around = Surroundings(
            installation=place.installation,
            network=network.name,
            workspace=str(workspace),
            box=str(run.box.path),
            log=str(run.folder.log),
            user=f"{self.owner.uid}:{self.owner.gid}",
            gpus=self.gpus,
            volume_quota=volume_quota,
        )
        return container_config(order, program, around, ENTRY, place.settings)

    def _program(self, order: Order, network: Network) -> Program:
        held: Mapping[str, str] = {}
        if self._devices is not None and order.lease.shares:
            held = self._devices.confine(Hold(order.attempt_id, order.lease.shares, in_container=True))
        inside = Inside(network.gateway, frozenset(self._place.settings.reaches))
        return program_of(order, inside, self._place.shared, held)

    async def _create(self, run: Run, config: Json) -> str:
        name = container_name(run.id)
        created = await self._client.create(name, config)
        if created is not None:
            return created
        found = await self._client.inspect(name)
        if found is None:
            raise EngineFailure(f"the container {name} went while it was looked for", retryable=True)
        if not is_ours(found, run.id, self._place.installation):
            raise EngineFailure(f"there is a container {name} that is not ours; rename or remove it")
        return str(found["Id"])

    def release(self, run: Run) -> None:
        """Its processes are gone: give back what it held of the cards. Idempotent."""
        if self._devices is not None and run.order.lease.shares:
            self._devices.release(run.id)


def _see_that_nothing_leads_elsewhere(order: Order, settings: DockerSettings) -> None:
    """A folder that is mounted may lie where users can write: a link of theirs must not choose what is mounted."""
    for mount in settings.mounts:
        source = source_of(mount, order)
        if os.path.realpath(source) != os.path.normpath(source):
            raise EngineFailure(f"{source}, which is to be mounted at {mount.target}, leads elsewhere by a link")


def is_ours(found: Json, attempt_id: str, installation: str) -> bool:
    """True if this container is the attempt's, made by this installation."""
    labels = found["Config"]["Labels"] or {}
    return bool(
        labels.get(f"{LABEL}.installation") == installation and labels.get(f"{LABEL}.attempt") == attempt_id
    )  # fmt: skip
