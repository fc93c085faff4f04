"""Passes warnings of the device port about attempts (for example: their MPS daemon was killed) on to their owners.

Called with every round of the sampling loop. It stops nothing: an attempt runs as long as its command does.
"""

from __future__ import annotations

import logging

from commonage.control.nodes.all_devices import AllDevices
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.reasons.notes import GpuWarning
from commonage.domain.workloads import Event, EventKind, workload_of
from commonage.ports.clock import Clock

log = logging.getLogger(__name__)


class DeviceWarnings:
    """Writes an event for each warning; warnings that could not be written are kept for the next round."""

    def __init__(self, devices: AllDevices, live_state: LiveState, writer: Writer, clock: Clock) -> None:
        self._devices, self._live_state, self._writer, self._clock = devices, live_state, writer, clock
        self._left: list[tuple[str, str]] = []

    async def collect(self) -> None:
        """Write the warnings since the last call. Raises Unavailable while the store does not answer."""
        self._left += await self._devices.take_warnings()
        events = [event for attempt_id, words in self._left if (event := self._event(attempt_id, words))]
        if events:
            await self._writer.write(events=events)
        self._left = []

    def _event(self, attempt_id: str, words: str) -> Event | None:
        workload = self._live_state.get(workload_of(attempt_id))
        if workload is None or workload.attempt is None or workload.attempt.id != attempt_id:
            return None
        log.warning("attempt %s: %s", attempt_id, words)
        spec = workload.spec
        return Event(
            EventKind.WARNING,
            self._clock.now(),
            GpuWarning(detail=words),
            workload.id,
            attempt_id,
            spec.owner,
            spec.tenant,
            workload.state,
        )
