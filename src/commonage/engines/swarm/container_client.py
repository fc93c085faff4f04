"""Implements `AttemptBackend` for services of a Swarm. `launcher.py` creates them.

A stop is requested through the control folder, which the entry in the container polls (`entry.sh`): a Swarm cannot send
a signal to a task. Only a command that does not react is ended through Swarm and the node agent.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import RemovedFromOutside, Starting, WaitingForSwarm
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.containers.attempt_backend import Absent, ContainerState, Ended, Run, Running, Signal, Waiting
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.containers.status_reader import is_interposed
from commonage.engines.rundir.runs import Exit
from commonage.engines.rundir.tasks import InThread
from commonage.engines.settings import SwarmSettings
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.launcher import Launcher
from commonage.engines.swarm.nodes.fencing import Fencing
from commonage.engines.swarm.nodes.node_tracker import NodeTracker
from commonage.engines.swarm.statuses import (
    EndContext,
    Tasks,
    changed_at,
    end_of,
    ended_by_itself,
    has_ended,
    is_orphaned,
    is_refused_room,
    runs,
    waiting_reason,
)
from commonage.ports.agents import OnProgress

_KILLED = 137
_SURELY_S = 2.0
_SWEEP_S = 20.0
_SWEEP_AT_ONCE = 8


@dataclass(slots=True)
class Service:
    """The service of an attempt. `since` is the loop's time since which it is known, `force_at` when SIGKILL began.

    `run` is the attempt, once only we will remove the service.
    """

    id: str
    since: float
    asked: set[Signal] = field(default_factory=set)
    force_at: float | None = None
    run: Run | None = None


@dataclass(eq=False)
class SwarmContainerClient:
    client: Client
    fencing: Fencing
    tasks: Tasks
    launcher: Launcher
    settings: SwarmSettings
    in_thread: InThread
    _services: dict[str, Service] = field(default_factory=dict)
    _ended: dict[str, Service] = field(default_factory=dict)
    _sweeping: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_SWEEP_AT_ONCE))

    @property
    def _nodes(self) -> NodeTracker:
        return self.fencing.nodes

    def node_of(self, request: StartRequest) -> str:
        return request.allocation.node

    def port_for(self, request: StartRequest, taken: Collection[int]) -> int | None:
        """A port of the settings' range that is not known to be taken; the search begins at a hash of the attempt."""
        if not request.wants_port:
            return None
        first, last = self.settings.ports
        count = last - first + 1
        begin = zlib.crc32(request.attempt_id.encode())
        for offset in range(count):
            if (port := first + (begin + offset) % count) not in taken:
                return port
        raise EngineFailure(f"all ports of {request.allocation.node} from {first} to {last} are taken", retryable=True)

    def note(self, attempt_id: str, service: str) -> None:
        if attempt_id in self._ended:
            return
        self._services.setdefault(attempt_id, Service(service, asyncio.get_running_loop().time()))

    # --- launching ----------------------------------------------------------------------------------------------

    async def launch(self, run: Run, on_progress: OnProgress) -> None:
        if run.id in self._services:
            return
        self.note(run.id, await self.launcher.launch(run, on_progress))
        self.tasks.refresh_soon()

    # --- status ---------------------------------------------------------------------------------------------------

    async def inspect(self, run: Run) -> ContainerState:
        """Return the state as of the last query to Swarm."""
        task = self.tasks.of(run.id)
        if task is None:
            return await self._without_task(run)
        self.note(run.id, str(task["ServiceID"]))  # the response to its creation may have been lost
        node, node_id = run.request.allocation.node, str(task.get("NodeID", ""))
        ran_at = await self.in_thread(run.control_folder.ran_at)
        forgotten = is_orphaned(task) and self._nodes.is_down(node_id)
        if has_ended(task) and not forgotten and not self.fencing.was_fenced(run.id, node):
            return Ended(ran_at, partial(self._end, run, task))
        if why := self.fencing.why_lost(run.id, node_id, node):
            return Ended(ran_at, partial(self.fencing.give_up, run, why))
        if runs(task) or ran_at is not None:  # the control folder shows it before Swarm does
            return self._running(run, task, ran_at)
        return await self._waiting(run, task)

    async def _without_task(self, run: Run) -> ContainerState:
        service = self._services.get(run.id)
        if service is not None:
            if not self.tasks.is_newer_than(service.since + _SURELY_S) or await self.client.has_service(service.id):
                return Waiting(WaitingForSwarm())
            if service.force_at is not None:
                return Ended(None, partial(self._forced, run))
            self._services.pop(run.id, None)
        return Absent(RemovedFromOutside())

    async def _forced(self, run: Run) -> Exit:
        end = await self.in_thread(run.control_folder.end)
        return (
            Exit(_KILLED, None, time.time()) if end is None else Exit(end.code, None, end.at, end.oom and end.code != 0)
        )

    def _running(self, run: Run, task: Json, ran_at: float | None) -> ContainerState:
        if not run.request.wants_port:
            return Running(ran_at or changed_at(task))
        swarm_node = self._nodes.by_id.get(str(task.get("NodeID", "")))
        if swarm_node is None:
            return Waiting(Starting(node=run.request.allocation.node))
        return Running(ran_at or changed_at(task), f"http://{swarm_node.address}:{run.port}")

    async def _waiting(self, run: Run, task: Json) -> ContainerState:
        swarm_node = self._nodes.by_id.get(str(task.get("NodeID", ""))) or self._nodes.swarm_nodes.get(
            run.request.allocation.node
        )
        declares = swarm_node is not None and swarm_node.vram_mib is not None
        reason = waiting_reason(task, run.request, declares_vram=declares)
        service = self._services.get(run.id)
        if is_refused_room(task) and service is not None:
            down = swarm_node is None or swarm_node.is_down
            waited = asyncio.get_running_loop().time() - service.since
            if (down or waited > self.settings.room_timeout_s) and await self.in_thread(
                run.control_folder.forbid_start
            ):
                return Ended(None, partial(_unplaced, reason))
        return Waiting(reason)

    # --- ends ---------------------------------------------------------------------------------------------------

    async def _end(self, run: Run, task: Json) -> Exit:
        control_folder, service = run.control_folder, self._services.get(run.id)
        decision, again, end, could_not = await self.in_thread(
            lambda: (
                control_folder.decision(),
                control_folder.was_restarted(),
                control_folder.end(),
                control_folder.end_unreadable(),
            )
        )
        stop_requested = service is not None and bool(service.asked)
        node, interposed = run.request.allocation.node, is_interposed(run.request)
        context = EndContext(node, decision, again, end, could_not, stop_requested, time.time(), interposed)
        return end_of(task, context)

    # --- stopping -----------------------------------------------------------------------------------------------

    async def signal(self, run: Run, signal: Signal) -> None:
        """Signal through its control folder, and by force if it does not react."""
        loop = asyncio.get_running_loop()
        service = self._services.get(run.id)
        if service is None:
            return
        service.asked.add(signal)
        try:
            await self.in_thread(partial(run.control_folder.stop, "term" if signal == "SIGTERM" else "kill"))
        except OSError as error:
            if signal == "SIGTERM":
                raise EngineFailure(f"its control folder cannot be written: {error}", retryable=True) from error
            service.force_at = service.force_at or loop.time()
        self.tasks.refresh_soon()
        if signal == "SIGKILL":
            await self._force(run, service, loop.time())

    async def _force(self, run: Run, service: Service, now: float) -> None:
        if service.force_at is None:
            service.force_at = now + _SURELY_S
        if now < service.force_at:
            return
        node = run.request.allocation.node
        if (agents := self._nodes.agent_of(node)) is not None:
            with suppress(EngineFailure):
                await agents.fence(self._nodes.id_of(node), [run.id])
        await self.client.remove_service(service.id)

    async def remove(self, run: Run) -> None:
        """Remove its service, and with it the task and the container, also on a node that returns.

        The service of a job whose container ended is removed when nothing is about to start (`sweep`): removal takes as
        long as a start.
        """
        service, task = self._services.get(run.id), self.tasks.of(run.id)
        if service is None:  # it may have been stopped, or have failed, during creation
            await self.launcher.remove(run.id)
        elif run.request.kind is Kind.JOB and task is not None and ended_by_itself(task):
            self._ended[run.id] = replace(service, run=run)
            self._ended[run.id].since = asyncio.get_running_loop().time()
        else:
            await self.client.remove_service(service.id)
        self._services.pop(run.id, None)
        self.tasks.forget(run.id)
        if run.id not in self._ended:
            await self.launcher.remove_secrets(run)

    def is_swept(self, attempt_id: str) -> bool:
        """True if its service is waiting for removal by us."""
        return attempt_id in self._ended

    async def sweep(self, *, at_once: bool) -> None:
        """Remove the services of ended jobs: all, or those that have waited long. Raises EngineFailure."""
        now = asyncio.get_running_loop().time()
        due = {one: service for one, service in self._ended.items() if at_once or now - service.since > _SWEEP_S}

        async def remove(attempt_id: str, service: Service) -> None:
            async with self._sweeping:
                await self.client.remove_service(service.id)
                if service.run is not None:
                    await self.launcher.remove_secrets(service.run)
            self._ended.pop(attempt_id, None)

        await asyncio.gather(*(remove(attempt_id, service) for attempt_id, service in due.items()))

    async def release(self, run: Run) -> None:
        """Release mounts and shares through the node's agent. A disconnected agent releases them when it reconnects."""
        node = run.request.allocation.node
        if (agents := self._nodes.agent_of(node)) is not None:
            with suppress(EngineFailure):
                await agents.unmount(self._nodes.id_of(node), run.id)
            if run.request.allocation.shares:
                with suppress(EngineFailure):
                    await agents.release(self._nodes.id_of(node), run.id)


async def _unplaced(why: Reason) -> Exit:
    """End of an attempt that never began: the scheduler may find another place."""
    return Exit(None, why, time.time())
