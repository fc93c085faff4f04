"""The reconcile loop: starts and stops attempts as desired, and passes observed statuses to the writer.

Effects of the writer are carried out at once. Every few seconds a sweep compares allocations with
statuses and repairs what a crash or a lost message left undone: an allocation without a running attempt is started, a
running attempt without an allocation is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from commonage import tracing
from commonage.control.engines import Engines
from commonage.control.signals import Signal, cancel_all
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError, EngineFailure, start_failure
from commonage.domain.iterations import Iterations
from commonage.domain.lifecycle import AttemptLost, Effect, StartRefused, StartRun, StatusReported, StopRun
from commonage.domain.reasons.attempts import Disappeared, NeverStarted
from commonage.domain.statuses import LastUse, Phase, StartRequest, Status
from commonage.domain.workloads import State, Workload
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine

log = logging.getLogger(__name__)
START_TRIES = 5
RUN_MISSES = 2  # consecutive sweeps
PROGRESS_EVERY_S = 2.0  # shortest interval between writes of progress; in between only the live state has it


class Reconcile:
    """One instance for all sites. `request_of` builds the start request of a workload that has an allocation.

    `last_uses` is sent the total use of an attempt, before its end is noted.
    """

    def __init__(
        self,
        engines: Engines,
        live_state: LiveState,
        writer: Writer,
        clock: Clock,
        request_of: Callable[[Workload], Awaitable[StartRequest]],
        sweep_every_s: float,
    ) -> None:
        self._engines, self._live_state, self._writer, self._clock = engines, live_state, writer, clock
        self._request_of = request_of
        self.last_uses: Signal[[str, LastUse]] = Signal()
        self._busy: dict[str, asyncio.Task[None]] = {}  # attempt id -> the last task for it
        self._missed: dict[str, int] = {}
        self._progressed_at: dict[str, float] = {}
        self._sweep_every_s = sweep_every_s
        self.iterations = Iterations("reconcile", clock.now)
        self.watches = Watches(engines, self.report, clock)

    def effect(self, workload_id: str, effect: Effect) -> None:
        if isinstance(effect, StartRun):
            self._do(effect.attempt_id, lambda: self._start(workload_id, effect.attempt_id))
        elif isinstance(effect, StopRun):
            self._do(effect.attempt_id, lambda: self._stop(workload_id, effect.attempt_id, effect.grace_s))

    def _do(self, attempt_id: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task for an attempt after the task that already runs for it."""
        before = self._busy.get(attempt_id)
        task = asyncio.create_task(_after(before, work), name=f"attempt {attempt_id}")
        self._busy[attempt_id] = task
        task.add_done_callback(lambda done: self._done(attempt_id, done))

    def _done(self, attempt_id: str, task: asyncio.Task[None]) -> None:
        if self._busy.get(attempt_id) is task:
            del self._busy[attempt_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("attempt %s: %s", attempt_id, error, exc_info=error)

    def _engine_of(self, workload: Workload) -> Engine | None:
        attempt = workload.attempt
        return self._engines.get(attempt.allocation.site) if attempt else None

    async def _start(self, workload_id: str, attempt_id: str) -> None:
        request: StartRequest | None = None
        for tries in range(1, START_TRIES + 1):
            workload = self._to_start(workload_id, attempt_id)
            if workload is None:
                return
            try:
                if request is None:
                    request = await self._request_of(workload)  # waits for files
                    workload = self._to_start(workload_id, attempt_id)
                    if workload is None:
                        return
                engine = self._engine_of(workload)
                if engine is None:
                    raise EngineFailure(f"no engine answers for its node {attempt_id}", retryable=True)
                parent, allocation = workload.spec.traceparent, request.allocation
                with tracing.span("engine.start", parent, attempt=attempt_id, site=engine.site, node=allocation.node):
                    await engine.start(replace(request, traceparent=tracing.current()) if parent else request)
                return
            except CommonageError as error:
                if not error.is_retryable or tries == START_TRIES:
                    log.warning("attempt %s does not start: %s", attempt_id, error)
                    await self._writer.apply(workload_id, StartRefused(attempt_id, start_failure(error)))
                    return
                log.warning("attempt %s does not start, trying again: %s", attempt_id, error)
                await self._clock.sleep(0.5 * 2**tries)

    def _to_start(self, workload_id: str, attempt_id: str) -> Workload | None:
        """The workload if the attempt is still to be started."""
        workload = self._live_state.get(workload_id)
        if workload is None or workload.stop is not None or not _is_current_attempt(workload, attempt_id):
            return None
        return workload

    async def _stop(self, workload_id: str, attempt_id: str, grace_s: float) -> None:
        workload = self._live_state.get(workload_id)
        engines = [self._engine_of(workload)] if workload else list(self._engines.values())
        # All at once: a site that does not answer must not delay another.
        await asyncio.gather(*(_stop_at(engine, attempt_id, grace_s) for engine in engines if engine is not None))

    def report(self, engine: Engine, status: Status) -> None:
        """Pass it to the writer. A site may only speak about its own attempts that have an allocation now."""
        workload = self._live_state.of_attempt(status.attempt_id, engine.site)
        if workload is None:
            self._unallocated_attempt(engine, status)
            return
        self._missed.pop(status.attempt_id, None)
        if self._is_old_news(status):
            return
        if status.used is not None:
            self.last_uses.send(status.attempt_id, status.used)
        written = self._writer.note(workload.id, StatusReported(status))
        if status.phase is Phase.ENDED:
            written.add_done_callback(lambda done: self._forget(engine, status.attempt_id, done))

    def _is_old_news(self, status: Status) -> bool:
        """True for a status that only has more progress than the one written a moment ago."""
        attempt_id, now = status.attempt_id, self._clock.now()
        if status.phase is not Phase.STARTING or status.progress is None:
            self._live_state.progress.pop(attempt_id, None)
            self._progressed_at.pop(attempt_id, None)
            return False
        self._live_state.progress[attempt_id] = status.progress
        if now - self._progressed_at.get(attempt_id, 0.0) < PROGRESS_EVERY_S:
            return True
        self._progressed_at[attempt_id] = now
        return False

    def _forget(self, engine: Engine, attempt_id: str, done: asyncio.Future[Workload | None]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._do(attempt_id, lambda: engine.forget(attempt_id))

    async def run(self) -> None:
        with self.iterations.rest():
            await self._engines.run_each(self._sweep_site)

    async def _sweep_site(self, engine: Engine) -> None:
        while True:
            try:
                await self.sweep(engine)
            except CommonageError as error:
                log.warning("site %s: sweep failed: %s", engine.site, error)
            self.iterations.end()
            await self._clock.sleep(self._sweep_every_s)

    async def sweep(self, engine: Engine) -> None:
        if self._writer.stuck:
            return
        before = self._allocated(engine)
        seen = {status.attempt_id: status for status in await engine.statuses()}
        allocated = self._allocated(engine)  # again: allocations may have changed while the engine answered
        for attempt_id, status in seen.items():
            if attempt_id in allocated:
                self.report(engine, status)
            else:
                self._unallocated_attempt(engine, status)
        for attempt_id, workload in allocated.items():
            if attempt_id not in before or attempt_id in self._busy:
                continue
            if attempt_id not in seen:
                self._unseen(engine, attempt_id, workload)
            elif workload.stop is not None and seen[attempt_id].phase is not Phase.ENDED:
                self._do(attempt_id, partial(self._stop, workload.id, attempt_id, workload.spec.grace_s))

    def _allocated(self, engine: Engine) -> dict[str, Workload]:
        return {
            workload.attempt.id: workload
            for workload in self._live_state.in_state(State.STARTING, State.RUNNING)
            if workload.attempt is not None and self._engine_of(workload) is engine
        }

    def _unallocated_attempt(self, engine: Engine, status: Status) -> None:
        workload = self._live_state.of_attempt(status.attempt_id, engine.site)
        if status.attempt_id in self._busy or (workload is not None and workload.state.holds_allocation):
            return  # it was allocated after the allocations were read
        if status.phase is Phase.ENDED:
            self._do(status.attempt_id, lambda: engine.forget(status.attempt_id))
        else:
            log.warning("attempt %s runs on %s without an allocation: ending it", status.attempt_id, engine.site)
            self._do(status.attempt_id, lambda: engine.stop(status.attempt_id, 0))

    def _unseen(self, engine: Engine, attempt_id: str, workload: Workload) -> None:
        """An allocation without a status: start it if it may never have started, give it up if it stays missing.

        The engine then forgets it, too, because it may keep data of an attempt that it does not report.
        """
        missed = self._missed[attempt_id] = self._missed.get(attempt_id, 0) + 1
        begins = workload.state is State.STARTING
        if workload.stop is None and missed < (START_TRIES if begins else RUN_MISSES):
            if begins:
                self._do(attempt_id, lambda: self._start(workload.id, attempt_id))
            return
        written = self._writer.note(workload.id, AttemptLost(attempt_id, NeverStarted() if begins else Disappeared()))
        written.add_done_callback(lambda done: self._forget(engine, attempt_id, done))

    def forget_misses(self, workload: Workload) -> None:
        if workload.attempt is not None and not workload.state.holds_allocation:
            self._missed.pop(workload.attempt.id, None)
            self._progressed_at.pop(workload.attempt.id, None)
            self._live_state.progress.pop(workload.attempt.id, None)

    async def close(self) -> None:
        """Cancel running tasks; after a restart the sweep repeats those that are still needed."""
        await cancel_all(list(self._busy.values()))


class Watches:
    """Passes on the statuses that engines report as they change. An iteration ends with each status."""

    def __init__(self, engines: Engines, tell: Callable[[Engine, Status], None], clock: Clock) -> None:
        self._engines, self.report, self._clock = engines, tell, clock
        self.iterations = Iterations("watch", clock.now)

    async def run(self) -> None:
        with self.iterations.rest():
            await self._engines.run_each(self._watch)

    async def _watch(self, engine: Engine) -> None:
        while True:
            try:
                async for status in engine.watch():
                    self.report(engine, status)
                    self.iterations.end()
            except CommonageError as error:
                log.warning("site %s: watching broke off: %s", engine.site, error)
            await self._clock.sleep(1.0)


def _is_current_attempt(workload: Workload | None, attempt_id: str) -> bool:
    return (
        workload is not None
        and workload.attempt is not None
        and workload.attempt.id == attempt_id
        and workload.state.holds_allocation
    )


async def _stop_at(engine: Engine, attempt_id: str, grace_s: float) -> None:
    try:
        await engine.stop(attempt_id, grace_s)
    except CommonageError as error:
        log.warning("attempt %s does not stop, the next sweep tries again: %s", attempt_id, error)


async def _after(before: asyncio.Task[None] | None, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if before is not None:
        await asyncio.wait([before])
    await work()
