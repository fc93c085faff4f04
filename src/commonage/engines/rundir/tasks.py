"""An engine's own tasks, and a few threads for short blocking work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from commonage.domain.iterations import Iterations

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_THREADS = 4
ITERATION_S = 600.0
"""A turn of an engine's loop that takes longer is stuck. Daemons and shared disks may take minutes."""
RETRY_S = 2.0
"""Seconds before a failed loop starts again."""
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
