"""Background tasks of an engine, a small thread pool for blocking work, and work shared by several waiters.

Standard library only, because agents use it too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from commonage.domain.errors import EngineFailure, start_failure
from commonage.domain.iterations import Iterations
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import RetryingStart
from commonage.ports.agents import OnProgress

_T = TypeVar("_T")


class InThread(Protocol):
    """Runs short blocking work in a thread."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]: ...


_log = logging.getLogger(__name__)
_THREADS = 4
ITERATION_S = 600.0
"""A turn of an engine's loop that takes longer is stuck. Daemons and shared disks may take minutes."""
RETRY_S = 2.0
"""Seconds before a failed loop starts again, and what the disk refused is tried again."""
_Loop = Callable[[Iterations], Coroutine[None, None, None]]


class Tasks:
    """Tasks that end with the engine; their exceptions are logged. `name` is the engine's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"{name}-engine")
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[Iterations] = []

    @property
    def loops(self) -> Sequence[Iterations]:
        return tuple(self._loops)

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def until_disk_works(self, work: Callable[[], _T]) -> _T:
        """Run `work` in a thread, retrying until the disk accepts it; return its result."""
        while True:
            try:
                return await self.in_thread(work)
            except OSError as error:
                _log.warning("will try again in %.0f s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run it as a task of the engine, independent of the caller."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def keep(self, name: str, loop: _Loop) -> None:
        """Run a loop until the engine closes. The loop reports when its turns begin and end.

        An exception is logged and counted, and the loop starts again.
        """
        iterations = Iterations(f"{self._name}: {name}", time.time, ITERATION_S)
        self._loops.append(iterations)
        self.spawn(self._kept(loop, iterations))

    async def _kept(self, loop: _Loop, iterations: Iterations) -> None:
        while True:
            iterations.begin()
            try:
                await loop(iterations)
            except Exception:  # any exception: without its loops an engine would notice nothing
                _log.exception("the loop `%s` broke, and starts again in %.0f s", iterations.name, RETRY_S)
                iterations.note_break()
            await asyncio.sleep(RETRY_S)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a task of the %s engine failed", self._name, exc_info=task.exception())

    async def cancel(self) -> None:
        """Cancel the tasks; the threads still work."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        self._threads.shutdown()


@dataclass(slots=True, eq=False)
class _Job(Generic[_T]):
    task: asyncio.Task[_T] = field(init=False)
    listeners: list[OnProgress] = field(default_factory=list)

    def tell(self, reason: Reason, progress: float | None) -> None:
        for on_progress in list(self.listeners):
            on_progress(reason, progress)


class SingleFlight(Generic[_T]):
    """Work in progress, by name."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job[_T]] = {}

    async def do(
        self, name: str, work: Callable[[OnProgress], Coroutine[None, None, _T]], on_progress: OnProgress
    ) -> _T:
        """Do the work, or wait for it if it is in progress already. A cancelled waiter leaves the work to the others.

        Returns what the work returns, raises what it raises.
        """
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = _Job()
            job.task = asyncio.create_task(work(job.tell))
            job.task.add_done_callback(partial(self._done, name))
        job.listeners.append(on_progress)
        try:
            return await asyncio.shield(job.task)
        finally:
            job.listeners.remove(on_progress)

    def _done(self, name: str, _: asyncio.Task[_T]) -> None:
        del self._jobs[name]

    async def close(self) -> None:
        tasks = [job.task for job in self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Endable(Protocol):
    def end(self) -> None: ...


_E = TypeVar("_E", bound=_Endable)


async def make_or_end(work: Coroutine[None, None, _E]) -> _E:
    """Return the result of `work`. If the caller is cancelled, `work` still completes; its result is then ended."""

    def end(making: asyncio.Task[_E]) -> None:
        if not making.cancelled() and making.exception() is None:
            making.result().end()

    making = asyncio.create_task(work)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(end)
        raise


async def retry_start(
    work: Callable[[], Awaitable[None]],
    pauses_s: Iterable[float],
    on_progress: OnProgress,
    not_for: type[EngineFailure] | tuple[type[EngineFailure], ...] = (),
) -> None:
    """Do the work, again after each pause. Raises permanent errors and `not_for` at once, others after the last try."""
    for pause_s in pauses_s:
        try:
            return await work()
        except EngineFailure as error:
            if isinstance(error, not_for) or not error.is_retryable:
                raise
            _log.info("cannot start, will try again: %s", error)
            on_progress(RetryingStart(pause_s=pause_s, cause=start_failure(error)), None)
        await asyncio.sleep(pause_s)
    await work()
