"""The loop that keeps nodes: reads the engines' reports, judges their health, and writes what changed.

The only writer of node inventory, node health and the drain state that admins set.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakSet

from commonage.control.access import access_of
from commonage.control.catalogue.catalogue import Environments
from commonage.control.engines import Engines
from commonage.control.nodes.devices import AllDevices
from commonage.control.nodes.node_states import (
    alarms,
    device_of,
    drained,
    events_awaiting_admin,
    stored_fields,
    with_state,
)
from commonage.control.settings import ControlSettings
from commonage.control.signals import wait_at_most
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import DeviceKey, Node, NodeKey, NodeReport, NodeState
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons.nodes import NotReporting, WorkloadLostThere
from commonage.domain.reasons.notes import NodeStateChanged
from commonage.domain.workloads import Event, EventKind, State, Workload
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine

log = logging.getLogger(__name__)
GONE_FOR_S = 15.0
"""Time for a removed node to leave its site. If it reports later, it has joined again."""
REPORT_TIMEOUT_S = 20.0
MAX_NODES = 10_000
"""Of a site, with those that it does not report any more."""
_SOON_S, _SOON_FOR_S = 1.0, 20.0
"""While a node leaves or joins, nodes are checked more often, so that its state is known soon."""


@dataclass(frozen=True, slots=True)
class NodeSources:
    """`engines` report nodes, by site. `environments` takes what they report about environments."""

    engines: Engines
    devices: AllDevices
    environments: Environments


class Nodes:
    def __init__(
        self,
        sources: NodeSources,
        live_state: LiveState,
        writer: Writer,
        clock: Clock,
        settings: ControlSettings,
    ) -> None:
        self._engines, self._devices, self._environments = sources.engines, sources.devices, sources.environments
        self._live_state, self._writer, self._clock, self._settings = live_state, writer, clock, settings
        self._suspects: set[NodeKey] = set()  # nodes on which a workload was lost since their last report
        self._woken: dict[str, asyncio.Event] = {}  # by site
        self._known: WeakSet[Engine] = WeakSet()  # engines that were asked for their nodes
        self._gone: dict[NodeKey, float] = {}  # by removed node, the time of its removal
        self._writing = asyncio.Lock()  # a report must not overwrite a drain requested in the meantime
        self._impossible: dict[str, list[str]] = {}  # by site, the nodes that report impossible sizes
        self._full: set[str] = set()  # sites that report more nodes than they may have
        self._soon_until = 0.0
        self.iterations = Iterations("nodes", clock.now)

    async def run(self) -> None:
        """Process reports until cancelled. The caller makes the first `refresh`."""
        with self.iterations.rest():
            await self._engines.run_each(self._follow)

    async def _follow(self, engine: Engine) -> None:
        woken = self._woken.setdefault(engine.site, asyncio.Event())
        if engine not in self._known:  # of a site that was added
            woken.set()
        while True:
            changes = self._clock.now() < self._soon_until
            await wait_at_most(_SOON_S if changes else self._settings.sample_every_s, woken, self._clock)
            woken.clear()
            await self.refresh_site(engine)
            self.iterations.end()

    async def refresh(self) -> None:
        """Process a report of each site. Does not wait longer than `REPORT_TIMEOUT_S` for any of them."""
        await asyncio.gather(*(self.refresh_site(engine) for engine in self._engines.values()))

    async def refresh_site(self, engine: Engine) -> None:
        """Process one report; changes that cannot be written now are written with the next one."""
        self._known.add(engine)
        try:
            await self.tick(engine)
        except CommonageError as error:
            log.warning("site %s: what the nodes reported is not written yet: %s", engine.site, error)

    def changed(self, workload: Workload) -> None:
        if workload.attempt is not None and workload.attempt.state is State.LOST:
            self.suspect(workload.attempt.allocation.node_key)

    def suspect(self, key: NodeKey) -> None:
        """A workload was lost on the node: schedule nothing onto it until its next report, requested at once."""
        node = self._live_state.nodes.get(key)
        if node is not None and node.state is NodeState.READY:
            self._suspects.add(key)
            self._live_state.put_nodes([replace(node, state=NodeState.FAULTY, reasons=(WorkloadLostThere(),))])
            self._woken.setdefault(key.site, asyncio.Event()).set()

    async def tick(self, engine: Engine) -> None:
        """Process a report of the nodes of a site, and judge nodes whose site is not known any more."""
        site, live_state = engine.site, self._live_state
        self._suspects = {key for key in self._suspects if key.site != site}
        reports = await self._reports_of(engine)
        async with self._writing:
            now = self._clock.now()
            self._gone = {key: at for key, at in self._gone.items() if now - at < GONE_FOR_S}
            for key in (*self._gone, *self._suspects):  # these reports are older than the known state
                reports.pop(key, None)
            nodes = [self._reported(engine, report, now) for report in reports.values()]
            mine = (node for node in live_state.nodes.values() if node.site == site or node.site not in self._engines)
            silent = [node for node in mine if node.key not in reports and node.key not in self._suspects]
            await self._keep([*nodes, *(self._unreported(node, now) for node in silent)], now)

    async def _reports_of(self, engine: Engine) -> dict[NodeKey, NodeReport]:
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_S):
                found = await engine.nodes()
                for status in await engine.environments():
                    self._environments.note_status(engine.site, status)
        except (CommonageError, TimeoutError) as error:
            log.warning("site %s does not report: %s", engine.site, str(error) or f"silent for {REPORT_TIMEOUT_S:g} s")
            return {}
        reports = {NodeKey(engine.site, report.name): report for report in found if report.is_possible}
        impossible = sorted(report.name for report in found if not report.is_possible)
        if impossible != self._impossible.get(engine.site, []):
            log.warning("site %s: nodes with impossible sizes: %s", engine.site, ", ".join(impossible[:20]) or "none")
        self._impossible[engine.site] = impossible
        # A node that is reported as gone is ignored if it is unknown or was removed.
        known = self._live_state.nodes
        return self._within_limit(
            engine.site, {key: report for key, report in reports.items() if not report.gone or key in known}
        )

    def _within_limit(self, site: str, reports: dict[NodeKey, NodeReport]) -> dict[NodeKey, NodeReport]:
        """Without new nodes beyond the limit: one that renames its nodes would add as many with each report.

        Those that are lost, such as all that an autoscaler has removed, have a limit of their own.
        """
        known = self._live_state.nodes
        new = [key for key in reports if key not in known]
        if not new:
            return reports
        states = Counter(node.state is NodeState.LOST for key, node in known.items() if key.site == site)
        room = max(0, min(MAX_NODES - states[False], 2 * MAX_NODES - states.total()))
        if len(new) <= room:
            self._full.discard(site)
            return reports
        if site not in self._full:
            log.warning(
                "site %s: it has %s nodes, the limit: %s new ones are ignored. Remove those that are lost for good.",
                site,
                MAX_NODES,
                len(new) - room,
            )
            self._full.add(site)
        refused = set(new[room:])
        return {key: report for key, report in reports.items() if key not in refused}

    def _reported(self, engine: Engine, report: NodeReport, now: float) -> Node:
        reported = Node(report.name, engine.site, engine.capabilities().name, NodeState.READY, report, now)
        known = self._live_state.nodes.get(reported.key)
        if known is not None:
            observed_at = known.observed_at if report.gone else now
            reported = replace(reported, observed_at=observed_at, drained_by=known.drained_by, leave_by=known.leave_by)
        return with_state(reported)

    def _unreported(self, node: Node, now: float) -> Node:
        """The state of a node that no engine reported: unschedulable at once, lost after a while."""
        silent = now - node.observed_at
        if node.state is NodeState.LOST:
            return node
        if silent >= self._settings.node_lost_after_s:
            return replace(node, state=NodeState.LOST, reasons=(NotReporting(silent_s=silent),))
        state = NodeState.DRAINING if node.drain else NodeState.FAULTY
        return replace(node, state=state, reasons=node.reasons or (NotReporting(),))

    async def _keep(self, nodes: Sequence[Node], now: float) -> None:
        """Put nodes into the live state; write those with changes other than the time they were last seen."""
        changed: list[Node] = []
        events: list[Event] = []
        allocated = self._live_state.allocated()
        for node in nodes:
            before = self._live_state.nodes.get(node.key)
            if before is None or stored_fields(before) != stored_fields(node):
                changed.append(node)
            if before is None or before.state is not node.state:
                changed_to = NodeStateChanged(node=node.key.label, state=node.state.value, causes=node.reasons)
                events.append(Event(EventKind.NODE, now, changed_to))
                self._soon_until = now + _SOON_FOR_S if before is not None else 0.0
            events += alarms(before, node, allocated, self._live_state.get, now)
            events += events_awaiting_admin(before, node, allocated, self._live_state.get, now)
        if changed:
            await self._writer.write(nodes=changed, events=events)
        self._live_state.put_nodes(nodes)
        if changed:
            self._live_state.changed.set()

    async def drain(self, principal: Principal, key: NodeKey, drain: bool, leave_by: float | None = None) -> Node:
        """Stop scheduling onto a node (True) or start again (False). For admins. Raises NotFound, Forbidden.

        `drains` handles the workloads on the node; `leave_by` is stored for it.
        """
        access_of(principal, self._settings).need(Permission.DRAIN_NODES)
        async with self._writing:
            node = self._live_state.node(key)
            wished = drained(node, principal.name if drain else "", leave_by)
            await self._keep([wished], self._clock.now())
            return self._live_state.nodes[key]

    async def forget(self, node: Node, events: Sequence[Event]) -> None:
        """Remove a node, and write the events about it. No allocation may exist on it."""
        async with self._writing:
            await self._writer.write(events=events, departed=[node.key])
            self._gone[node.key] = self._clock.now()
            self._live_state.remove_node(node.key)

    async def resume(self, principal: Principal, key: NodeKey, gpu: str | None = None) -> Node:
        """Schedule onto a node again, and clear the remembered faults of its GPUs. For admins.

        With `gpu` (index or uuid), only clear the remembered faults of that GPU. Faults that persist are found again at
        once. Raises NotFound, Forbidden.
        """
        access_of(principal, self._settings).need(Permission.DRAIN_NODES)
        node = self._live_state.node(key)
        devices = node.report.devices if gpu is None else (device_of(node, gpu),)
        for uuid in dict.fromkeys(index.parent_uuid or index.uuid for index in devices):
            await self._devices.resume(DeviceKey(node.site, uuid))
        if gpu is None:
            await self.drain(principal, key, False)
        if node.site in self._engines:
            await self.refresh_site(self._engines[node.site])
        return self._live_state.nodes[key]
