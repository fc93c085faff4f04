"""Changes to workloads by time and other workloads: begin times, time limits, dependencies, added or removed images.

One loop, which only sends happenings to the writer. Limits are enforced to within a second, however many dependencies
there are to check.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from commonage.control.signals import wait_at_most
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError, NotFound
from commonage.domain.iterations import Iterations
from commonage.domain.lifecycle import PreconditionMissing, PreconditionsMet, StopRequested, TimeLimitNear
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import DependencyFailed, DependencyNotFound, TimeLimitReached
from commonage.domain.reasons.waiting import Other
from commonage.domain.workloads import Condition, Dependency, Spec, State, StopCause, StopRequest, Workload
from commonage.ports.clock import Clock
from commonage.ports.store import Store

log = logging.getLogger(__name__)
TICK_S = 0.5
SHORT_REST_S = 0.02  # while dependencies wait to be checked
CHECKING_S = 0.1  # of each tick, for dependencies: time limits and other loops must not wait for a large array
MAX_ENDED = 20_000  # remembered dependencies on workloads that have ended


class Timers:
    """Checks held and running workloads twice a second, and dependents as soon as something changed.

    `shortfall` returns why work with this spec cannot start for now: its environment is missing, or its owner or tenant
    is being renamed; None if nothing prevents it.
    """

    def __init__(
        self,
        store: Store,
        live_state: LiveState,
        writer: Writer,
        clock: Clock,
        warn_before_s: float,
        shortfall: Callable[[Spec], Reason | None],
    ) -> None:
        self._store, self._live_state, self._writer, self._clock = store, live_state, writer, clock
        self._warn_before_s = warn_before_s
        self._to_check: OrderedDict[str, None] = OrderedDict()  # the longest waiting first
        self._ended: dict[Dependency, Verdict] = {}  # final: workloads that have ended do not change
        self._woken = asyncio.Event()
        self._shortfall = shortfall
        self.iterations = Iterations("timers", clock.now)

    def changed(self, workload: Workload) -> None:
        to_check = self._live_state.dependents_of(workload.id)
        if workload.state is State.HELD:
            to_check.append(workload.id)
        elif workload.state is State.QUEUED:
            self._check_queued(workload)
        if to_check:
            self._to_check.update(dict.fromkeys(to_check))
            self._woken.set()

    async def run(self) -> None:
        self.conditions_changed()
        while True:
            try:
                await self.tick()
            except CommonageError as error:
                log.warning("timers wait for the store: %s", error)
            with self.iterations.rest():
                await wait_at_most(SHORT_REST_S if self._to_check else TICK_S, self._woken, self._clock)
            self._woken.clear()

    async def tick(self) -> None:
        now = self._clock.now()
        if self._writer.stuck:
            return  # the store does not answer: repeating the same change every tick would only pile up
        for workload in self._live_state.in_state(State.HELD):
            if workload.not_before is not None and workload.not_before <= now:
                self._release(workload)
        # The limit counts from when it runs: preparing an environment on first use does not count.
        for workload in self._live_state.in_state(State.RUNNING):
            self._limit(workload, now)
        until = self._clock.now() + CHECKING_S
        while self._to_check and self._clock.now() < until:
            workload_id, _ = self._to_check.popitem(last=False)
            held = self._live_state.get(workload_id)
            if held is not None and held.state is State.HELD and held.not_before is None:
                try:
                    await self._depend(held, now)
                except CommonageError:
                    self._to_check[workload_id] = None  # its dependencies still have to be checked
                    raise

    def _limit(self, workload: Workload, now: float) -> None:
        deadline, limit = workload.deadline, workload.spec.time_limit_s
        if deadline is None or limit is None or workload.stop is not None:
            return
        if now >= deadline:
            stop = StopRequest("the time limit", now, StopCause.TIME_LIMIT, TimeLimitReached(limit_s=limit))
            self._writer.note(workload.id, StopRequested(stop))
        elif not workload.warned and deadline - now <= min(self._warn_before_s, limit / 5):
            self._writer.note(workload.id, TimeLimitNear(deadline - now))

    async def _depend(self, held: Workload, now: float) -> None:
        is_met = True
        for dependency in held.spec.depends_on:
            found = await self._verdict(dependency)
            if isinstance(found, Reason):
                stop = StopRequest("a dependency", now, StopCause.DEPENDENCY, found)
                self._writer.note(held.id, StopRequested(stop))
                return
            is_met = is_met and found is None
        if is_met:
            self._release(held)

    async def _verdict(self, dependency: Dependency) -> Verdict:
        other = self._live_state.get(dependency.workload_id)
        if other is not None:
            return judge(dependency.condition, other)
        if dependency in self._ended:
            return self._ended[dependency]
        found: Verdict
        try:
            other = await self._store.workload(dependency.workload_id)
        except NotFound:
            found = DependencyNotFound(workload_id=dependency.workload_id)
        else:
            found = judge(dependency.condition, other)
            if not other.state.is_terminal:
                return found
        if len(self._ended) >= MAX_ENDED:
            self._ended.clear()
        self._ended[dependency] = found
        return found

    def _release(self, held: Workload) -> None:
        """All its conditions are met. If something else prevents its start by now, it is held for that instead."""
        shortfall = self._shortfall(held.spec)
        self._writer.note(held.id, PreconditionsMet() if shortfall is None else PreconditionMissing(shortfall))

    def conditions_changed(self) -> None:
        """Hold queued workloads that may not start any more, and check all held ones again."""
        for workload in self._live_state.in_state(State.QUEUED):
            self._check_queued(workload)
        self._to_check.update((workload.id, None) for workload in self._live_state.in_state(State.HELD))
        self._woken.set()

    def _check_queued(self, queued: Workload) -> None:
        shortfall = self._shortfall(queued.spec)
        if shortfall is not None:
            self._writer.note(queued.id, PreconditionMissing(shortfall))


Verdict = Reason | Other | None
"""None: the dependency is met; another workload: it is not met yet; a reason: it can never be met."""


def judge(condition: Condition, other: Workload) -> Verdict:
    started = other.attempts > 0 and other.state not in (State.HELD, State.QUEUED, State.STARTING)
    if condition is Condition.AFTER_START and (started or other.state.is_terminal):
        return None
    name = other.spec.name or other.spec.kind.value
    if not other.state.is_terminal:
        return Other(other.id, name, other.state.value)
    ended_well = other.state is State.SUCCEEDED
    wanted = {Condition.AFTER_OK: ended_well, Condition.AFTER_NOT_OK: not ended_well}.get(condition, True)
    if wanted:
        return None
    return DependencyFailed(workload_id=other.id, name=name, condition=condition.value, state=other.state.value)
