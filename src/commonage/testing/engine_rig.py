"""What the engine contract needs to know of an engine under test: how to make, restart and look behind it.

Implement `EngineRig` for an engine of your own; the tests of `engine_contract` take nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count

from commonage.domain.environments import Environment
from commonage.domain.fleet import Lease
from commonage.domain.ids import IdSequence, attempt_id
from commonage.domain.sightings import LogLine, Order, Seen, Sighting
from commonage.domain.workloads import Kind
from commonage.ports.engine import Engine
from commonage.testing.behaviour import Aside, Behaviour, shell_aside

RANK = {Seen.STARTING: 0, Seen.RUNNING: 1, Seen.ENDED: 2}
"""The order in which an attempt is seen."""

_STEP_S = 0.05
_NUMBERS = count()
_IDS = IdSequence()
FOREVER = Behaviour(lasts_s=None, prints=("here",))
"""Says that it is there, and stays."""


@dataclass(slots=True)
class Orders:
    """Makes orders that differ in nothing but what is asked for."""

    environment: Environment
    node: str
    command: Callable[[Behaviour], tuple[str, ...]]
    now: Callable[[], float]

    def __call__(self, behaviour: Behaviour, *, memory_mib: int = 256, **changes: object) -> Order:
        """An order for a program of this behaviour; `changes` are fields of it."""
        workload = _IDS.next(self.now(), next(_NUMBERS))
        attempt = attempt_id(workload, 1)
        order = Order(
            attempt_id=attempt,
            workload_id=workload,
            kind=Kind.JOB,
            name="contract",
            owner="ada",
            tenant="lab",
            environment=self.environment,
            command=self.command(behaviour),
            lease=Lease(attempt, self.node, 1000, memory_mib, (), self.now()),
        )
        return replace(order, **changes)  # type: ignore[arg-type]  # the fields are the caller's to know


class EngineRig(ABC):
    """An engine under test, with what the tests need to know of its surroundings."""

    orders: Orders
    broken_environment: Environment
    """One that can never be prepared."""

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
        """How many processes of the attempt there are, found without the engine's help."""

    def aside(self, aside: Aside) -> tuple[str, ...]:
        """The command that does this beside an attempt."""
        return shell_aside(aside)

    async def until(self, is_so: Callable[[], Awaitable[bool]], what: str, within_s: float = 60.0) -> None:
        """Let time pass until it is so; fail when it never is."""
        for _ in range(int(within_s / _STEP_S)):
            if await is_so():
                return
            await self.pass_time(_STEP_S)
        raise AssertionError(f"after {within_s} s still not: {what}")

    async def sighting(self, attempt: str) -> Sighting | None:
        """What the engine sees of it."""
        found = [seen for seen in await (await self.engine()).sightings() if seen.attempt_id == attempt]
        assert len(found) <= 1, "an attempt is sighted once"
        return found[0] if found else None

    async def seen(self, attempt: str, wanted: Seen) -> Sighting:
        """The sighting in which the attempt has come as far as `wanted`."""

        async def is_so() -> bool:
            found = await self.sighting(attempt)
            return found is not None and RANK[found.seen] >= RANK[wanted]

        await self.until(is_so, f"{attempt} is {wanted}")
        found = await self.sighting(attempt)
        assert found is not None
        assert found.seen is wanted, f"{attempt} is {found.seen}, not {wanted}: {found.reason}"
        return found

    async def started(self, order: Order) -> Order:
        """Start it and let it come to run, until its first line is there. One that is short may be over by then."""
        await (await self.engine()).start(order)

        async def is_so() -> bool:
            found = await self.sighting(order.attempt_id)
            if found is None or found.seen is Seen.STARTING:
                return False
            has_printed = bool(await self.lines(order.attempt_id))
            assert has_printed or found.seen is Seen.RUNNING, f"it ended before it printed: {found.reason}"
            return has_printed

        await self.until(is_so, "it runs and prints")
        return order

    async def ended(self, order: Order) -> Sighting:
        """Start it and let it end."""
        await (await self.engine()).start(order)
        return await self.seen(order.attempt_id, Seen.ENDED)

    async def log(self, attempt: str, *, offset: int = 0, tail: int | None = None) -> list[LogLine]:
        """What is in its log now."""
        return [line async for line in (await self.engine()).logs(attempt, offset=offset, tail=tail)]

    async def lines(self, attempt: str) -> list[str]:
        """The text of its log now."""
        return [line.text for line in await self.log(attempt)]
