"""Single flight: work with several waiters is done once, and each receives its progress.

Standard library only, because agents use it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from commonage.domain.reasons import Reason
from commonage.ports.agents import OnProgress

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    task: asyncio.Task[T] = field(init=False)
    listeners: list[OnProgress] = field(default_factory=list)

    def tell(self, reason: Reason, progress: float | None) -> None:
        for on_progress in list(self.listeners):
            on_progress(reason, progress)


class SingleFlight(Generic[T]):
    """Work in progress, by name."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job[T]] = {}

    async def do(self, name: str, work: Callable[[OnProgress], Coroutine[None, None, T]], on_progress: OnProgress) -> T:
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

    def _done(self, name: str, _: asyncio.Task[T]) -> None:
        del self._jobs[name]

    async def close(self) -> None:
        tasks = [job.task for job in self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
