"""The GPUs of the appliance's nodes: those of this machine, and those that the node agents of a Swarm report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from commonage.control.nodes.devices import FRESH_S
from commonage.control.usage.attribution import unknown_pids
from commonage.domain.errors import CommonageError
from commonage.domain.nodes import Allocation, NodeReport
from commonage.domain.statuses import StartRequest
from commonage.link.sites.messages.engine import DeviceWarning, DeviceWarnings, NodeDevices
from commonage.link.sites.sqlite_file import SqliteFile
from commonage.ports.agents import RemoteDevices
from commonage.ports.clock import Clock
from commonage.ports.devices import Devices
from commonage.ports.engine import Engine

_log = logging.getLogger(__name__)
_DRIVER_TIMEOUT_S = 1.0
_AT_ONCE = 200
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS warnings "
    "(number INTEGER PRIMARY KEY, node TEXT NOT NULL, attempt TEXT NOT NULL, text TEXT NOT NULL)",
)


class SiteDevices:
    """`here` are the GPUs of this machine, which is the only node then; `agents` are those of the nodes of a Swarm."""

    def __init__(self, here: Devices | None = None, agents: RemoteDevices | None = None) -> None:
        self._here, self._agents = here, agents
        self._measuring: asyncio.Task[tuple[NodeDevices, ...]] | None = None

    async def measure(
        self, engine: Engine, nodes: Collection[NodeReport], running: Sequence[Allocation], clock: Clock
    ) -> tuple[NodeDevices, ...]:
        """Without GPUs whose driver does not answer soon. `running`: allocations of programs that run; `at`: since."""
        task = self._measuring
        if task is None:
            task = self._measuring = asyncio.create_task(self._measure(engine, nodes, running, clock))
        done, _ = await asyncio.wait({task}, timeout=_DRIVER_TIMEOUT_S)
        if not done:
            return ()
        if self._measuring is task:
            self._measuring = None
        try:
            return task.result()
        except CommonageError as error:
            _log.warning("the GPUs are not measured: %s", error)
            return ()

    async def _measure(
        self, engine: Engine, nodes: Collection[NodeReport], running: Sequence[Allocation], clock: Clock
    ) -> tuple[NodeDevices, ...]:
        found = []
        if self._agents is not None:
            await self._agents.note_allocations(running)
            found += [
                NodeDevices(one.node, one.samples, one.owners)
                for one in self._agents.agent_reports()
                if one.connected and one.samples and abs(clock.now() - one.at) <= FRESH_S
            ]
        if self._here is not None:
            await asyncio.to_thread(self._here.note_allocations, running)
            began = clock.now()
            samples = await asyncio.to_thread(self._here.measure)
            pids = unknown_pids(samples)
            owners = await engine.owners(pids) if pids else ()
            # A process that began after the driver was asked is not the process that the driver saw.
            known = tuple(one for one in owners if one.started_at <= began)
            found += [NodeDevices(node.name, tuple(samples), known) for node in nodes if samples]
        return tuple(found)

    async def take_warnings(self, nodes: Collection[NodeReport]) -> Sequence[tuple[str, str, str]]:
        """As (node, attempt, text)."""
        found = [] if self._agents is None else list(self._agents.take_warnings())
        if self._here is not None:
            warnings = await asyncio.to_thread(self._here.take_warnings)
            found += [(node.name, attempt_id, text) for node in nodes for attempt_id, text in warnings]
        return found

    async def resume(self, uuid: str) -> None:
        if self._here is not None:
            await asyncio.to_thread(self._here.resume, uuid)
        if self._agents is not None:
            await self._agents.resume(uuid)

    def prepared(self, request: StartRequest) -> StartRequest:
        """With the variables for its shares that only the driver here knows, and the control plane's does not."""
        if self._here is None:
            return request
        variables = {**self._here.environment(request.allocation.shares), **dict(request.variables)}
        return replace(request, variables=tuple(variables.items()))


class KeptWarnings:
    """Warnings of devices about attempts: on disk until the control plane has them."""

    def __init__(self, file: SqliteFile, now: Callable[[], float]) -> None:
        self._file, self._now = file, now

    async def keep(self, found: Sequence[tuple[str, str, str]]) -> None:
        if not found:
            return
        [(last,)] = await self._file.read("SELECT coalesce(max(number), 0) FROM warnings")
        first = max(last + 1, int(self._now() * 1000))  # it rises also when the last ones were delivered and deleted
        statement = "INSERT INTO warnings (number, node, attempt, text) VALUES (?, ?, ?, ?)"
        await self._file.write(*((statement, (first + at, *one)) for at, one in enumerate(found)))

    async def deliver(self, store: Callable[[DeviceWarnings], Awaitable[object]]) -> None:
        """Send all in their order; each is deleted once `store` has returned. Raises what `store` raises."""
        query = f"SELECT number, node, attempt, text FROM warnings ORDER BY number LIMIT {_AT_ONCE}"  # noqa: S608 - a constant
        while rows := await self._file.read(query):
            await store(DeviceWarnings(tuple(DeviceWarning(*row) for row in rows)))
            await self._file.write(("DELETE FROM warnings WHERE number <= ?", (rows[-1][0],)))
