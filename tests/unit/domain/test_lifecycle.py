from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.domain.triggers import NOW, allocation_for, situations, status_reported, stop, triggers

from commonage.domain.lifecycle import (
    AllocationAssigned,
    AttemptLost,
    PreconditionsMet,
    Record,
    StartRefused,
    StartRun,
    StatusReported,
    StopRequested,
    StopRun,
    TimeLimitNear,
    Trigger,
    step,
)
from commonage.domain.reasons import Reason, attempts, waiting
from commonage.domain.statuses import Phase, Status
from commonage.domain.workloads import (
    MAX_LOSSES,
    EventKind,
    Kind,
    RetryPolicy,
    State,
    StopCause,
    StopRequest,
    Workload,
    attempt_id,
)
from commonage.testing import factories

GONE = attempts.Disappeared()
DOWN = attempts.NodeLost(node="node-1", cause=attempts.SiteNotAnswering())
FAILED = attempts.EnvironmentFailed(environment="torch", error="no such package")
RANK = {State.STARTING: 0, State.RUNNING: 1}


class Life(RuleBasedStateMachine):
    """One workload to which anything happens in any order, at instants that only rise."""

    @initialize(
        retries=st.integers(0, 3),
        kind=st.sampled_from(list(Kind)),
        held=st.booleans(),
        limit=st.none() | st.integers(1, 100),
        requeue=st.booleans(),
    )
    def submit(self, retries: int, kind: Kind, held: bool, limit: int | None, requeue: bool) -> None:
        state = State.HELD if held else State.QUEUED
        self.workload = factories.workload(
            state, kind=kind, retry=RetryPolicy(retries, 1.0), time_limit_s=limit, requeue=requeue
        )
        self.now = NOW
        self.evictions = 0

    def apply(self, trigger: Trigger) -> None:
        self.now += 1
        before = self.workload
        after = step(before, trigger, self.now)
        self.check(before, after.workload)
        self.check_effects(before, trigger, after.effects, after.workload)
        self.workload = after.workload

    def check(self, before: Workload, after: Workload) -> None:
        assert (after.id, after.spec, after.submitted_at, after.version) == (
            before.id, before.spec, before.submitted_at, before.version,
        )  # fmt: skip
        if before.state.is_terminal:
            assert after == before
        if before.state is not after.state:
            assert after.since == self.now
            assert after.reason
        if before.attempt is not None and after.attempt is not None and before.attempt.id == after.attempt.id:
            assert RANK.get(after.attempt.state, 2) >= RANK.get(before.attempt.state, 2)
            if before.attempt.state.is_terminal:
                assert after.attempt == before.attempt
        elif after.attempt is not None:
            assert after.attempt.number == before.attempts + 1
            assert before.attempt is None or before.attempt.state.is_terminal
        if before.stop is not None and before.stop.cause is not StopCause.EVICTION:
            assert after.stop == before.stop
            assert after.state == before.state or after.state.is_terminal
        if before.stop is not None and after.stop is None:
            assert after.state is State.QUEUED
            self.evictions += 1

    @staticmethod
    def check_effects(before: Workload, trigger: Trigger, effects: tuple[object, ...], after: Workload) -> None:
        starts = [one for one in effects if isinstance(one, StartRun)]
        stops = [one for one in effects if isinstance(one, StopRun)]
        if starts:
            assert isinstance(trigger, AllocationAssigned)
            assert starts == [StartRun(trigger.allocation.attempt_id)]
            assert after.attempt is not None
            assert after.attempt.id == trigger.allocation.attempt_id
        if isinstance(trigger, AllocationAssigned) and after != before:
            assert starts
        for one in stops:
            present = before.attempt is not None and before.attempt.id == one.attempt_id
            if isinstance(trigger, StopRequested):
                assert present
                assert one.grace_s == before.spec.grace_s
            else:  # what runs without being wished to
                assert isinstance(trigger, StatusReported)
                assert not present or before.attempt is None or before.attempt.state.is_terminal
        if before.state is not after.state:
            assert any(isinstance(one, Record) for one in effects)

    @rule()
    def released(self) -> None:
        self.apply(PreconditionsMet())

    @rule(ahead=st.integers(0, 2))
    def allocated(self, ahead: int) -> None:
        name = attempt_id(self.workload.id, self.workload.attempts + ahead)
        self.apply(AllocationAssigned(factories.allocation(name, at=self.now)))

    @precondition(lambda self: self.workload.state is State.QUEUED)
    @rule()
    def allocated_in_turn(self) -> None:
        self.apply(AllocationAssigned(allocation_for(self.workload, self.now)))
        assert self.workload.state is State.STARTING

    @rule(
        behind=st.integers(-1, 2),
        phase=st.sampled_from(list(Phase)),
        code=st.none() | st.integers(0, 255),
        reason=st.sampled_from([None, attempts.UnpackingFiles()]),
        oom=st.booleans(),
        ago=st.integers(0, 5),
    )
    def status_reported(
        self, behind: int, phase: Phase, code: int | None, reason: Reason | None, oom: bool, ago: int
    ) -> None:
        name = attempt_id(self.workload.id, max(1, self.workload.attempts - behind))
        self.apply(StatusReported(Status(name, phase, self.now - ago, "n", reason, exit_code=code, oom=oom)))

    @rule(behind=st.integers(0, 1), refused=st.booleans())
    def given_up(self, behind: int, refused: bool) -> None:
        name = attempt_id(self.workload.id, max(1, self.workload.attempts - behind))
        self.apply(StartRefused(name, attempts.StartFailed(error="no")) if refused else AttemptLost(name, GONE))

    @rule(cause=st.sampled_from(list(StopCause)), reason=st.sampled_from([None, attempts.ServerStopped()]))
    def stop(self, cause: StopCause, reason: Reason | None) -> None:
        self.apply(StopRequested(StopRequest("ann", self.now, cause, reason)))

    @rule()
    def time_runs_out(self) -> None:
        self.apply(TimeLimitNear(30.0))

    @invariant()
    def holds_together(self) -> None:
        one = self.workload
        if one.state.holds_allocation:
            assert one.attempt is not None
            assert one.attempt.state is one.state
        elif one.attempt is not None:
            assert one.attempt.state.is_terminal
            assert one.attempt.ended_at is not None
        if one.state.waits:
            assert one.stop is None
        if one.not_before is not None:
            assert one.state is State.HELD
        assert one.attempts <= one.spec.retry.retries + 1 + self.evictions + one.losses
        assert one.retried <= one.spec.retry.retries
        assert one.losses <= (MAX_LOSSES if one.spec.requeue and one.spec.kind is not Kind.SESSION else 0)

    @invariant()
    def a_stop_to_stop_always_ends_it(self) -> None:
        after = step(self.workload, StopRequested(stop(at=self.now)), self.now).workload
        for _ in range(2):
            if after.attempt is not None:
                after = step(after, AttemptLost(after.attempt.id, GONE), self.now).workload
        assert after.state.is_terminal


class Nodes(RuleBasedStateMachine):
    """One workload and the nodes it runs on, as an engine keeps its word: it says that an attempt is lost only once
    that cannot run any more. Effects and statuses come late, twice, or in another order.
    """

    @initialize(retries=st.integers(0, 2), kind=st.sampled_from([Kind.JOB, Kind.SERVICE]), requeue=st.booleans())
    def submit(self, retries: int, kind: Kind, requeue: bool) -> None:
        self.workload = factories.workload(State.QUEUED, kind=kind, retry=RetryPolicy(retries, 1.0), requeue=requeue)
        self.now = NOW
        self.ordered: list[StartRun | StopRun] = []
        self.runs: set[str] = set()
        self.ended: dict[str, int | None] = {}

    def apply(self, trigger: Trigger) -> None:
        self.now += 1
        outcome = step(self.workload, trigger, self.now)
        self.workload = outcome.workload
        self.ordered += [one for one in outcome.effects if not isinstance(one, Record)]

    def end(self, attempt: str, code: int | None) -> None:
        if attempt in self.runs:
            self.runs.remove(attempt)
            self.ended[attempt] = code

    @precondition(lambda self: self.workload.state is State.QUEUED)
    @rule()
    def allocated(self) -> None:
        self.apply(AllocationAssigned(allocation_for(self.workload, self.now)))

    @precondition(lambda self: self.workload.state is State.HELD)
    @rule()
    def released(self) -> None:
        self.apply(PreconditionsMet())

    @precondition(lambda self: self.ordered)
    @rule(data=st.data(), again=st.booleans())
    def carry_out(self, data: st.DataObject, again: bool) -> None:
        one = data.draw(st.sampled_from(self.ordered))
        if not again:
            self.ordered.remove(one)
        if isinstance(one, StopRun):
            self.end(one.attempt_id, 143)
            self.ended.setdefault(one.attempt_id, None)
        elif one.attempt_id not in self.ended:  # an engine starts nothing twice
            self.runs.add(one.attempt_id)

    @precondition(lambda self: self.runs)
    @rule(code=st.sampled_from([0, 1]))
    def ends_by_itself(self, code: int) -> None:
        self.end(next(iter(self.runs)), code)

    @rule()
    def its_node_is_lost(self) -> None:
        """What runs there is fenced, and what was ordered never starts: then, and only then, it is said to be lost."""
        if self.workload.attempt is not None and self.workload.state.holds_allocation:
            self.runs.discard(self.workload.attempt.id)
            self.ended.setdefault(self.workload.attempt.id, None)

    @rule(eviction=st.booleans())
    def stop(self, eviction: bool) -> None:
        self.apply(StopRequested(stop(StopCause.EVICTION if eviction else StopCause.USER, self.now)))

    @rule(data=st.data())
    def phase(self, data: st.DataObject) -> None:
        if known := sorted(self.runs | set(self.ended)):
            name = data.draw(st.sampled_from(known))
            running = name in self.runs
            code = None if running else self.ended[name]
            self.apply(status_reported(name, Phase.RUNNING if running else Phase.ENDED, self.now, code))

    @invariant()
    def never_two_at_once(self) -> None:
        assert len(self.runs) <= 1
        waits_or_ended = not self.workload.state.holds_allocation
        assert not (waits_or_ended and self.runs), "nothing runs of what waits or has ended"


TestNodes = Nodes.TestCase
TestNodes.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def running(**fields: object) -> Workload:
    queued = factories.workload(State.QUEUED, **fields)
    starting = step(queued, AllocationAssigned(allocation_for(queued)), NOW).workload
    assert starting.attempt is not None
    return step(starting, status_reported(starting.attempt.id, Phase.RUNNING, NOW), NOW).workload


def see(workload: Workload, phase: Phase, at: float = NOW + 10, code: int | None = None, **fields: object) -> Workload:
    assert workload.attempt is not None
    status = replace(Status(workload.attempt.id, phase, at, exit_code=code), **fields)  # type: ignore[arg-type]
    return step(workload, StatusReported(status), at).workload


@pytest.mark.parametrize(
    ("code", "oom", "phase", "reason"),
    [
        (0, False, None, attempts.Completed()),
        (3, False, None, attempts.ExitCode(exit_code=3)),
        (126, False, None, attempts.CommandNotExecutable()),
        (127, False, None, attempts.CommandNotFound()),
        (143, False, None, attempts.Signaled(exit_code=143, signal=15)),
        (137, True, None, attempts.OutOfMemory()),
        (1, False, FAILED, FAILED),
        (None, False, None, attempts.NodeLost(node="node-1")),
        (None, False, attempts.NodeRestarted(node="node-1"), attempts.NodeRestarted(node="node-1")),
    ],
)
def test_why_it_ended(code: int | None, oom: bool, phase: Reason | None, reason: Reason) -> None:
    assert see(running(), Phase.ENDED, code=code, oom=oom, reason=phase).reason == reason


def test_retries_pause_longer_each_time_and_then_it_is_final() -> None:
    one = running(retry=RetryPolicy(2, 10.0))
    pauses = []
    while not one.state.is_terminal:
        one = see(one, Phase.ENDED, code=1)
        if one.state is State.HELD:
            assert one.not_before is not None
            pauses.append(one.not_before - one.since)
            assert isinstance(one.reason, waiting.RetryScheduled)
            assert (one.reason.retry, one.reason.retries) == (one.attempts, 2)
            assert one.reason.cause == attempts.ExitCode(exit_code=1)
            one = step(one, PreconditionsMet(), NOW).workload
            one = step(one, AllocationAssigned(allocation_for(one)), NOW).workload
    assert pauses == [10.0, 20.0]
    assert (one.state, one.attempts) == (State.FAILED, 3)


def test_a_pause_is_an_hour_at_most() -> None:
    assert RetryPolicy(100, 10.0).pause_before(100) == 3600.0
    assert RetryPolicy(100, 0.0).pause_before(100) == 0.0


def test_stopping_it_forbids_retries() -> None:
    one = step(running(retry=RetryPolicy(5)), StopRequested(stop()), NOW).workload
    assert see(one, Phase.ENDED, code=1).state is State.STOPPED


def test_what_ended_well_before_its_time_limit_struck_has_succeeded() -> None:
    """As after a night without a control plane: it wishes the end first and learns of the earlier one later."""
    one = step(running(time_limit_s=60), StopRequested(stop(StopCause.TIME_LIMIT, NOW + 3600)), NOW + 3600).workload
    assert see(one, Phase.ENDED, at=NOW + 30, code=0).state is State.SUCCEEDED
    assert see(one, Phase.ENDED, at=NOW + 3601, code=0).state is State.TIMED_OUT


def test_a_evicted_service_goes_back_even_if_it_ends_well_and_a_job_does_not() -> None:
    for kind, state in ((Kind.SERVICE, State.QUEUED), (Kind.JOB, State.SUCCEEDED)):
        one = step(running(kind=kind), StopRequested(stop(StopCause.EVICTION)), NOW).workload
        assert see(one, Phase.ENDED, code=0).state is state


@pytest.mark.parametrize("sort", ["gang", "preemptible"])
def test_who_is_to_go_on_later_goes_back_even_if_it_saved_its_work_and_ended_well(sort: str) -> None:
    one = step(running(**{sort: True}), StopRequested(stop(StopCause.EVICTION)), NOW).workload
    assert see(one, Phase.ENDED, code=0).state is State.QUEUED


def test_a_user_may_stop_what_is_being_evicted() -> None:
    one = step(running(), StopRequested(stop(StopCause.EVICTION)), NOW).workload
    asked = step(one, StopRequested(stop()), NOW)
    assert [type(effect) for effect in asked.effects] == [Record, StopRun]
    assert see(asked.workload, Phase.ENDED, code=143).state is State.STOPPED


def test_a_second_stop_changes_nothing() -> None:
    one = step(running(), StopRequested(stop()), NOW).workload
    assert step(one, StopRequested(stop(StopCause.ADMIN)), NOW).effects == ()


def test_a_late_comer_is_told_to_end() -> None:
    one = see(running(retry=RetryPolicy(1)), Phase.ENDED, code=1)
    late = StatusReported(Status(attempt_id(one.id, 1), Phase.RUNNING, NOW))
    assert step(one, late, NOW).effects == (StopRun(attempt_id(one.id, 1), 0),)


def test_repeated_statuses_write_nothing() -> None:
    for name, workloads in situations().items():
        for one in workloads:
            for words in ("seen starting", "seen running"):
                once = step(one, triggers(one)[words], NOW + 1).workload
                again = step(once, triggers(one)[words], NOW + 2)
                assert again.workload is once, f"{words} twice when {name}"


def test_it_is_warned_once_in_each_attempt() -> None:
    one = step(running(), TimeLimitNear(60.0), NOW)
    assert one.effects == (Record(EventKind.WARNING, attempts.TimeLimitNear(left_s=60.0)),)
    assert step(one.workload, TimeLimitNear(59.0), NOW).effects == ()


def test_what_waits_ends_at_once() -> None:
    one = step(factories.workload(State.QUEUED), StopRequested(StopRequest("ann", NOW)), NOW)
    assert (one.workload.state, one.workload.reason) == (State.STOPPED, attempts.StoppedBy(by="ann"))
    assert [type(effect) for effect in one.effects] == [Record]


def test_deadlines() -> None:
    one = running(time_limit_s=60)
    assert one.deadline == NOW + 60
    assert running().deadline is None
    assert see(one, Phase.ENDED, code=0).deadline is None
    assert factories.workload(State.QUEUED, time_limit_s=60).deadline is None


def test_a_eviction_is_no_retry() -> None:
    one = step(running(retry=RetryPolicy(1, 10.0)), StopRequested(stop(StopCause.EVICTION)), NOW).workload
    one = see(one, Phase.ENDED, code=143)
    assert (one.state, one.retried) == (State.QUEUED, 0)
    one = step(one, AllocationAssigned(allocation_for(one)), NOW).workload
    one = see(one, Phase.ENDED, code=1)
    assert (one.state, one.retried) == (State.HELD, 1)


@pytest.mark.parametrize("kind", [Kind.JOB, Kind.SERVICE])
def test_who_stops_it_queues_again_when_its_node_is_lost_and_keeps_its_retries(kind: Kind) -> None:
    one = see(running(kind=kind, requeue=True, retry=RetryPolicy(1, 10.0)), Phase.ENDED, reason=DOWN)
    assert (one.state, one.retried, one.losses) == (State.QUEUED, 0, 1)
    assert one.reason == waiting.Requeued(cause=DOWN)
    assert one.attempt is not None
    assert one.attempt.state is State.LOST
    one = step(one, AllocationAssigned(allocation_for(one)), NOW).workload
    one = step(one, AttemptLost(f"{one.id}-2", GONE), NOW).workload
    assert (one.state, one.losses) == (State.QUEUED, 2)


def test_what_is_lost_again_and_again_is_given_up() -> None:
    one = running(requeue=True)
    while not one.state.is_terminal:
        one = see(one, Phase.ENDED, reason=DOWN)
        if one.state is State.QUEUED:
            one = step(one, AllocationAssigned(allocation_for(one)), NOW).workload
    assert (one.state, one.attempts, one.losses) == (State.LOST, MAX_LOSSES + 1, MAX_LOSSES)
    assert one.reason == attempts.LostTooOften(losses=6, cause=DOWN)


def test_what_does_not_stop_it_is_lost() -> None:
    assert see(running(requeue=False), Phase.ENDED).state is State.LOST


def test_a_session_is_lost_with_its_node_whatever_it_stops() -> None:
    """Its kernels are gone: it is the hub that starts another one, with a page that says so."""
    assert see(running(kind=Kind.SESSION, requeue=True), Phase.ENDED).state is State.LOST


def test_what_is_to_stop_does_not_come_back_because_its_node_is_lost() -> None:
    one = step(running(requeue=True), StopRequested(stop()), NOW).workload
    assert see(one, Phase.ENDED).state is State.STOPPED
