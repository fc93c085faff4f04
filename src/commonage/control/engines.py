"""The engines of all sites. Sites come and go while the control plane runs; loops run one task for each of them.

A site that does not answer delays only its own tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from commonage.control.signals import cancel_all
from commonage.domain.errors import CommonageError
from commonage.ports.engine import Engine
from commonage.ports.guarded import guarded

log = logging.getLogger(__name__)
ASK_TIMEOUT_S = 2.0
OPEN_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 10.0

T = TypeVar("T")


class Engines(Mapping[str, Engine]):
    """Engines by site, guarded: an unexpected error of one fails that call only, as an EngineFailure."""

    def __init__(self, engines: Collection[Engine] = ()) -> None:
        self._engines = {engine.site: guarded(engine) for engine in engines}
        self._changed: set[asyncio.Event] = set()
        self._late: set[asyncio.Task[None]] = set()  # engines that are still being opened

    def __getitem__(self, site: str) -> Engine:
        return self._engines[site]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._engines))

    def __len__(self) -> int:
        return len(self._engines)

    def add(self, engine: Engine) -> None:
        """Add an open engine; it replaces the engine of its site, if there is one."""
        self._put(guarded(engine))

    def _put(self, engine: Engine) -> None:
        self._engines[engine.site] = engine
        self._notify()

    def remove(self, site: str) -> Engine | None:
        """Remove the engine of a site. The caller closes it, once the tasks for it have ended."""
        engine = self._engines.pop(site, None)
        self._notify()
        return engine

    async def open(self, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        """Open all engines. A site that takes longer is known from when its engine is open. Raises EngineFailure."""
        opening = {asyncio.create_task(engine.open()): engine for engine in self._engines.values()}
        if not opening:
            return
        in_time, late = await asyncio.wait(opening, timeout=timeout_s)
        for task in late:
            engine = opening[task]
            log.warning("site %s: not open after %g s; it is left out until it is", engine.site, timeout_s)
            self.remove(engine.site)
            self._late.add(task)
            task.add_done_callback(lambda done, engine=engine: self._opened(engine, done))  # type: ignore[misc]
        for task in in_time:
            task.result()

    def _opened(self, engine: Engine, task: asyncio.Task[None]) -> None:
        self._late.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("site %s: cannot be opened: %s", engine.site, error, exc_info=error)
        elif engine.site not in self._engines:
            self._put(engine)

    async def close(self) -> None:
        """Close all engines. Sites that do not answer in time are left as they are."""
        await cancel_all(list(self._late))
        await self.ask(lambda engine: engine.close(), CLOSE_TIMEOUT_S)

    def _notify(self) -> None:
        for event in self._changed:
            event.set()

    async def ask(self, question: Callable[[Engine], Awaitable[T]], timeout_s: float = ASK_TIMEOUT_S) -> dict[str, T]:
        """Ask all engines at once. Sites that fail, or do not answer in time, are left out and logged."""

        async def one(engine: Engine) -> T:
            async with asyncio.timeout(timeout_s):
                return await question(engine)

        engines = list(self._engines.values())
        answers = await asyncio.gather(*(one(engine) for engine in engines), return_exceptions=True)
        found: dict[str, T] = {}
        for engine, answer in zip(engines, answers, strict=True):
            if isinstance(answer, CommonageError | OSError):  # TimeoutError is one
                why = str(answer) or f"it did not answer within {timeout_s:g} s"
                log.warning("site %s: left out of this round: %s", engine.site, why)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[engine.site] = answer
        return found

    async def run_each(self, run: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
        """Run `run(engine)` for every engine until cancelled, also for those added later. Raises what a task raises."""
        tasks: dict[str, tuple[Engine, asyncio.Task[None]]] = {}
        event = asyncio.Event()
        self._changed.add(event)
        try:
            while True:
                event.clear()
                for site, (engine, task) in list(tasks.items()):
                    if self._engines.get(site) is not engine:
                        del tasks[site]
                        await cancel_all([task])
                for site, engine in self._engines.items():
                    if site not in tasks:
                        tasks[site] = (engine, asyncio.create_task(run(engine), name=f"site {site}"))
                changed = asyncio.ensure_future(event.wait())
                try:
                    await asyncio.wait(
                        [changed, *(task for _, task in tasks.values())], return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    changed.cancel()
                for _, task in tasks.values():
                    if task.done():
                        task.result()
                        raise RuntimeError(f"the task {task.get_name()} ended; it must run until it is cancelled")
        finally:
            self._changed.discard(event)
            await cancel_all([task for _, task in tasks.values()])
