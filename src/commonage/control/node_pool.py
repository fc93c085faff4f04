"""Nodes, devices and environments: updated from the engines' reports, shown with free and used resources.

Writes node inventory and health, and the drain state that admins set. Read by API, portal and the launch form.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.nodes.all_devices import AllDevices
from commonage.control.nodes.device_alarms import alarms, device_of
from commonage.control.nodes.node_states import drained, essence, judged, undecided
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.state.waiting import wait_at_most
from commonage.control.state.writer import Writer
from commonage.control.tenants.membership import tenants_of
from commonage.control.usage.attribution import UnattributedProcess
from commonage.control.usage.watchdog import Watchdog
from commonage.domain.environments import Environment, EnvironmentState, EnvironmentStatus
from commonage.domain.errors import CommonageError, NotFound
from commonage.domain.events import Event, EventKind
from commonage.domain.explanations import Holder
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import Device, Node, NodeReport, NodeState
from commonage.domain.principals import Principal, Scope
from commonage.domain.quantities import format_duration
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import OnFirstUse
from commonage.domain.reasons.notes import NodeStateChanged
from commonage.domain.reasons.waiting import Resources
from commonage.domain.requests import GpuRequest, Request, parse_gpus
from commonage.domain.statuses import Capabilities
from commonage.domain.tenants import PriorityClass, Tenant
from commonage.domain.workloads import State, Workload
from commonage.ports.clock import Clock
from commonage.ports.devices import DeviceSample
from commonage.ports.engine import Engine
from commonage.scheduler.autoscaling import max_nodes_for
from commonage.scheduler.explain.explain import ever_fits
from commonage.scheduler.fit.filters import refusal
from commonage.scheduler.model.grid import Grid

log = logging.getLogger(__name__)
GONE_FOR_S = 15.0  # time for a removed node to leave its site; if it reports later, it has joined again
_SOON_S, _SOON_FOR_S = (
    1.0,
    20.0,
)  # a node that leaves or joins is checked more often: its state becomes known soon


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A GPU: its free share, its last measurement, and the holders of the rest."""

    device: Device
    free_mib: int
    free_compute_milli: int
    used_mib: int | None
    utilisation: float | None
    holders: tuple[Holder, ...]
    sample: DeviceSample | None = None
    unattributed: tuple[UnattributedProcess, ...] = ()  # processes of no attempt that hold VRAM of it


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node and its free resources. `workloads` is the number of allocations on it."""

    node: Node
    free_cpus_milli: int
    free_memory_mib: int
    devices: tuple[DeviceView, ...]
    workloads: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    """A catalogue entry and its status."""

    environment: Environment
    status: EnvironmentStatus


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """A share that can be requested; `why_not` is None if it could start now."""

    gpus: str
    title: str
    free_now: bool
    why_not: Reason | None


@dataclass(frozen=True, slots=True)
class LaunchView:
    """Content of the launch form: what a user may request, and what is free now."""

    environments: tuple[EnvironmentView, ...]
    gpu_choices: tuple[GpuChoice, ...]
    models: tuple[str, ...]
    max_cpus_milli: int
    max_memory_mib: int
    max_vram_mib: int
    free_cpus_milli: int
    free_memory_mib: int
    simulated_gpus: bool
    tenants: tuple[Tenant, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources: engines by site. `image_status` gives the status of environments that come from an image."""

    engines: Mapping[str, Engine]
    devices: AllDevices
    watchdog: Watchdog
    image_status: Callable[[Environment], EnvironmentStatus | None]


class NodePool:
    """Nodes, devices and environments of all sites."""

    def __init__(
        self,
        sources: Sources,
        catalogue: Catalogue,
        live_state: LiveState,
        writer: Writer,
        clock: Clock,
        settings: ControlSettings,
    ) -> None:
        self._engines, self.catalogue, self._live_state, self._writer = sources.engines, catalogue, live_state, writer
        self._clock, self._settings = clock, settings
        self._statuses: dict[str, EnvironmentStatus] = {}
        self._devices, self._watchdog, self._image_status = sources.devices, sources.watchdog, sources.image_status
        self._measured: Mapping[str, DeviceSample] = {}
        self._suspects: set[str] = set()  # nodes on which a workload was lost since their last report
        self._woken = asyncio.Event()
        self._gone: dict[str, float] = {}  # by removed node, the time of its removal
        self._writing = asyncio.Lock()  # a report must not overwrite a drain requested in the meantime
        self._soon_until = 0.0
        self.iterations = Iterations("node-pool", clock.now)

    # --- loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Process reports until cancelled. The caller makes the first `look`."""
        while True:
            changes = self._clock.now() < self._soon_until
            with self.iterations.rest():
                await wait_at_most(_SOON_S if changes else self._settings.sample_every_s, self._woken, self._clock)
            self._woken.clear()
            await self.look()

    async def look(self) -> None:
        """Run one tick; changes that cannot be written now are written with the next report."""
        try:
            await self.tick()
        except CommonageError as error:
            log.warning("what the nodes reported is not written yet: %s", error)

    def changed(self, workload: Workload) -> None:
        """Called after each write of a workload: if it was lost, its node is suspected before the next plan."""
        if workload.attempt is not None and workload.attempt.state is State.LOST:
            self.suspect(workload.attempt.allocation.node)

    def suspect(self, name: str) -> None:
        """A workload was lost on the node: schedule nothing onto it until its next report, requested at once."""
        node = self._live_state.nodes.get(name)
        if node is not None and node.state is NodeState.READY:
            self._suspects.add(name)
            self._live_state.put_nodes([replace(node, state=NodeState.FAULTY, reason="what ran there was lost")])
            self._woken.set()

    async def tick(self) -> None:
        """Ask every engine once; write what changed."""
        self._suspects.clear()
        reports: dict[str, tuple[Engine, NodeReport]] = {}
        for site, engine in self._engines.items():
            try:
                found = await engine.nodes()
                for status in await engine.environments():
                    self._statuses[status.name] = status
            except CommonageError as error:
                log.warning("site %s does not report: %s", site, error)
                continue
            # A node that is reported as gone is ignored if it is unknown or was removed.
            there = [report for report in found if not report.gone or report.name in self._live_state.nodes]
            reports.update((report.name, (engine, report)) for report in there)
        async with self._writing:
            now = self._clock.now()
            self._gone = {name: at for name, at in self._gone.items() if now - at < GONE_FOR_S}
            for name in (*self._gone, *self._suspects):  # these reports are older than the known state
                reports.pop(name, None)
            nodes = [self._taken_in(engine, report, now) for engine, report in reports.values()]
            silent = [node for name, node in self._live_state.nodes.items() if name not in reports]
            silent = [node for node in silent if node.name not in self._suspects]
            await self._keep([*nodes, *(self._ignore_progress(node, now) for node in silent)], now)

    def _taken_in(self, engine: Engine, report: NodeReport, now: float) -> Node:
        seen = Node(report.name, engine.site, engine.capabilities().name, NodeState.READY, report, now)
        known = self._live_state.nodes.get(report.name)
        if known is not None:
            observed_at = known.observed_at if report.gone else now
            seen = replace(seen, observed_at=observed_at, drained_by=known.drained_by, leave_by=known.leave_by)
        return judged(seen)

    def _ignore_progress(self, node: Node, now: float) -> Node:
        """The state of a node that no engine reported: unschedulable at once, lost after a while."""
        silent = now - node.observed_at
        if node.state is NodeState.LOST:
            return node
        if silent >= self._settings.node_lost_after_s:
            return replace(node, state=NodeState.LOST, reason=f"not seen for {format_duration(silent)}")
        state = NodeState.DRAINING if node.drain else NodeState.FAULTY
        return replace(node, state=state, reason=node.reason or "it does not report")

    async def _keep(self, nodes: Sequence[Node], now: float) -> None:
        """Put nodes into the live state; write those with changes other than the time they were last seen."""
        changed: list[Node] = []
        events: list[Event] = []
        held = self._live_state.held()
        for node in nodes:
            before = self._live_state.nodes.get(node.name)
            if before is None or essence(before) != essence(node):
                changed.append(node)
            if before is None or before.state is not node.state:
                changed_to = NodeStateChanged(node=node.name, state=node.state.value, detail=node.reason)
                events.append(Event(EventKind.NODE, now, changed_to))
                self._soon_until = now + _SOON_FOR_S if before is not None else 0.0
            events += alarms(before, node, held, self._live_state.get, now)
            events += undecided(before, node, held, self._live_state.get, now)
        if changed:
            await self._writer.write(nodes=changed, events=events)
        self._live_state.put_nodes(nodes)
        if changed:
            self._live_state.changed.set()

    # --- inventory ------------------------------------------------------------------------------------------------

    def note_measured(self, samples: Mapping[str, DeviceSample]) -> None:
        """Store the last measurements of the GPUs, by device uuid."""
        self._measured = dict(samples)

    @property
    def simulated_gpus(self) -> bool:
        """True if any GPU is simulated: pages that show GPUs must say so."""
        return any(device.simulated for node in self._live_state.nodes.values() for device in node.report.devices)

    def capabilities(self) -> Sequence[Capabilities]:
        """Capabilities of each engine."""
        return [engine.capabilities() for engine in self._engines.values()]

    def nodes(self) -> Sequence[NodeView]:
        """All nodes with their free resources, by name."""
        held = self._live_state.held()
        holders: dict[str, list[Holder]] = defaultdict(list)
        counts: dict[str, int] = defaultdict(int)
        for one in held:
            counts[one.allocation.node] += 1
            for share in one.allocation.shares:
                holds = Resources(gpu_memory_mib=share.memory_mib)
                holder = Holder(one.workload_id, one.name, one.owner, one.kind, one.allocation.node, holds, one.ends_at)
                holders[share.device_uuid].append(holder)
        return [self._view(node, holders, counts[name]) for name, node in sorted(self._live_state.nodes.items())]

    def _view(self, node: Node, holders: Mapping[str, Sequence[Holder]], workloads: int) -> NodeView:
        grid = self._live_state.snapshot.grid
        number = grid.number[node.name]
        devices = []
        for index, device in enumerate(node.report.devices):
            sample = self._measured.get(device.uuid)
            devices.append(
                DeviceView(
                    device=device,
                    free_mib=int(grid.free_mib[number, index]),
                    free_compute_milli=int(grid.free_milli[number, index]),
                    used_mib=sample.memory_used_mib if sample else None,
                    utilisation=sample.utilisation if sample else None,
                    holders=tuple(holders.get(device.uuid, ())),
                    sample=sample,
                    unattributed=tuple(self._watchdog.unattributed_processes.get(device.uuid, ())),
                )
            )
        engine = self._engines.get(node.site)
        notes = engine.capabilities().notes if engine else ()
        return NodeView(node, int(grid.cpus[number]), int(grid.memory[number]), tuple(devices), workloads, notes)

    def environments(self, who: Principal | None = None) -> Sequence[EnvironmentView]:
        """The catalogue as `who` may see it (None: all of it), with the status of each entry."""
        found = self.catalogue.environments_for(who, self._settings)
        return [EnvironmentView(one, self._status(one)) for one in found]

    def _status(self, environment: Environment) -> EnvironmentStatus:
        brought = self._image_status(environment)
        if brought is not None:
            return brought
        on_first_use = OnFirstUse(is_image=environment.image is not None)
        absent = EnvironmentStatus(environment.name, "", EnvironmentState.ABSENT, on_first_use)
        return self._statuses.get(environment.name, absent)

    async def drain(self, who: Principal, name: str, drain: bool, leave_by: float | None = None) -> Node:
        """Stop scheduling onto a node (True) or start again (False). For admins. Raises NotFound, Forbidden.

        `drains` handles the workloads on the node; `leave_by` is stored for it.
        """
        who.need(Scope.ADMIN)
        async with self._writing:
            node = self.known(name)
            wished = drained(node, who.name if drain else "", leave_by)
            await self._keep([wished], self._clock.now())
            return self._live_state.nodes[name]

    async def forget(self, node: Node, events: Sequence[Event]) -> None:
        """Remove a node, and write the events about it. No allocation may exist on it."""
        async with self._writing:
            await self._writer.depart(node, events)
            self._gone[node.name] = self._clock.now()
            self._live_state.remove_node(node.name)

    async def resume(self, who: Principal, name: str, gpu: str | None = None) -> Node:
        """Schedule onto a node again, and clear the remembered faults of its GPUs. For admins.

        With `gpu` (index or uuid), only clear the remembered faults of that GPU. Faults that persist are found again at
        once. Raises NotFound, Forbidden.
        """
        who.need(Scope.ADMIN)
        node = self.known(name)
        devices = node.report.devices if gpu is None else (device_of(node, gpu),)
        for uuid in dict.fromkeys(index.parent_uuid or index.uuid for index in devices):
            await self._devices.resume(uuid)
        if gpu is None:
            await self.drain(who, name, False)
        await self.look()
        return self._live_state.nodes[name]

    def known(self, name: str) -> Node:
        """Find a node by its name. Raises NotFound, which lists the known nodes."""
        node = self._live_state.nodes.get(name)
        if node is None:
            there = ", ".join(sorted(self._live_state.nodes)) or "none"
            raise NotFound(f"there is no node {name[:60]!r}; there are: {there}", code="node-not-found")
        return node

    # --- launch options -------------------------------------------------------------------------------------------

    def launch_options(self, who: Principal) -> LaunchView:
        """Resources that `who` may request, and those that are free now."""
        who.need(Scope.READ)
        grid = self._live_state.snapshot.grid
        reports = [node.report for node in self._live_state.nodes.values() if node.state is not NodeState.LOST]
        devices = [device for report in reports for device in report.devices if not device.faults]
        return LaunchView(
            environments=tuple(self.environments(who)),
            gpu_choices=self._choices(grid, devices),
            models=tuple(sorted({device.model for device in devices})),
            max_cpus_milli=max((report.cpus_milli for report in reports), default=0),
            max_memory_mib=max((report.memory_mib for report in reports), default=0),
            max_vram_mib=max((device.memory_mib for device in devices), default=0),
            free_cpus_milli=int(grid.cpus[grid.ready].max(initial=0)),
            free_memory_mib=int(grid.memory[grid.ready].max(initial=0)),
            simulated_gpus=self.simulated_gpus,
            tenants=tuple(tenants_of(who.groups, self._settings)),
            priority_classes=tuple(
                one for one in self._settings.priority_classes if who.is_admin or not one.for_admins
            ),
        )

    def _choices(self, grid: Grid, devices: Sequence[Device]) -> tuple[GpuChoice, ...]:
        if not devices:
            return ()
        # A GPU with slots offers its slots; other GPUs offer any fraction.
        in_slots = sorted({device.slots for device in devices if device.slots})
        texts = [f"{part}/{slots}" for slots in in_slots for part in range(1, slots)]
        largest = max((device.memory_mib for device in devices if not device.slots), default=0)
        if largest:
            texts += [*(f"{gib}GiB" for gib in (4, 8, 12, 16) if gib * 1024 < largest), "0.25", "0.5"]
        texts.append("1")
        if grid.kind.shape[1] > 1:
            texts.append("2")
        return tuple(self._choice(text, grid) for text in texts)

    def _choice(self, text: str, grid: Grid) -> GpuChoice:
        gpu = parse_gpus(text)
        request = Request(self._settings.default_cpus_milli, self._settings.default_memory_mib, gpu)
        shape = grid.shape(request)
        free = bool(grid.fits(shape, np.arange(len(grid.nodes))).any())
        why_not = None if free or not grid.nodes else refusal(grid, shape, 0)
        return GpuChoice(text, f"{text} of a GPU" if "/" in text else _title(gpu), free, why_not)

    def refuse_if_never(self, request: Request) -> Reason | None:
        """Reason why no node could ever run the request; None if a node, or one that can be added, could."""
        if max_nodes_for(self._live_state.node_pools, request):
            return None
        return ever_fits(self._live_state.snapshot.grid, request)


def _title(gpu: GpuRequest | None) -> str:
    return "no GPU" if gpu is None else str(gpu)
