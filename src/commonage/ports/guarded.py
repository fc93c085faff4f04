"""Guards an engine: an unexpected error fails one call only. Control and the site agent call engines through it.

Engines read what tenants and nodes write into their clusters. An object that an engine does not expect must not end the
loops of all sites.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.images import Environment, EnvironmentStatus
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.statuses import Capabilities, LogLine, Measurement, ProcessOwner, StartRequest, Status
from commonage.domain.tenants import Tenant
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.cron_sites import CronSite, HasCronSite
from commonage.ports.engine import Engine
from commonage.ports.execs import ExecStream, Terminal

log = logging.getLogger(__name__)
T = TypeVar("T")


def guarded(engine: Engine) -> Engine:
    """The engine, with an EngineFailure for every unexpected exception. The traceback is logged once for each place."""
    return _GuardedCronEngine(engine, engine) if isinstance(engine, HasCronSite) else _GuardedEngine(engine)


class _GuardedEngine:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._logged: set[tuple[type[Exception], str, int]] = set()  # no message: tenants can vary it without end

    @contextmanager
    def _guard(self, call: str) -> Iterator[None]:
        try:
            yield
        except CommonageError:
            raise
        except Exception as error:  # any exception is a defect of the engine, and must not end the caller
            where = (type(error), *_origin(error.__traceback__))
            if where not in self._logged:
                self._logged.add(where)
                log.exception("site %s: unexpected error of the engine in %s()", self._engine.site, call)
            raise EngineFailure(
                f"unexpected error of the engine in {call}(): {type(error).__name__}; its traceback is in the log",
                retryable=isinstance(error, OSError),  # a defect remains one
                native=str(error)[:200],
            ) from error

    async def _each(self, call: str, found: AsyncIterator[T]) -> AsyncGenerator[T]:
        try:
            with self._guard(call):
                async for one in found:
                    yield one
        finally:
            if isinstance(found, AsyncGenerator):
                await found.aclose()

    @property
    def site(self) -> str:
        return self._engine.site

    def capabilities(self) -> Capabilities:
        with self._guard("capabilities"):
            return self._engine.capabilities()

    async def open(self) -> None:
        with self._guard("open"):
            await self._engine.open()

    async def close(self) -> None:
        with self._guard("close"):
            await self._engine.close()

    def loops(self) -> Sequence[Iterations]:
        return self._engine.loops()

    async def start(self, request: StartRequest) -> None:
        with self._guard("start"):
            await self._engine.start(request)

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        with self._guard("stop"):
            await self._engine.stop(attempt_id, grace_s)

    async def forget(self, attempt_id: str) -> None:
        with self._guard("forget"):
            await self._engine.forget(attempt_id)

    async def statuses(self) -> Sequence[Status]:
        with self._guard("statuses"):
            return await self._engine.statuses()

    def watch(self) -> AsyncIterator[Status]:
        return self._each("watch", self._engine.watch())

    def logs(
        self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        return self._each("logs", self._engine.logs(attempt_id, offset=offset, tail=tail, follow=follow))

    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> ExecStream:
        with self._guard("exec"):
            return await self._engine.exec(attempt_id, command, terminal)

    async def measure(self) -> Sequence[Measurement]:
        with self._guard("measure"):
            return await self._engine.measure()

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        with self._guard("owners"):
            return await self._engine.owners(pids)

    async def nodes(self) -> Sequence[NodeReport]:
        with self._guard("nodes"):
            return await self._engine.nodes()

    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        with self._guard("prepare"):
            await self._engine.prepare(environment, node, on_progress)

    async def keep_tenants(self, tenants: Sequence[Tenant]) -> Mapping[str, Reason]:
        with self._guard("keep_tenants"):
            return await self._engine.keep_tenants(tenants)

    async def environments(self) -> Sequence[EnvironmentStatus]:
        with self._guard("environments"):
            return await self._engine.environments()


class _GuardedCronEngine(_GuardedEngine):
    def __init__(self, engine: Engine, site: HasCronSite) -> None:
        super().__init__(engine)
        self._site = site

    @property
    def cron_site(self) -> CronSite:
        return self._site.cron_site


def _origin(trace: TracebackType | None) -> tuple[str, int]:
    """File and line that raised it."""
    if trace is None:
        return "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno
