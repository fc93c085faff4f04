"""Creates the service of an attempt: image, folders, the tenant's network, GPU shares, description.

Used by `container_client`. Everything here may be repeated after a crash: an existing service of the attempt is found
by its label, and the entry in its container runs the command only once (entry.sh).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network
from typing import Any

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.reasons.attempts import AssignedToNode
from commonage.domain.reasons.nodes import NodeTakesNoWork
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.attempt_backend import Run
from commonage.engines.containers.daemon.connection import DaemonRefused, Json
from commonage.engines.containers.daemon.descriptions import LABEL, AttemptFolders, installation_filter, share_mounts
from commonage.engines.containers.daemon.images import Images
from commonage.engines.containers.daemon.networks import TenantNetworks
from commonage.engines.containers.files import control_folder
from commonage.engines.containers.files.control_folder import Owner
from commonage.engines.containers.files.mounts import check_mount_sources
from commonage.engines.containers.files.prepare import ContainerDefaults, ourselves, prepare_files, prepare_folders
from commonage.engines.containers.lifecycle import StartLimiter
from commonage.engines.containers.program import PORT, ContainerNetwork, Program, program_of
from commonage.engines.rundir.tasks import InThread
from commonage.engines.settings import SwarmSettings
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.nodes.node_tracker import AgentUnreachable, NodeTracker
from commonage.engines.swarm.nodes.swarm_nodes import SwarmNode
from commonage.engines.swarm.swarm_files import SwarmFiles
from commonage.engines.swarm.translate import (
    ContainerContext,
    network_config,
    service_name,
    service_names,
    service_spec,
)
from commonage.ports.agents import OnProgress
from commonage.ports.devices import ShareAssignment


class Networks(TenantNetworks):
    """Overlay networks. `address` is the one at which containers of all nodes reach this node."""

    # Larger than for Docker: in an overlay each node takes an address as well.
    _prefix = 22
    _setting = "swarm_networks"

    def __init__(self, client: Client, installation: str, settings: SwarmSettings, address: str) -> None:
        super().__init__(client, installation, settings.networks)
        self._swarm = client
        self._encrypted = settings.encrypted
        self._address = address

    def _config(self, tenant: str, subnet: str) -> Json:
        return network_config(self._installation, tenant, subnet, encrypted=self._encrypted)

    def _gateway(self, found: Json) -> str:
        return self._address

    def _subnet(self, found: Json) -> IPv4Network | None:
        """Containers reach this node by their own node's address; and Swarm assigns a new network's own range later."""
        return None

    async def _taken(self) -> list[IPv4Network]:
        """Swarm accepts any range, and with overlapping networks its tasks wait forever."""
        taken = await super()._taken()
        for network in await self._swarm.overlays():
            for part in (network.get("IPAM") or {}).get("Config") or ():
                if part.get("Subnet") and ":" not in part["Subnet"]:
                    taken.append(IPv4Network(part["Subnet"], strict=False))
        return taken


_AT_ONCE = 32
_GONE = re.compile(r"(network \S+|configs?|secrets?) not found")


@dataclass(eq=False)
class Launcher:
    defaults: ContainerDefaults
    settings: SwarmSettings
    client: Client
    nodes: NodeTracker
    deliveries: SwarmFiles
    images: Images
    networks: Networks
    start_limiter: StartLimiter
    in_thread: InThread
    _at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    _owner: Owner = field(default_factory=ourselves)
    _creating: dict[str, asyncio.Task[str]] = field(default_factory=dict)

    async def open(self) -> None:
        try:
            await self.in_thread(partial(self.defaults.workspaces.make_folder, parents=True))
        except OSError as error:
            raise EngineFailure(f"the folder {self.defaults.workspaces} cannot be made: {error.strerror}") from error
        await self.deliveries.entry()

    # --- images -------------------------------------------------------------------------------------------------

    async def ensure_image(self, environment: Environment, node: str | None, on_progress: OnProgress) -> None:
        """Pull the image to one node, or (None) to all schedulable nodes. Raises EngineFailure."""
        names = self.nodes.nodes_with_agents() if node is None else [node]
        swarm_nodes = [self.nodes.swarm_node(name) for name in names]

        async def have(image: str, on_progress: OnProgress) -> None:
            if not swarm_nodes:
                await self.images.ensure_local(image, on_progress)
            fetches = (self._fetch(swarm_node, image, on_progress) for swarm_node in swarm_nodes)
            # All end before a failure is noted: progress of a slower node must not follow it.
            for failure in await asyncio.gather(*fetches, return_exceptions=True):
                if failure is not None:
                    raise failure

        await self.images.ensure(environment, on_progress, have)

    async def _fetch(self, swarm_node: SwarmNode, image: str, on_progress: OnProgress) -> None:
        agents = self.nodes.agent_of(swarm_node.name)
        if agents is not None:
            # Checked each time: an image may have been removed since.
            with self._talking_to(swarm_node):
                async with self.images.logins.token_for(image) as token:
                    await agents.pull(swarm_node.id, image, on_progress, token)
            return
        account = self.settings.account
        if swarm_node.name in self.nodes.agent_reports and account is not None and account.is_for(image):
            raise AgentUnreachable(
                f"the agent of {swarm_node.name}, which may fetch images of the site's, does not answer"
            )
        # Its daemon pulls it when the container is created. An invalid image name is detected here.
        await self.client.image(image)

    @contextmanager
    def _talking_to(self, swarm_node: SwarmNode) -> Iterator[None]:
        """Translate a failure to AgentUnreachable if the agent's link is down by then."""
        try:
            yield
        except EngineFailure as error:
            agents = self.nodes.agents
            linked = agents is not None and any(
                one.node_id == swarm_node.id and one.connected for one in agents.agent_reports()
            )
            if error.is_retryable and not linked:
                raise AgentUnreachable(error.message, native=error.native) from error
            raise

    # --- services -----------------------------------------------------------------------------------------------

    async def launch(self, run: Run, on_progress: OnProgress) -> str:
        """Create the attempt's service; return its id. Raises EngineFailure.

        After a DaemonUnreachable the result is unknown: ask again.
        """
        request = run.request
        swarm_node = self.nodes.swarm_node(request.allocation.node)
        await self.ensure_image(request.environment, swarm_node.name, on_progress)
        await prepare_files(run, self.defaults, self._owner, on_progress)
        await self.start_limiter.take(run, swarm_node.name, swarm_node.cpus_milli // 1000, on_progress)
        async with self._at_once:
            try:
                return await self._prepare_and_create(run, swarm_node, on_progress)
            except DaemonRefused as error:
                if not _GONE.search(str(error)):
                    raise
            # The tenant's network, or a config, was removed from outside.
            self.networks.forget(request.tenant)
            self.deliveries.forget_configs()
            return await self._prepare_and_create(run, swarm_node, on_progress)

    async def _prepare_and_create(self, run: Run, swarm_node: SwarmNode, on_progress: OnProgress) -> str:
        network = await self.networks.of(run.request.tenant)
        held = await self._enforce(run.request, swarm_node)
        gateway = self.nodes.gateway_of(swarm_node.name) or network.gateway
        peers = tuple(service_name(one) for one in run.request.gang)
        port = run.request.port or run.port or PORT
        inside = ContainerNetwork(gateway, frozenset(self.settings.reaches), port, peers)
        program = program_of(run.request, inside, self.defaults.shared, held)
        workspace = await self.in_thread(partial(self._prepare_folders, run, program))
        context = ContainerContext(
            installation=self.defaults.installation,
            # By its name, which shows that it is ours: a caller that may pass any id could pass the node's own network.
            network=network.name,
            folders=AttemptFolders(workspace, str(run.control_folder.path), str(run.folder.log)),
            entry=await self.deliveries.entry(),
            injected=await self.deliveries.injected(run.request),
            secrets=await self.deliveries.secrets(run.id, program.secrets),
            user=(self._owner.uid, self._owner.gid),
            node=swarm_node.id,
            declares_vram=swarm_node.vram_mib is not None,
            volume_quota=self.nodes.bounds_volumes(swarm_node.name),
            port=run.port,
        )
        spec: Json = service_spec(run.request, program, context, self.settings)
        with self._talking_to(swarm_node):
            spec = await mount_through_agent(spec, run.id, program, self.nodes, swarm_node)
        on_progress(AssignedToNode(node=swarm_node.name), None)
        creating = self._creating[run.id] = asyncio.create_task(self._create_service(run.request, spec))
        creating.add_done_callback(lambda _: self._creating.pop(run.id, None))
        # A stop must not cancel it: then it would be unknown whether a service exists.
        return await asyncio.shield(creating)

    async def _create_service(self, request: StartRequest, spec: Json) -> str:
        for name in service_names(request):
            created = await self.client.create_service({**spec, "Name": name})
            if created is not None:
                return created
            if known := await self._services_of(request.attempt_id):
                return known[0]
        raise EngineFailure(f"the services {' and '.join(service_names(request))} are there already, and not ours")

    async def _services_of(self, attempt_id: str) -> Sequence[str]:
        labels = installation_filter(self.defaults.installation), f"{LABEL}.attempt={attempt_id}"
        return [str(one["ID"]) for one in await self.client.services(*labels)]

    async def remove_secrets(self, run: Run) -> None:
        """Remove the secrets of an attempt whose service is gone; a failure is left for `clear`."""
        if run.request.secrets:
            with suppress(EngineFailure):
                await self.deliveries.remove_secrets(run.id)

    async def remove(self, attempt_id: str) -> None:
        """Remove every service of the attempt, also one in creation. Raises EngineFailure."""
        if (creating := self._creating.get(attempt_id)) is not None:
            await asyncio.wait([creating])
        for service in await self._services_of(attempt_id):
            await self.client.remove_service(service)

    async def _enforce(self, request: StartRequest, swarm_node: SwarmNode) -> Mapping[str, str]:
        if not request.allocation.shares:
            return {}
        agents = self.nodes.agent_of(swarm_node.name)
        if agents is not None:
            with self._talking_to(swarm_node):
                return await agents.enforce(
                    swarm_node.id, ShareAssignment(request.attempt_id, request.allocation.shares, in_container=True)
                )
        if all(share.simulated for share in request.allocation.shares):
            return {}
        raise AgentUnreachable(f"the agent of {swarm_node.name}, which holds shares of GPUs, does not answer")

    def _prepare_folders(self, run: Run, program: Program) -> str:
        check_mount_sources(run.request, self.settings.mounts)
        return str(prepare_folders(run, program, self.defaults, self._owner))


async def mount_through_agent(
    spec: Json, attempt_id: str, program: Program, node_tracker: NodeTracker, swarm_node: SwarmNode
) -> Json:
    """Return the service description, with the folders mounted and named as they are on the node.

    Raises EngineFailure; AgentUnreachable if there is an agent that does not answer.
    """
    made: dict[str, Any] = deepcopy(dict(spec))
    # What enforces its share is in a folder of the agent already.
    enforcing = share_mounts(program)
    binds = [
        one for one in made["TaskTemplate"]["ContainerSpec"]["Mounts"] if one["Type"] == "bind" and one not in enforcing
    ]
    agents = node_tracker.agent_of(swarm_node.name)
    if agents is None:
        if swarm_node.name in node_tracker.agent_reports:
            raise AgentUnreachable(
                f"the agent of {swarm_node.name}, which mounts the folders of workloads, does not answer"
            )
        if (why := node_tracker.why_unmounted(swarm_node.name)) is not None:
            raise EngineFailure(NodeTakesNoWork(node=swarm_node.name, cause=why), retryable=True)
        return made
    asked = list(zip(_names(binds, program), (str(one["Source"]) for one in binds), strict=True))
    for one, place in zip(binds, await agents.mount(swarm_node.id, attempt_id, asked), strict=True):
        one["Source"] = place
    return made


def _names(binds: Sequence[Json], program: Program) -> list[str]:
    known = {program.home: "workspace", control_folder.INSIDE: control_folder.NAME, control_folder.LOG_INSIDE: "log"}
    return [known.get(str(one["Target"]), f"volume-{number}") for number, one in enumerate(binds)]
