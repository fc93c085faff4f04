"""The GPUs of a site elsewhere, for the sampling loop: as the site measured them with the last request."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from commonage.domain.nodes import Allocation, NodeReport
from commonage.engines.remote.records import SiteRecords, Warned
from commonage.link.exchange import MAX_TEXT, ConnectionLost
from commonage.link.messages import RESUME, Device, Nothing
from commonage.link.sites.messages.engine import DeviceWarnings, NodeDevices
from commonage.link.sites.transport.connection import SiteConnection
from commonage.ports.agents import AgentReport, OnProgress, RemoteDevices
from commonage.ports.clock import Clock

_MAX_WARNINGS = 1000


class SiteDevices(RemoteDevices):
    """`connection` returns the current connection, None without one; `nodes` the last reports of the site's nodes."""

    def __init__(
        self,
        records: SiteRecords,
        connection: Callable[[], SiteConnection | None],
        nodes: Callable[[], Collection[NodeReport]],
        clock: Clock,
    ) -> None:
        self._records, self._connection, self._nodes, self._clock = records, connection, nodes, clock
        self._measured: Sequence[NodeDevices] = ()
        self._at = self._monotonic_at = 0.0
        self._warnings: list[tuple[str, str, str]] = []
        self._warned = Warned()

    def restore(self, warned: Warned) -> None:
        self._warned = warned

    def note_measured(self, devices: Sequence[NodeDevices]) -> None:
        """The first entry of each reported node counts."""
        nodes = {one.name for one in self._nodes()}
        self._measured = tuple({one.node: one for one in reversed(devices) if one.node in nodes}.values())
        self._at, self._monotonic_at = self._clock.now(), time.monotonic()

    async def on_warnings(self, sent: DeviceWarnings, _: OnProgress) -> Nothing:
        new = [one for one in sent.warnings if one.number > self._warned.number]
        if new:
            self._warned = Warned(max(one.number for one in new))
            found = [(one.node, one.attempt_id, one.text[:MAX_TEXT]) for one in new]
            self._warnings = [*self._warnings, *found][-_MAX_WARNINGS:]
            await self._records.keep_warned(self._warned)
        return Nothing()

    # --- the port -------------------------------------------------------------------------------------------------

    def agent_reports(self) -> Sequence[AgentReport]:
        reports = {one.name: one for one in self._nodes()}
        is_connected = self._connection() is not None
        return [
            AgentReport(
                node=one.node,
                report=reports[one.node],
                at=self._at,
                monotonic_at=self._monotonic_at,
                connected=is_connected,
                samples=one.samples,
                owners=one.owners,
            )
            for one in self._measured
            if one.node in reports
        ]

    async def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        """Nothing: the site knows the allocations of its attempts, also while the link is down."""

    def take_warnings(self) -> Sequence[tuple[str, str, str]]:
        taken, self._warnings = self._warnings, []
        return taken

    async def resume(self, uuid: str) -> None:
        """Raises EngineFailure, also without a link."""
        connection = self._connection()
        if connection is None:
            raise ConnectionLost("the site is not connected")
        await connection.request(RESUME, Device(uuid))
