"""The agent of a node: its loops, its reports, and its answers to requests of the control plane.

Loops: Docker daemon, partition detection and fencing, devices, link, firewall, gateway. Workloads on the node continue
when the agent ends, and it finds them again when it starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from commonage.agent.config import AgentConfig
from commonage.agent.connection import ControlPlaneConnection
from commonage.agent.containers.containers import Containers, Limits
from commonage.agent.containers.docker import DaemonGone, DockerDaemon
from commonage.agent.containers.execs import Execs
from commonage.agent.containers.images import Puller
from commonage.agent.containers.mounts import Mounts
from commonage.agent.devices import AgentDevices, DeviceSnapshot
from commonage.agent.fencing import DaemonHealth, Fences, Ping
from commonage.agent.network.firewall import FirewallKeeper
from commonage.agent.network.gateway import ContainerGateway
from commonage.agent.node import Node
from commonage.agent.partition import SWARM_PORT, PartitionMonitor, is_reachable
from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.engines import PrivilegesMayBeGained
from commonage.domain.statuses import ProcessOwner
from commonage.engines.containers.daemon.info import may_gain, services_fault, swarm_faults
from commonage.engines.containers.usage import measure, owners_of
from commonage.link import messages
from commonage.link.connection import Connection
from commonage.link.exchange import MessageHandlers, RequestHandler
from commonage.link.execs import EXEC
from commonage.link.messages import ReportReceived, RequestType, Welcome
from commonage.messages import text
from commonage.ports.agents import PARTITIONED_AFTER_S, NodeNetwork, OnProgress
from commonage.ports.devices import ShareAssignment

T = TypeVar("T")
_log = logging.getLogger(__name__)
_PING_INTERVAL_S, _PING_TIMEOUT_S = 1.0, 3.0
_PARTITION_CHECK_INTERVAL_S = 0.25
_RELEASE_INTERVAL_S = 60.0
_MAX_WARNINGS = 200
_REMEMBERED_REPORTS = 16


class Agent:
    """The agent of one node. Raises InvalidInput for a configuration that is not valid."""

    def __init__(self, config: AgentConfig) -> None:
        state = Path(config.state)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._config = config
        self._daemon = DockerDaemon(config.docker)
        self._containers = Containers(self._daemon)
        self._limits = Limits(self._daemon, cpu_weights=config.cpu_hold == "share")
        self._fences = Fences(self._daemon, state)
        self._devices = AgentDevices(config)
        self._node = Node(config, self._fences.root)
        self._mounts = Mounts(Path(config.mounts), config.shared)
        self._execs = Execs(self._daemon)
        self._puller = Puller(self._daemon, Path(config.docker_config), config.node)
        self._firewall = FirewallKeeper(config, state)
        self._gateway = ContainerGateway(config, state, self._network_changed)
        self._daemon_health = DaemonHealth(config.fence_after_s, config.fence_silent_after_s)
        self._partition = PartitionMonitor(config, state)
        # Separate threads: pausing workloads in time must not wait for threads that a silent daemon blocks.
        self._pausing = ThreadPoolExecutor(1, thread_name_prefix="pausing")
        # Separate, too: a file server that hangs must block only mounts.
        self._mounting = ThreadPoolExecutor(1, thread_name_prefix="mounting")
        self._cannot_mount = self._mounts.fault()
        self._swarm_faults: tuple[Reason, ...] = ()
        self._bounds_volumes = False
        message_handlers: MessageHandlers = {
            **self._execs.message_handlers(),
            "report-received": (ReportReceived, self._on_report_received),
            "network": (NodeNetwork, self._gateway.set_network),
            "allowed-addresses": (
                messages.AllowedAddresses,
                lambda allowed: self._firewall.allow_addresses(allowed.addresses),
            ),
            "neighbors": (messages.Neighbors, self._partition.set_neighbors),
        }
        self._control_plane = ControlPlaneConnection(
            config, self._request_handlers(), message_handlers, self._report_to
        )
        self._snapshot = DeviceSnapshot()
        self._changed = asyncio.Event()
        self._report_number = 0
        self._report_times: dict[int, float] = {}  # times of the last reports, by number
        self._warnings: list[tuple[int, tuple[str, str]]] = []  # with the number of the report that carried it, or 0

    async def run(self) -> None:
        """Run until cancelled. An unexpected error in one loop ends all: the supervisor restarts the agent."""
        await self._gateway.open()  # before the first report, which contains its address
        self._network_changed()
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._watch_daemon(), name="daemon")
                loops.create_task(self._watch_partition(), name="partition")
                loops.create_task(self._watch_devices(), name="devices")
                loops.create_task(self._release_stale(), name="release")
                loops.create_task(self._firewall.run(), name="firewall")
                loops.create_task(self._gateway.run(), name="gateway")
                loops.create_task(self._control_plane.run(), name="link")
        finally:
            await self._execs.close()
            await self._puller.close()
            await self._devices.close()
            self._pausing.shutdown(wait=False)
            self._mounting.shutdown(wait=False)

    # --- the daemon -----------------------------------------------------------------------------------------------

    async def _watch_daemon(self) -> None:
        known = False
        while True:
            before = self._daemon_health.fault(time.monotonic()) is not None
            known = await self._ping(known)
            now = time.monotonic()
            if self._daemon_health.must_fence(now):
                done = await asyncio.to_thread(self._fences.end_all, "the Docker daemon is down")
                self._daemon_health.note_fenced(done=done)
                self._changed.set()
            fault = self._daemon_health.fault(now)
            if (fault is not None) != before:
                _log.warning("%s", "the Docker daemon answers again" if fault is None else text(fault))
                self._changed.set()
            await asyncio.sleep(_PING_INTERVAL_S)

    async def _ping(self, known: bool) -> bool:
        """Ping the daemon, and list its containers if it answers; returns whether it did.

        `known`: it did the last time.
        """
        began = time.monotonic()
        try:
            await asyncio.to_thread(self._daemon.ping, _PING_TIMEOUT_S)
        except DaemonGone:
            self._daemon_health.note(Ping.GONE, began)
            return False
        except EngineFailure:
            self._daemon_health.note(Ping.SILENT, began)
            return False
        self._daemon_health.note(Ping.ANSWERS, began)
        try:
            if not known:
                await asyncio.to_thread(self._read_daemon_info)
                self._firewall.check_soon()  # the daemon may have recreated its chains
                await self._execs.end_left_over()
            await asyncio.to_thread(self._containers.refresh)
            await asyncio.to_thread(self._limits.apply, self._containers.running, time.monotonic())
        except (EngineFailure, OSError) as error:
            _log.warning("the containers on this node cannot be listed: %s", error)
            return False
        return True

    def _read_daemon_info(self) -> None:
        info = self._daemon.info()
        self._swarm_faults = swarm_faults(info)
        self._containers.set_daemon_default(may_gain(info) or False)
        self._devices.set_withheld_reason(services_fault(info))
        self._bounds_volumes = self._daemon.supports_volume_sizes()
        root = str(info["DockerRootDir"])
        self._node.note_docker_root(root)
        self._fences.note_root(root)

    # --- the site -------------------------------------------------------------------------------------------------

    async def _watch_partition(self) -> None:
        """Pause workloads while the node is partitioned, repeatedly: the daemon may be about to start more."""
        pause = partial(self._fences.pause_all, "this node is partitioned from its site")
        while True:
            await self._partition.probe()
            if self._partition.is_partitioned:
                await asyncio.get_running_loop().run_in_executor(self._pausing, pause)
                self._changed.set()
            await asyncio.sleep(_PARTITION_CHECK_INTERVAL_S)

    def _network_changed(self) -> None:
        self._firewall.set_network(self._gateway.network, self._gateway.addresses)
        self._changed.set()

    # --- messages -------------------------------------------------------------------------------------------------

    async def _watch_devices(self) -> None:
        while True:
            self._snapshot = await self._devices.snapshot(self._owners)
            if not self._devices.is_silent:
                new = [(0, warning) for warning in await self._devices.take_warnings()]
                self._warnings = [*self._warnings, *new][-_MAX_WARNINGS:]
            await asyncio.sleep(messages.REPORT_EVERY_S)

    async def _report_to(self, connection: Connection, welcome: Welcome) -> None:
        self._execs.set_connection(connection)
        self._firewall.allow_addresses(welcome.allowed_addresses)
        await self._gateway.wait_ready()
        self._warnings = [(0, one) for _, one in self._warnings]
        while not connection.is_closed:
            self._changed.clear()
            connection.send("report", await self._report())
            try:
                async with asyncio.timeout(messages.REPORT_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _report(self) -> messages.Report:
        snapshot = self._snapshot
        broken = (snapshot.fault, self._firewall.fault, self._gateway.fault, self._cannot_mount, *self._swarm_faults)
        faults = tuple(one for one in broken if one is not None)
        node = await asyncio.to_thread(self._node.report, snapshot.devices, faults)
        self._report_number += 1
        self._report_times[self._report_number] = time.monotonic()
        self._report_times.pop(self._report_number - _REMEMBERED_REPORTS, None)
        unsent = tuple(one for number, one in self._warnings if number == 0)
        self._warnings = [(number or self._report_number, one) for number, one in self._warnings]
        return messages.Report(
            self._report_number,
            node,
            engine_fault=self._daemon_health.fault(time.monotonic()),
            fenced=self._fences.fenced,
            paused=self._fences.paused,
            samples=snapshot.samples,
            owners=snapshot.owners,
            neighbors=self._partition.neighbors,
            notices=(PrivilegesMayBeGained(),) if self._containers.may_gain else (),
            bounds_volumes=self._bounds_volumes,
            gateway=self._gateway.address,
            mounts=True,
            pulls_by_token=True,
            warnings=unsent,
        )

    def _on_report_received(self, received: ReportReceived) -> None:
        if received.number in self._report_times:
            self._partition.control_answered(self._report_times[received.number])
        self._warnings = [(number, one) for number, one in self._warnings if number == 0 or number > received.number]

    # --- requests -------------------------------------------------------------------------------------------------

    def _request_handlers(self) -> Mapping[RequestType[Any, Any], RequestHandler]:
        return {
            messages.MEASURE: handler_of(lambda _: self._measure()),
            messages.OWNERS: handler_of(lambda request: self._owners_of(request.pids)),
            messages.ENFORCE: handler_of(self._enforce),
            messages.RELEASE: handler_of(lambda request: self._devices.release(request.ids)),
            messages.MOUNT: handler_of(self._mount),
            messages.UNMOUNT: handler_of(self._unmount),
            messages.PULL: self._pull,
            messages.PULL_BY_TOKEN: self._pull_by_token,
            EXEC: self._execs.run,
            messages.FENCE: handler_of(self._fence),
            messages.UNPAUSE: handler_of(self._unpause),
            messages.REACHES: handler_of(self._reaches),
            messages.NOTE_ALLOCATIONS: handler_of(lambda request: self._devices.note_allocations(request.allocations)),
            messages.RESUME: handler_of(lambda request: self._devices.resume(request.uuid)),
        }

    def _owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        return owners_of(pids, self._containers.of_attempts())

    async def _measure(self) -> messages.Measured:
        running = list(self._containers.running.values())
        measured = await asyncio.to_thread(lambda: [measure(one.attempt_id, one.pid) for one in running])
        return messages.Measured(tuple(one for one in measured if one is not None))

    async def _owners_of(self, pids: Collection[int]) -> messages.Owners:
        return messages.Owners(tuple(await asyncio.to_thread(self._owners, pids)))

    async def _enforce(self, hold: ShareAssignment) -> messages.Variables:
        return messages.Variables(tuple((await self._devices.enforce(hold)).items()))

    async def _mount(self, request: messages.Mounts) -> messages.Mounted:
        return messages.Mounted(
            await self._in_mounting_thread(lambda: self._mounts.mount(request.attempt_id, request.sources))
        )

    async def _unmount(self, attempts: messages.Attempts) -> None:
        try:
            await self._in_mounting_thread(lambda: self._mounts.remove(attempts.ids))
        except OSError as error:
            raise EngineFailure(f"the folders of {', '.join(attempts.ids)} cannot be unmounted: {error}") from error

    async def _in_mounting_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._mounting, work)

    async def _pull(self, image: messages.Image, on_progress: OnProgress) -> messages.Nothing:
        await self._puller.ensure(image.name, on_progress)
        return messages.Nothing()

    async def _pull_by_token(self, wanted: messages.TokenPull, on_progress: OnProgress) -> messages.Nothing:
        login = {"registrytoken": wanted.token, "serveraddress": wanted.registry}
        await self._puller.ensure(wanted.image, on_progress, login)
        return messages.Nothing()

    async def _fence(self, attempts: messages.Attempts) -> messages.Attempts:
        return messages.Attempts(tuple(await asyncio.to_thread(self._fences.end, attempts.ids)))

    async def _unpause(self, unpause: messages.Unpause) -> None:
        reported_at = self._report_times.get(unpause.number)
        if reported_at is None or time.monotonic() - reported_at > PARTITIONED_AFTER_S:
            return  # it may have been requeued elsewhere since
        paused = await asyncio.to_thread(self._fences.unpause, unpause.ids)
        warning = "Paused for {:.0f} s because its node was partitioned from the control plane; it continues now."
        self._warnings += [(0, (one, warning.format(seconds))) for one, seconds in paused.items()]
        self._changed.set()

    async def _reaches(self, node: messages.NodeAddress) -> messages.Reachable:
        return messages.Reachable(await is_reachable(node.address, SWARM_PORT, refused=False))

    async def _release_stale(self) -> None:
        while True:
            await asyncio.sleep(_RELEASE_INTERVAL_S)
            live = set(self._containers.of_attempts().values())
            await self._devices.release_stale(live, time.monotonic())
            try:
                await self._in_mounting_thread(partial(self._mounts.remove_stale, live, time.monotonic()))
            except OSError as error:
                _log.warning("folders of attempts that have ended cannot be unmounted: %s", error)


def handler_of(handle: Callable[[Any], Awaitable[object]]) -> RequestHandler:
    """The handler of a request that reports no progress. Without a result it answers `Nothing`."""

    async def handler(params: Any, _: OnProgress) -> object:
        result = await handle(params)
        return messages.Nothing() if result is None else result

    return handler
