"""Killed at any point and started again: every workload is accounted for, none runs twice, none is lost.

A control plane talks to its store and engine through lines. Cutting them between any two of its steps and dropping its
tasks is what kill -9 does: what was written stays, what was on its way does not arrive, no last word is written.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.control.world import ANN, Site, job

from commonage.control.control import Control
from commonage.domain.errors import CommonageError, EngineFailure, Unavailable
from commonage.domain.statuses import Phase
from commonage.domain.workloads import RetryPolicy, State, Workload, workload_of
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.clock import settle
from commonage.testing.fakes.engine import FakeEngine

BEHAVIOURS = {
    "quick": Behaviour(),
    "short": Behaviour(lasts_s=3),
    "fails": Behaviour(lasts_s=1, exit_code=1),
    "forever": Behaviour(lasts_s=None),
    "slow": Behaviour(lasts_s=2, start_delay_s=4),
    "stubborn": Behaviour(lasts_s=None, ignores_term=True),
    "refused": Behaviour(refuses="no"),
}
NODES = [factories.node("one", cpus_milli=2000), factories.node("two", cpus_milli=1000)]


class Line:
    """A control plane's line to its store or engine. Once cut, nothing passes and no call returns.

    `faults` are played one for each call of `faulty`: `before` fails without effect, `after` has its effect and fails.
    """

    def __init__(self, target: Any, faulty: str, faults: deque[str], error: Callable[[], CommonageError]) -> None:
        self._target, self._faulty, self._faults, self._error = target, faulty, faults, error
        self._cut = False

    def cut(self) -> None:
        self._cut = True

    async def _pass(self) -> None:
        await asyncio.sleep(0)
        if self._cut:
            await asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._target, name)
        if inspect.isasyncgenfunction(target):
            return lambda *given, **named: self._stream(target(*given, **named))
        if not inspect.iscoroutinefunction(target):
            return target

        async def call(*given: Any, **named: Any) -> Any:
            await self._pass()
            fault = self._faults.popleft() if name == self._faulty and self._faults else ""
            if fault == "before":
                raise self._error()
            result = await target(*given, **named)
            if fault == "after":
                raise self._error()
            await self._pass()
            return result

        return call

    async def _stream(self, items: Any) -> AsyncIterator[Any]:
        async for item in items:
            await self._pass()
            yield item


@dataclass
class Lives:
    """One installation through several lives of its control plane."""

    site: Site = field(default_factory=lambda: Site(NODES))
    store_faults: deque[str] = field(default_factory=deque)
    engine_faults: deque[str] = field(default_factory=deque)
    acknowledged: list[Workload] = field(default_factory=list)
    stopped: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    control: Control | None = None
    engine: FakeEngine | None = None
    loops: asyncio.Task[None] | None = None
    asking: list[asyncio.Task[None]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    async def begin(self) -> None:
        site = self.site
        self.engine = site.new_engine()
        for name, behaviour in BEHAVIOURS.items():
            self.engine.behave(behaviour, name=name)
        store_line = Line(site.store, "commit", self.store_faults, lambda: Unavailable("the database is away"))
        engine_line = Line(
            self.engine, "start", self.engine_faults, lambda: EngineFailure("the engine is away", retryable=True)
        )
        self.lines = [store_line, engine_line]
        real, site.store = site.store, store_line  # type: ignore[assignment]  # it passes everything on
        self.control = site.control(engine_line)  # type: ignore[arg-type]
        site.store = real
        await real.open()
        await self.control.open()
        self.loops = asyncio.create_task(self.control.run())
        await settle(5)

    async def kill(self) -> None:
        """As kill -9: from one step to the next, nothing more gets out."""
        assert self.control is not None
        assert self.loops is not None
        for line in self.lines:
            line.cut()
        for task in [self.loops, *self.asking]:
            task.cancel()
        # A commit that hangs in a line that was cut would be waited for: it is part of what was killed.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await settle()
        if self.loops.done() and not self.loops.cancelled() and (error := self.loops.exception()) is not None:
            raise error
        self.asking = []
        self.control = None

    def ask(self, name: str, retries: int, size: int) -> None:
        """Submit in the background, so that the end may come before the answer."""

        async def submit(control: Control) -> None:
            with suppress(Unavailable):
                ask = job(name=name, retry=RetryPolicy(retries, 1.0), array_size=size)
                self.acknowledged += (await control.workloads.submit(ANN, ask)).workloads

        assert self.control is not None
        self.asking.append(asyncio.create_task(submit(self.control)))

    def stop(self, which: int) -> None:
        if not self.acknowledged:
            return
        chosen = self.acknowledged[which % len(self.acknowledged)]

        async def stop(control: Control) -> None:
            with suppress(CommonageError):
                self.stopped.add(chosen.id)
                await control.workloads.stop(ANN, chosen.id)

        assert self.control is not None
        self.asking.append(asyncio.create_task(stop(self.control)))

    def lose(self, which: int) -> None:
        assert self.engine is not None
        alive = [name for name, run in self.site.world.runs.items() if not run.is_gone(self.site.clock.now())]
        if alive:
            attempt = alive[which % len(alive)]
            self.lost.add(workload_of(attempt))
            self.engine.lose(attempt)

    async def meanwhile(self, seconds: float, iterations: int) -> None:
        """Let time pass, and return after this number of turns of the event loop, in the middle of the work."""
        self.asking.append(asyncio.create_task(self.site.clock.advance(seconds)))
        await settle(iterations)

    def check(self) -> None:
        now = self.site.clock.now()
        alive = [
            run for run in self.site.world.runs.values() if run.phase(now) is not Phase.ENDED and not run.is_gone(now)
        ]
        for node in NODES:
            used = sum(run.request.allocation.cpus_milli for run in alive if run.request.allocation.node == node.name)
            assert used <= node.report.cpus_milli
        twice = Counter(run.request.workload_id for run in alive)
        assert not twice or max(twice.values()) == 1, "two attempts of one workload run at once"
        assert not self.site.world.starts or max(self.site.world.starts.values()) == 1

    async def until_all_has_ended(self) -> None:
        """Let what never ends by itself be stopped, and wait."""
        self.store_faults.clear()
        self.engine_faults.clear()
        if self.control is None:
            await self.begin()
        assert self.control is not None
        for _ in range(12):
            await self.site.clock.advance(15)
            self.check()
            for one in self.control.live_state:
                if one.spec.name in ("forever", "stubborn"):
                    self.stopped.add(one.id)
                    with suppress(CommonageError):
                        await asyncio.wait_for(self._stopped(one), 5)
            if not len(self.control.live_state):
                return

    async def _stopped(self, one: Workload) -> None:
        assert self.control is not None
        asked = asyncio.create_task(self.control.workloads.stop(ANN, one.id))
        await self.site.clock.advance(0.1)
        await asked


def judge(lives: Lives) -> None:
    """Everything that was acknowledged is there and has ended as it had to."""
    shelf = lives.site.store.shelf
    assert {one.id for one in lives.acknowledged} <= shelf.workloads.keys(), "an acknowledged submission is lost"
    for one in shelf.workloads.values():
        assert one.state.is_terminal, f"{one.spec.name} is {one.state}: {one.reason}"
        tries = shelf.attempts.get(one.id, {})
        assert len(tries) == one.attempts <= one.spec.retry.retries + 1 + one.losses
        assert all(attempt.state.is_terminal and attempt.ended_at is not None for attempt in tries.values())
        if one.id in lives.stopped or one.id in lives.lost:
            continue
        expected = {"fails": State.FAILED, "refused": State.FAILED}.get(one.spec.name, State.SUCCEEDED)
        assert one.state is expected, one.reason
        if expected is State.FAILED:
            assert one.attempts == one.spec.retry.retries + 1
        else:
            assert one.attempts == 1
    assert set(lives.site.world.starts) <= {attempt for tries in shelf.attempts.values() for attempt in tries}
    numbers = [event.seq for event in shelf.events]
    assert numbers == sorted(set(numbers))
    ended = Counter(
        event.workload_id for event in shelf.events if event.state in [str(s) for s in State if s.is_terminal]
    )
    assert set(ended.values()) <= {1}, "an end is reported once"


ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from(sorted(BEHAVIOURS)), st.integers(0, 2), st.sampled_from([0, 0, 3])),
    st.tuples(st.just("stop"), st.integers(0, 20)),
    st.tuples(st.just("lose"), st.integers(0, 20)),
    st.tuples(st.just("advance"), st.sampled_from([0.01, 0.5, 1.0, 6.0])),
    st.tuples(st.just("meanwhile"), st.sampled_from([0.1, 1.0, 4.0]), st.integers(0, 200)),
    st.tuples(st.just("kill"), st.integers(0, 200)),
)
FAULTS = st.lists(st.sampled_from(["", "", "before", "after"]), max_size=12).map(deque)


async def play(actions: list[tuple[Any, ...]], store_faults: deque[str], engine_faults: deque[str]) -> Lives:
    lives = Lives(store_faults=store_faults, engine_faults=engine_faults)
    await lives.begin()
    for what, *given_ in actions:
        if lives.control is None:
            await lives.begin()
        if what == "submit":
            lives.ask(*given_)
        elif what == "stop":
            lives.stop(*given_)
        elif what == "lose":
            lives.lose(*given_)
        elif what == "advance":
            await lives.site.clock.advance(*given_)
        elif what == "meanwhile":
            await lives.meanwhile(*given_)
        else:
            await settle(*given_)
            await lives.kill()
        lives.check()
    await lives.until_all_has_ended()
    await lives.kill()
    return lives


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ACTIONS, min_size=3, max_size=25), FAULTS, FAULTS)
def test_killed_at_any_point_and_started_again(
    actions: list[tuple[Any, ...]], store_faults: deque[str], engine_faults: deque[str]
) -> None:
    judge(asyncio.run(play(actions, deque(store_faults), deque(engine_faults))))


def test_killed_at_every_step_of_a_job_in_turn() -> None:
    for iterations in range(0, 260, 2):
        actions: list[tuple[Any, ...]] = [("submit", "quick", 1, 0), ("meanwhile", 0.1, iterations), ("kill", 0)]
        judge(asyncio.run(play(actions, deque(), deque())))


def test_killed_at_every_step_of_a_stop_in_turn() -> None:
    for iterations in range(0, 160, 2):
        actions: list[tuple[Any, ...]] = [
            ("submit", "forever", 1, 0), ("advance", 1.0), ("stop", 0), ("meanwhile", 0.1, iterations), ("kill", 0),
        ]  # fmt: skip
        judge(asyncio.run(play(actions, deque(), deque())))


def test_each_write_in_turn_fails_before_or_after_it_took_effect() -> None:
    for fault, write in product(("before", "after"), range(6)):
        actions: list[tuple[Any, ...]] = [("submit", "short", 1, 0), ("advance", 6.0)]
        judge(asyncio.run(play(actions, deque([*[""] * write, fault, fault]), deque())))
