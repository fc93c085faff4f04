"""The GPUs of all nodes: those of this node from its driver, those of other nodes from their agents.

Used by the sampling loop, and when an admin resumes a GPU. Warnings of the device port about attempts (for example:
their MPS daemon was killed) are passed on to the owners. They stop nothing: an attempt runs as long as its command.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from commonage.control.state.feed import event_of
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.usage.attribution import MeasurementRound, attribute, merge_rounds
from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import LOCAL_SITE, Allocation, DeviceKey, NodeKey
from commonage.domain.reasons.notes import GpuWarning
from commonage.domain.statuses import ProcessOwner
from commonage.domain.workloads import Event, EventKind, workload_of
from commonage.ports.agents import AgentReport, RemoteDevices
from commonage.ports.clock import Clock
from commonage.ports.devices import Devices, DeviceSample

log = logging.getLogger(__name__)

FRESH_S = 15.0
"""An agent's report that is older than this no longer counts as a measurement."""


class DeviceWarning(NamedTuple):
    """`node` is the one that says so; None for this process, which may speak about all attempts."""

    node: NodeKey | None
    attempt_id: str
    text: str


class AllDevices:
    """`here` are the GPUs of this node, at the local site; `elsewhere` those of nodes with agents, by site."""

    def __init__(self, here: Devices, elsewhere: Mapping[str, RemoteDevices]) -> None:
        self._here, self._elsewhere = here, elsewhere
        self._node_of: Mapping[str, NodeKey] = {}  # by attempt

    async def note_allocations(self, allocations: Sequence[Allocation], running: Sequence[Allocation]) -> None:
        """Pass on all allocations, and those whose program runs (`at`: its start), which simulated GPUs show in use.

        The allocations also define which agent may report about an attempt.
        """
        self._node_of = {allocation.attempt_id: allocation.node_key for allocation in allocations}
        by_site: dict[str, list[Allocation]] = defaultdict(list)
        for allocation in running:
            by_site[allocation.site].append(allocation)
        await asyncio.to_thread(self._here.note_allocations, by_site[LOCAL_SITE])
        for site, devices in list(self._elsewhere.items()):
            await devices.note_allocations(by_site[site])

    async def measure(self) -> Sequence[DeviceSample]:
        """Measure this node's GPUs. The owners of their processes still have to be looked up."""
        return await asyncio.to_thread(self._here.measure)

    def add_elsewhere(self, round_: MeasurementRound, now: float) -> MeasurementRound:
        """Add the samples of all other nodes to the round. Their agents have looked up the owners of the processes."""
        reports = [
            (site, one)
            for site, devices in list(self._elsewhere.items())
            for one in devices.agent_reports()
            if one.connected and abs(now - one.at) <= FRESH_S
        ]
        # Agents leave out processes that began too late to be the measured ones, by their own clocks.
        return merge_rounds(round_, (attribute(site, *self._own(site, one), math.inf) for site, one in reports))

    def _own(self, site: str, agent_report: AgentReport) -> tuple[list[DeviceSample], list[ProcessOwner]]:
        """Keep the samples of an agent's own node, without those of attempts on other nodes."""
        devices, node = {device.uuid for device in agent_report.report.devices}, NodeKey(site, agent_report.node)
        samples = [
            replace(
                one,
                processes=tuple(each for each in one.processes if self._may_say(node, each.attempt_id)),
            )
            for one in agent_report.samples
            if one.uuid in devices
        ]
        return samples, [one for one in agent_report.owners if self._may_say(node, one.attempt_id)]

    def _may_say(self, node: NodeKey, attempt_id: str | None) -> bool:
        return attempt_id is None or self._node_of.get(attempt_id) == node

    async def take_warnings(self) -> Sequence[DeviceWarning]:
        found = [DeviceWarning(None, *one) for one in await asyncio.to_thread(self._here.take_warnings)]
        for site, devices in list(self._elsewhere.items()):
            found += [DeviceWarning(NodeKey(site, node), *said) for node, *said in devices.take_warnings()]
        return found

    async def resume(self, key: DeviceKey) -> None:
        if key.site == LOCAL_SITE:
            await asyncio.to_thread(self._here.resume, key.uuid)
        if key.site in self._elsewhere:
            await self._elsewhere[key.site].resume(key.uuid)


class DeviceWarnings:
    """Writes an event for each warning; warnings that could not be written are kept for the next round."""

    def __init__(self, devices: AllDevices, live_state: LiveState, writer: Writer, clock: Clock) -> None:
        self._devices, self._live_state, self._writer, self._clock = devices, live_state, writer, clock
        self._left: list[DeviceWarning] = []

    async def collect(self) -> None:
        """Write the warnings since the last call. Raises Unavailable while the store does not answer."""
        self._left += await self._devices.take_warnings()
        events = [event for one in self._left if (event := self._event(one))]
        if events:
            await self._writer.write(events=events)
        self._left = []

    def _event(self, said: DeviceWarning) -> Event | None:
        try:
            workload = self._live_state.get(workload_of(said.attempt_id))
        except InvalidInput:  # an agent may say anything
            return None
        if workload is None or workload.attempt is None or workload.attempt.id != said.attempt_id:
            return None
        if said.node not in (None, workload.attempt.allocation.node_key):
            return None
        log.warning("attempt %s: %s", said.attempt_id, said.text)
        return event_of(workload, EventKind.WARNING, self._clock.now(), GpuWarning(detail=said.text))
