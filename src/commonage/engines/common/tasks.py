"""An engine's own tasks, and the few threads for what may block a little."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_THREADS = 4
AGAIN_S = 2.0
"""Before a loop that broke begins anew."""


class Tasks:
    """Tasks that end with the engine; what they raise is logged. `name` is the engine's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"{name}-engine")
        self._tasks: set[asyncio.Task[None]] = set()

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """The result of `work`, which is done in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Have it done, whoever asked for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def keep(self, loop: Callable[[], Coroutine[None, None, None]]) -> None:
        """Have a loop done that ends with the engine alone: what nobody expected is logged, and it begins anew."""
        self.spawn(self._kept(loop))

    async def _kept(self, loop: Callable[[], Coroutine[None, None, None]]) -> None:
        while True:
            try:
                await loop()
            except Exception:  # whatever it is: without its loops an engine would be deaf, and nobody see it
                _log.exception("a loop of the %s engine broke, and begins anew", self._name)
            await asyncio.sleep(AGAIN_S)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a task of the %s engine failed", self._name, exc_info=task.exception())

    async def cancel(self) -> None:
        """End the tasks; the threads still work."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()
