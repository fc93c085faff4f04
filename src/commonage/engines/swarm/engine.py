"""The Swarm engine: the engine port over services of a Docker Swarm, of which this node is a manager.

One attempt is one service of one task on the node that the scheduler chose. State that must survive the server is in
the run folders, which only the control plane can access. All nodes see workspaces, control folders and logs under the
same path. Created by bootstrap; used through the port only.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import EngineNotAnswering, SharedFolderNotSet
from commonage.domain.statuses import Capabilities, Measurement, ProcessOwner
from commonage.engines.containers.attempt_backend import Run
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.containers.daemon.descriptions import LABEL, installation_filter
from commonage.engines.containers.daemon.networks import addresses_here, network_at
from commonage.engines.containers.engine import ContainerEngine
from commonage.engines.containers.files.prepare import ContainerDefaults
from commonage.engines.containers.program import shared_variables
from commonage.engines.rundir.node_report import disk_pressure_of, free_on
from commonage.engines.settings import SwarmSettings
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.container_client import SwarmContainerClient
from commonage.engines.swarm.doctor import notes_of
from commonage.engines.swarm.launcher import Launcher, Networks
from commonage.engines.swarm.nodes.fencing import Fencing
from commonage.engines.swarm.nodes.node_tracker import NodeTracker
from commonage.engines.swarm.statuses import Tasks
from commonage.engines.swarm.swarm_files import SwarmFiles
from commonage.engines.swarm.watcher import Watcher
from commonage.files.safe_path import SafePath
from commonage.ports.agents import CONTAINER_BRIDGE, Agents, NodeNetwork, OnProgress, ignore_progress
from commonage.ports.execs import ExecStream, Terminal
from commonage.wire.hub import docs_page

_MIB = 1024 * 1024
_log = logging.getLogger(__name__)


class SwarmEngine(ContainerEngine):
    """The engine of a site that is one Docker Swarm.

    Its data about attempts lies under `data` (swarm/runs), which only the control plane can access. `shared` is the
    folder that every node sees under the same path: workspaces, and swarm/attempts with a log and a control folder for
    each. Root
    on one of the nodes may change that folder at will. `agents` are those on the nodes; without them no GPUs are known,
    nothing is measured, and no node except the manager takes work.
    """

    _max_relayed = 256  # from the address of a node, for all of its containers
    _container_client: SwarmContainerClient
    _networks: Networks
    _seen_tasks: Tasks

    def __init__(
        self,
        site: str,
        data: Path,
        shared: Path,
        *,
        agents: Agents | None = None,
        settings: SwarmSettings | None = None,
    ) -> None:
        self._shared = shared.absolute()
        self._attempts_folder = SafePath(self._shared) / "swarm" / "attempts"
        self._settings = settings or SwarmSettings()
        self._client = Client(self._settings.url)
        super().__init__(site, "swarm", data.absolute() / "swarm", self._settings, self._client, self._attempts_folder)
        self._nodes = NodeTracker(self._client, agents, without_agents=self._settings.without_agents)
        self._fencing = Fencing(self._nodes, self._in_thread)
        self._sweeps: SwarmContainerClient | None = None
        self._notes: tuple[Reason, ...] = ()
        self._own_node_id = ""

    @property
    def _workspaces(self) -> SafePath:
        return SafePath(self._shared) / "workspaces"

    # --- the port: capabilities ------------------------------------------------------------------------------

    def capabilities(self) -> Capabilities:
        """Capabilities. Volume sizes are limited if the node's agent reports that its daemon can do so."""
        bounded, unbounded = self._nodes.volume_limits()
        return Capabilities(
            "swarm",
            isolates_users=self._nodes.has_agents,
            limits_memory=True,
            limits_cpu=True,
            mounts=True,
            bounded_on=bounded,
            unbounded_on=unbounded,
            notes=(*self._notes, *self._nodes.notes()),
        )

    async def nodes(self) -> Sequence[NodeReport]:
        with suppress(EngineFailure):
            await self._nodes.refresh()
        return await self._in_thread(self._reports)

    def _reports(self) -> list[NodeReport]:
        free, faults = free_on(self._shared)
        if self._nodes.fault:
            faults = (EngineNotAnswering(error=self._nodes.fault), *faults)
        disk_pressure = disk_pressure_of(free, self._settings.disk_low_mib, self._shared)
        return [
            replace(
                report,
                faults=(*report.faults, *faults, *self._faults_of_sharing(report.name)),
                disk_free_mib=min((one for one in (free, report.disk_free_mib) if one is not None), default=None),
                disk_pressure=report.disk_pressure or disk_pressure,
            )
            for report in self._nodes.reports(self._fencing.nodes_being_fenced())
        ]

    def _faults_of_sharing(self, node: str) -> Sequence[Reason]:
        own_node = self._nodes.by_id.get(self._own_node_id)
        if self._folder.parent == self._shared and own_node is not None and node != own_node.name:
            return (SharedFolderNotSet(guide=docs_page("operate/swarm")),)
        return ()

    # --- the port: opening and closing --------------------------------------------------------------------

    async def open(self) -> None:
        await self._in_thread(self._check_folder_layout)
        requests = await self._load_requests()
        name, settings = self._installation, self._settings
        swarm = await self._client.membership()
        self._own_node_id = str(swarm["NodeID"])
        address = settings.address or str(swarm["NodeAddr"])
        self._notes = notes_of(await self._client.info(), await self._client.heartbeat_s(), self._shared)
        await self._relays.open_at(address, self._admits)
        if (agents := self._nodes.agents) is not None:
            agents.allow_addresses([f"{address}:{port}" for port in settings.reaches])
            sources = tuple(dict.fromkeys([address, *addresses_here(), *settings.sources]))
            agents.set_network(NodeNetwork(settings.reaches, settings.ports, sources))
        self._networks = Networks(self._client, name, settings, address)
        defaults = ContainerDefaults(
            name, self._workspaces, shared_variables(os.environ), self._unpacker, is_local=False
        )
        launcher = Launcher(
            defaults, settings, self._client, self._nodes, SwarmFiles(self._client, name), self._images,
            self._networks, self._start_limiter, self._in_thread,
        )  # fmt: skip
        await launcher.open()
        await self._networks.open()
        self._launcher = launcher
        self._seen_tasks = Tasks(self._client, name)
        self._container_client = SwarmContainerClient(
            self._client, self._fencing, self._seen_tasks, launcher, settings, self._in_thread
        )  # fmt: skip
        await self._look_at_swarm()
        await self._recover(requests, self._container_client)
        watcher = Watcher(self._table, self._seen_tasks, self._nodes, self._in_thread)
        self._keep("watch tasks", partial(watcher.keep, self._settle_soon, self._swarm_is_back))
        self._sweeps = self._container_client
        self._keep("remove services", partial(watcher.sweep, self._container_client))
        self._keep("answer paused nodes", partial(self._fencing.keep_resolving, self._live_ids))
        self._keep_house()

    def _admits(self, peer: str) -> bool:
        """True if the relays accept this address: of a node, or of a container on this node."""
        local = network_at(CONTAINER_BRIDGE)
        return self._nodes.has_address(peer) or (local is not None and ip_address(peer) in local)

    def _check_folder_layout(self) -> None:
        """Raise EngineFailure if the shared folder still has files that only the control plane may write."""
        before = SafePath(self._shared) / "swarm" / "runs"
        is_known = self._folder.parent != self._shared and (self._folder / "installation").exists()
        if is_known or not before.is_folder() or self._attempts_folder.exists():
            return
        raise EngineFailure(
            f"{before} is of an older version, whose run folders every node could change. With nothing running, "
            f"once: mkdir -p {self._folder} && cp -n {before.parent}/installation {self._folder}/ && "
            f"mv {before} {self._attempts_folder} ({docs_page('operate/swarm')})"
        )

    def _settle_soon(self, run: Run) -> None:
        self._spawn(self._settle(run))

    async def _before_disconnect(self) -> None:
        if self._sweeps is not None:
            with suppress(EngineFailure):  # the rest is found at the next start
                await self._sweeps.sweep(at_once=True)

    async def _look_at_swarm(self) -> None:
        """Read our objects in the Swarm, and its nodes. Raises EngineFailure."""
        await self._nodes.poll()  # the caller looks at all running attempts
        for service in await self._client.services(installation_filter(self._installation)):
            self._container_client.note(_attempt_of(service), str(service["ID"]))
        await self._seen_tasks.ask()

    async def _swarm_is_back(self) -> None:
        await self._look_at_swarm()
        await self._networks.refresh()
        for run in self._table:
            self._settle_soon(run)

    async def _clear(self) -> None:
        """Remove our services whose attempt is forgotten or was never written to disk, and unused networks.

        A crash between two steps leaves such services. Raises EngineFailure.
        """
        for service in await self._client.services(installation_filter(self._installation)):
            attempt = _attempt_of(service)
            if attempt not in self._table.runs and not self._container_client.is_swept(attempt):
                _log.warning("removing a service of %s, which is not known any more", attempt)
                await self._client.remove_service(str(service["ID"]))
        await self._networks.clear_unused(self._has_runs_of)
        await self._launcher.deliveries.clear(lambda attempt_id: attempt_id in self._live_ids())

    def _live_ids(self) -> set[str]:
        return {run.id for run in self._table.live()}

    # --- the port: status and usage -------------------------------------------------------------------------

    async def measure(self) -> Sequence[Measurement]:
        """Current usage of each running attempt, as far as agents report it."""
        running = {run.id: run.request.allocation.node for run in self._table if run.is_running}
        asked = [(agents, node) for node in sorted(set(running.values())) if (agents := self._nodes.agent_of(node))]
        answers = await asyncio.gather(
            *(agents.measure(self._nodes.id_of(node)) for agents, node in asked), return_exceptions=True
        )
        found = []
        for (_, node), answer in zip(asked, answers, strict=True):
            if isinstance(answer, EngineFailure):  # its link was cut a moment ago
                continue
            if isinstance(answer, BaseException):
                raise answer
            found += [one for one in answer if running.get(one.attempt_id) == node]
        return found

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """Owners of these processes of the control plane's node."""
        own_node = self._nodes.by_id.get(self._own_node_id)
        agents = self._nodes.agent_of(own_node.name) if own_node is not None else None
        return [] if own_node is None or agents is None else await agents.owners(own_node.id, pids)

    async def _exec(self, run: Run, command: Sequence[str], terminal: Terminal | None) -> ExecStream:
        """Run a command through the agent of its node, because only that reaches its container."""
        node = run.request.allocation.node
        agents = self._nodes.agent_of(node)
        if agents is None:
            why = (
                f"has no agent that answers, by which alone its containers are reached ({docs_page('operate/agents')})"
            )
            raise EngineFailure(f"no command can run in {run.id}: its node {node} {why}", retryable=True)
        return await agents.exec(self._nodes.id_of(node), run.id, command, terminal)

    # --- the port: environments ---------------------------------------------------------------------------

    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        """Pull its image to one node, or to all schedulable nodes."""
        await self._launcher.ensure_image(environment, node, on_progress)


def _attempt_of(service: Json) -> str:
    return str(service["Spec"].get("Labels", {}).get(f"{LABEL}.attempt", ""))
