"""Watches control folders, tasks and nodes for changes, forever. Used by the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from commonage.domain.errors import EngineFailure
from commonage.domain.iterations import Iterations
from commonage.domain.statuses import Phase
from commonage.engines.containers.attempt_backend import Run, Table
from commonage.engines.rundir.tasks import InThread
from commonage.engines.swarm.container_client import SwarmContainerClient
from commonage.engines.swarm.nodes.node_tracker import NodeTracker
from commonage.engines.swarm.statuses import Tasks

_SOON_S, _REST_S = 0.1, 0.25
# Control folders show starts and ends; Swarm shows tasks that cannot start, and tasks that are gone.
_TASKS_SOON_S, _TASKS_STARTING_S, _TASKS_REST_S = 0.25, 1.0, 2.0
# The more expensive a query is, the less often it runs; more often after a known change.
_COST_FACTOR, _HURRY_FACTOR = 4, 2
_HURRY_FOR_S = 10.0
_NODES_S = 1.0
_RETRY_S = 2.0
_AWAY_S = 1.0
_SWEEP_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Watcher:
    """The watcher. `settle` determines the state of one attempt; `back` is called when Swarm answers again."""

    table: Table
    tasks: Tasks
    nodes: NodeTracker
    in_thread: InThread
    _nodes_at: float = -inf
    _tasks_at: float = -inf
    _hurry_at: float = -inf
    _again_at: float = -inf
    _endings: dict[str, float] = field(default_factory=dict)  # when a running attempt's control folder showed an end

    async def sweep(self, container_client: SwarmContainerClient, iterations: Iterations) -> None:
        """Remove leftovers of jobs whenever nothing is about to start, until cancelled."""
        while True:
            with iterations.rest():
                await asyncio.sleep(_SWEEP_S)
            try:
                await container_client.sweep(at_once=not any(run.status.phase is Phase.STARTING for run in self.table))
            except EngineFailure as error:
                _log.warning("cannot remove services that ended, will try again: %s", error)

    async def keep(
        self, settle: Callable[[Run], None], back: Callable[[], Awaitable[None]], iterations: Iterations
    ) -> None:
        while True:
            try:
                if self.nodes.fault:
                    await back()
                    _log.warning("Docker Swarm answers again")
                    self.nodes.note_fault("")
                pause = await self._poll(settle)
            except EngineFailure as error:
                if not self.nodes.fault:
                    _log.error("%s", error)
                self.nodes.note_fault(str(error))
                pause = _AWAY_S
            with iterations.rest(), suppress(TimeoutError):
                await asyncio.wait_for(self.tasks.refresh_requested.wait(), pause)

    async def _poll(self, settle: Callable[[Run], None]) -> float:
        """Look once; return the seconds until the next time."""
        now = asyncio.get_running_loop().time
        live = self.table.live()
        began, ended = await self.in_thread(lambda: _changes_in_control_folders(live))
        moved = {run.id for run in began}
        self._endings = {one: self._endings.get(one, now()) for one in ended}
        # The contents of a control folder are not trusted forever.
        ending = any(now() - since < _HURRY_FOR_S for since in self._endings.values())
        if now() >= self._nodes_at:
            if await self.nodes.poll():
                moved |= {run.id for run in live}
            self._nodes_at = now() + _NODES_S
        if self.tasks.refresh_requested.is_set() or ending:
            self._tasks_at = min(self._tasks_at, self._hurry_at)
        self.tasks.refresh_requested.clear()
        if now() >= self._tasks_at:
            started = now()
            moved |= await self.tasks.ask()
            cost = now() - started
            self._hurry_at = now() + cost * _HURRY_FACTOR
            self._tasks_at = now() + max(_pause(live, ending), cost * _COST_FACTOR)
        if now() >= self._again_at:
            # An attempt that waits for an agent, or for room, is looked at again without a change of its own.
            moved |= {run.id for run in live if not run.is_running and not run.is_launching}
            self._again_at = now() + _RETRY_S
        for run in live:
            if run.id in moved:
                settle(run)
        return _SOON_S if any(not run.is_running for run in live) else _REST_S


def _pause(live: list[Run], ending: bool) -> float:
    """Seconds until Swarm's tasks are queried again."""
    if ending or any(run.ending is not None for run in live):
        return _TASKS_SOON_S
    return _TASKS_REST_S if all(run.is_running for run in live) else _TASKS_STARTING_S


def _changes_in_control_folders(live: list[Run]) -> tuple[list[Run], list[str]]:
    """Attempts that began to run, and ids of running ones about to end: faster and cheaper than asking Swarm."""
    began = [run for run in live if not run.is_running and run.control_folder.ran_at() is not None]
    return began, [run.id for run in live if run.is_running and run.control_folder.has_end()]
