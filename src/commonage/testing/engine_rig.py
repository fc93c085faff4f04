"""The interface of the engine contract to an engine under test: how to create, restart and inspect it.

Implement `EngineRig` for a new engine; the tests of `engine_contract` take nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count
from secrets import randbelow
from typing import ClassVar

from commonage.domain.images import Environment
from commonage.domain.nodes import LOCAL_SITE, Allocation
from commonage.domain.statuses import LogLine, Phase, StartRequest, Status
from commonage.domain.workloads import IdSequence, Kind, attempt_id
from commonage.ports.engine import Engine
from commonage.testing.behaviour import Aside, Behaviour, shell_aside

RANK = {Phase.STARTING: 0, Phase.RUNNING: 1, Phase.ENDED: 2}
"""The order of an attempt's phases."""

_STEP_S = 0.05
_NUMBERS = count(randbelow(1 << 18))
"""Begin at random, because rigs find processes by the attempt's id: tests in another process must make other ids. The
bound is half of what `IdSequence.next` tells apart.
"""
FOREVER = Behaviour(lasts_s=None, prints=("here",))
"""Prints a line, and runs until it is ended."""


@dataclass(slots=True)
class StartRequestFactory:
    """Makes start requests (orders) that differ only in the given fields."""

    environment: Environment
    node: str
    command: Callable[[Behaviour], tuple[str, ...]]
    now: Callable[[], float]
    site: str = LOCAL_SITE

    def __call__(self, behaviour: Behaviour, *, memory_mib: int = 256, **changes: object) -> StartRequest:
        """A start request for a program of this behaviour; `changes` are its fields."""
        # A new sequence each time: a shared one would follow a request whose fake time is ahead of the clock.
        workload = IdSequence().next(self.now(), next(_NUMBERS))
        attempt = attempt_id(workload, 1)
        request = StartRequest(
            attempt_id=attempt,
            workload_id=workload,
            kind=Kind.JOB,
            name="contract",
            owner="ada",
            tenant="lab",
            environment=self.environment,
            command=self.command(behaviour),
            allocation=Allocation(attempt, self.site, self.node, 1000, memory_mib, (), self.now()),
        )
        return replace(request, **changes)  # type: ignore[arg-type]  # the fields are the caller's to know


class EngineRig(ABC):
    """An engine under test, and the knowledge of its surroundings that the tests need."""

    start_request: StartRequestFactory
    broken_environment: Environment
    """An environment that can never be prepared."""
    on_this_node: ClassVar[bool] = True
    """Whether its processes are those of the control plane's node, whose owners the engine is asked for."""

    tells_pids: ClassVar[bool] = True
    """Whether its samples name the processes."""

    @abstractmethod
    async def engine(self) -> Engine:
        """The engine, open; the same one at each call until `restart`."""

    @abstractmethod
    async def restart(self) -> Engine:
        """Close the engine, and open a new one on the same data."""

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let this much time pass for the engine."""

    @abstractmethod
    async def processes(self, attempt: str) -> int:
        """The number of processes of the attempt, counted without the engine."""

    def aside(self, aside: Aside) -> tuple[str, ...]:
        return shell_aside(aside)

    async def until(self, is_so: Callable[[], Awaitable[bool]], what: str, within_s: float = 60.0) -> None:
        """Let time pass until `is_so()`; fail after `within_s`."""
        for _ in range(int(within_s / _STEP_S)):
            if await is_so():
                return
            await self.pass_time(_STEP_S)
        raise AssertionError(f"after {within_s} s still not: {what}")

    async def status(self, attempt: str) -> Status | None:
        found = [seen for seen in await (await self.engine()).statuses() if seen.attempt_id == attempt]
        assert len(found) <= 1, "an attempt is sighted once"
        return found[0] if found else None

    async def phase(self, attempt: str, wanted: Phase) -> Status:
        """Wait for a status in which the attempt has reached `wanted`."""

        async def is_so() -> bool:
            found = await self.status(attempt)
            return found is not None and RANK[found.phase] >= RANK[wanted]

        await self.until(is_so, f"{attempt} is {wanted}")
        found = await self.status(attempt)
        assert found is not None
        assert found.phase is wanted, f"{attempt} is {found.phase}, not {wanted}: {found.reason}"
        return found

    async def started(self, request: StartRequest) -> StartRequest:
        """Start it and wait until it runs and its first line is logged. A short one may have ended by then."""
        await (await self.engine()).start(request)

        async def is_so() -> bool:
            found = await self.status(request.attempt_id)
            if found is None or found.phase is Phase.STARTING:
                return False
            has_printed = bool(await self.lines(request.attempt_id))
            assert has_printed or found.phase is Phase.RUNNING, f"it ended before it printed: {found.reason}"
            return has_printed

        await self.until(is_so, "it runs and prints")
        return request

    async def ended(self, request: StartRequest) -> Status:
        await (await self.engine()).start(request)
        return await self.phase(request.attempt_id, Phase.ENDED)

    async def log(self, attempt: str, *, offset: int = 0, tail: int | None = None) -> list[LogLine]:
        return [line async for line in (await self.engine()).logs(attempt, offset=offset, tail=tail)]

    async def lines(self, attempt: str) -> list[str]:
        return [line.text for line in await self.log(attempt)]
