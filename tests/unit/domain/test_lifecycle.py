"""The lifecycle: random events, single cases, and the table in docs/concepts/states.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from commonage.domain.lifecycle import (
    LONGEST_PLACEMENT_PAUSE_S,
    AllocationAssigned,
    AttemptLost,
    PreconditionMissing,
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
from commonage.domain.nodes import Allocation
from commonage.domain.reasons import Reason, attempts, waiting
from commonage.domain.reasons.cron_jobs import TakenByCronRun
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

NOW = factories.NOW


def allocation_for(workload: Workload, at: float = NOW) -> Allocation:
    return factories.allocation(attempt_id(workload.id, workload.attempts + 1), at=at)


def stop(cause: StopCause = StopCause.USER, at: float = NOW) -> StopRequest:
    return StopRequest("ann", at, cause, attempts.StoppedBy(by="ann", comment=cause.value))


def status_reported(attempt: str, phase: Phase, at: float = NOW + 1, exit_code: int | None = None) -> StatusReported:
    reason = attempts.UnpackingFiles() if phase is Phase.STARTING else None
    return StatusReported(Status(attempt, phase, at, "node-1", reason, exit_code=exit_code))


def triggers(workload: Workload, at: float = NOW + 1) -> dict[str, Trigger]:
    """By the words of docs/concepts/states.md; what names an attempt names the present one."""
    attempt = workload.attempt.id if workload.attempt else attempt_id(workload.id, 1)
    return {
        "released": PreconditionsMet(),
        "withheld": PreconditionMissing(waiting.EnvironmentNotFound(environment="torch")),
        "allocated": AllocationAssigned(allocation_for(workload, at)),
        "reported starting": status_reported(attempt, Phase.STARTING, at),
        "reported running": status_reported(attempt, Phase.RUNNING, at),
        "reported ended, exit code 0": status_reported(attempt, Phase.ENDED, at, 0),
        "reported ended, another code": status_reported(attempt, Phase.ENDED, at, 1),
        "reported ended, exit code unknown": status_reported(attempt, Phase.ENDED, at),
        "start refused": StartRefused(attempt, attempts.StartFailed(error="it would not start")),
        "vanished": AttemptLost(attempt, attempts.Disappeared()),
        "stop: user, admin, dependency": StopRequested(stop(StopCause.USER, at)),
        "stop: time limit": StopRequested(stop(StopCause.TIME_LIMIT, at)),
        "stop: eviction": StopRequested(stop(StopCause.EVICTION, at)),
        "time runs out": TimeLimitNear(60.0),
    }


def situations(retries: int = 0, *, requeue: bool = False) -> dict[str, list[Workload]]:
    """Workloads by the columns of docs/concepts/states.md."""
    queued = factories.workload(State.QUEUED, retry=RetryPolicy(retries), requeue=requeue)
    starting = step(queued, AllocationAssigned(allocation_for(queued)), NOW).workload
    assert starting.attempt is not None
    running = step(starting, status_reported(starting.attempt.id, Phase.RUNNING, NOW), NOW).workload
    lived = [starting, running]
    return {
        "held": [replace(queued, state=State.HELD)],
        "queued": [queued],
        "starting": [starting],
        "running": [running],
        "being stopped": [step(workload, StopRequested(stop()), NOW).workload for workload in lived],
        "over its limit": [
            step(workload, StopRequested(stop(StopCause.TIME_LIMIT)), NOW).workload for workload in lived
        ],
        "evicted": [step(workload, StopRequested(stop(StopCause.EVICTION)), NOW).workload for workload in lived],
        "ended": [
            replace(running, state=state, attempt=replace(running.attempt, state=state))  # type: ignore[type-var]
            for state in State
            if state.is_terminal
        ],
    }


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
        starts = [effect for effect in effects if isinstance(effect, StartRun)]
        stops = [effect for effect in effects if isinstance(effect, StopRun)]
        if starts:
            assert isinstance(trigger, AllocationAssigned)
            assert starts == [StartRun(trigger.allocation.attempt_id)]
            assert after.attempt is not None
            assert after.attempt.id == trigger.allocation.attempt_id
        if isinstance(trigger, AllocationAssigned) and after != before:
            assert starts
        for effect in stops:
            present = before.attempt is not None and before.attempt.id == effect.attempt_id
            if isinstance(trigger, StopRequested):
                assert present
                assert effect.grace_s == before.spec.grace_s
            else:  # what runs without being wished to
                assert isinstance(trigger, StatusReported)
                assert not present or before.attempt is None or before.attempt.state.is_terminal
        if before.state is not after.state:
            assert any(isinstance(effect, Record) for effect in effects)

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
        workload = self.workload
        if workload.state.holds_allocation:
            assert workload.attempt is not None
            assert workload.attempt.state is workload.state
        elif workload.attempt is not None:
            assert workload.attempt.state.is_terminal
            assert workload.attempt.ended_at is not None
        if workload.state.waits:
            assert workload.stop is None
        if workload.not_before is not None:
            assert workload.state is State.HELD
        assert workload.attempts <= workload.spec.retry.retries + 1 + self.evictions + workload.losses
        assert workload.retried <= workload.spec.retry.retries
        assert workload.losses <= (
            MAX_LOSSES if workload.spec.requeue and workload.spec.kind is not Kind.SESSION else 0
        )

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
        self.ordered += [effect for effect in outcome.effects if not isinstance(effect, Record)]

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
        effect = data.draw(st.sampled_from(self.ordered))
        if not again:
            self.ordered.remove(effect)
        if isinstance(effect, StopRun):
            self.end(effect.attempt_id, 143)
            self.ended.setdefault(effect.attempt_id, None)
        elif effect.attempt_id not in self.ended:  # an engine starts nothing twice
            self.runs.add(effect.attempt_id)

    @precondition(lambda self: self.runs)
    @rule(code=st.sampled_from([0, 1]))
    def ends_by_itself(self, code: int) -> None:
        self.end(next(iter(self.runs)), code)

    @rule()
    def its_node_is_lost(self) -> None:
        """A running attempt is fenced, and a requested one never starts; only then is it reported as lost."""
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
def test_reason_of_an_end(code: int | None, oom: bool, phase: Reason | None, reason: Reason) -> None:
    assert see(running(), Phase.ENDED, code=code, oom=oom, reason=phase).reason == reason


def test_retries_pause_longer_each_time_until_none_is_left() -> None:
    workload = running(retry=RetryPolicy(2, 10.0))
    pauses = []
    while not workload.state.is_terminal:
        workload = see(workload, Phase.ENDED, code=1)
        if workload.state is State.HELD:
            assert workload.not_before is not None
            pauses.append(workload.not_before - workload.since)
            assert isinstance(workload.reason, waiting.RetryScheduled)
            assert (workload.reason.retry, workload.reason.retries) == (workload.attempts, 2)
            assert workload.reason.cause == attempts.ExitCode(exit_code=1)
            workload = step(workload, PreconditionsMet(), NOW).workload
            workload = step(workload, AllocationAssigned(allocation_for(workload)), NOW).workload
    assert pauses == [10.0, 20.0]
    assert (workload.state, workload.attempts) == (State.FAILED, 3)


def test_pause_is_at_most_an_hour() -> None:
    assert RetryPolicy(100, 10.0).pause_before(100) == 3600.0
    assert RetryPolicy(100, 0.0).pause_before(100) == 0.0


@pytest.mark.parametrize(
    ("fields", "cause", "code", "state"),
    [
        ({"retry": RetryPolicy(5)}, StopCause.USER, 1, State.STOPPED),
        ({"kind": Kind.JOB}, StopCause.EVICTION, 0, State.SUCCEEDED),
        ({"kind": Kind.SERVICE}, StopCause.EVICTION, 0, State.QUEUED),
        ({"gang": True}, StopCause.EVICTION, 0, State.QUEUED),
        ({"preemptible": True}, StopCause.EVICTION, 0, State.QUEUED),
    ],
)
def test_state_after_a_stop(fields: dict[str, object], cause: StopCause, code: int, state: State) -> None:
    """A stop forbids retries. An evicted workload is requeued, except for a job that could finish."""
    stopping = step(running(**fields), StopRequested(stop(cause)), NOW).workload
    assert see(stopping, Phase.ENDED, code=code).state is state


def test_workload_that_ended_before_its_time_limit_has_succeeded() -> None:
    """As after a night without a control plane: it requests the stop first and learns of the earlier end later."""
    late = NOW + 3600
    stopping = step(running(time_limit_s=60), StopRequested(stop(StopCause.TIME_LIMIT, late)), late).workload
    assert see(stopping, Phase.ENDED, at=NOW + 30, code=0).state is State.SUCCEEDED
    assert see(stopping, Phase.ENDED, at=NOW + 3601, code=0).state is State.TIMED_OUT


def test_user_may_stop_an_evicted_workload_once() -> None:
    evicted = step(running(), StopRequested(stop(StopCause.EVICTION)), NOW).workload
    stopping = step(evicted, StopRequested(stop()), NOW)
    assert [type(effect) for effect in stopping.effects] == [Record, StopRun]
    assert see(stopping.workload, Phase.ENDED, code=143).state is State.STOPPED
    assert step(stopping.workload, StopRequested(stop(StopCause.ADMIN)), NOW).effects == ()


def test_stops_an_attempt_that_appears_after_its_end() -> None:
    ended = see(running(retry=RetryPolicy(1)), Phase.ENDED, code=1)
    late = StatusReported(Status(attempt_id(ended.id, 1), Phase.RUNNING, NOW))
    assert step(ended, late, NOW).effects == (StopRun(attempt_id(ended.id, 1), 0),)


def test_start_that_was_not_reported_is_recorded_before_the_end() -> None:
    queued = factories.workload(State.QUEUED)
    starting = step(queued, AllocationAssigned(allocation_for(queued)), NOW).workload
    assert starting.attempt is not None
    end = Status(starting.attempt.id, Phase.ENDED, NOW + 2, exit_code=0, started_at=NOW + 1)
    ended = step(starting, StatusReported(end), NOW + 9)
    assert [one.kind for one in ended.effects if isinstance(one, Record)] == [EventKind.RUNNING, EventKind.ENDED]
    assert ended.workload.attempt is not None
    assert (ended.workload.attempt.started_at, ended.workload.attempt.ended_at) == (NOW + 1, NOW + 2)
    assert ended.workload.state is State.SUCCEEDED


def test_reasons_name_the_node_with_its_site() -> None:
    queued = factories.workload(State.QUEUED)
    elsewhere = replace(allocation_for(queued), site="east", node="gpu-1")
    starting = step(queued, AllocationAssigned(elsewhere), NOW).workload
    assert starting.reason == attempts.Starting(node="east/gpu-1")
    told = see(starting, Phase.STARTING, reason=attempts.Starting(node="gpu-1"))
    assert told == starting, "an engine knows its nodes by their bare names"
    assert see(starting, Phase.RUNNING).reason == attempts.Running(node="east/gpu-1")


def test_repeated_statuses_write_nothing() -> None:
    for name, workloads in situations().items():
        for workload in workloads:
            for words in ("reported starting", "reported running"):
                once = step(workload, triggers(workload)[words], NOW + 1).workload
                again = step(once, triggers(workload)[words], NOW + 2)
                assert again.workload is once, f"{words} twice when {name}"


def test_running_attempt_follows_its_address() -> None:
    """A Pod gets another one, and a site's attempt another port here once the installation uses that port."""
    before = see(running(), Phase.RUNNING, url="http://10.0.0.1:8000")
    after = see(before, Phase.RUNNING, url="http://10.0.0.2:8000")
    assert after.attempt is not None and after.attempt.url == "http://10.0.0.2:8000"
    assert see(after, Phase.RUNNING) == see(after, Phase.RUNNING, url="http://10.0.0.2:8000") == after


def test_warns_of_the_time_limit_once() -> None:
    warned = step(running(), TimeLimitNear(60.0), NOW)
    assert warned.effects == (Record(EventKind.WARNING, attempts.TimeLimitNear(left_s=60.0)),)
    assert step(warned.workload, TimeLimitNear(59.0), NOW).effects == ()


def test_waiting_workload_stops_at_once() -> None:
    stopped = step(factories.workload(State.QUEUED), StopRequested(StopRequest("ann", NOW)), NOW)
    assert (stopped.workload.state, stopped.workload.reason) == (State.STOPPED, attempts.StoppedBy(by="ann"))
    assert [type(effect) for effect in stopped.effects] == [Record]


def test_only_a_running_workload_with_a_time_limit_has_a_deadline() -> None:
    limited = running(time_limit_s=60)
    assert limited.deadline == NOW + 60
    assert running().deadline is None
    assert see(limited, Phase.ENDED, code=0).deadline is None
    assert factories.workload(State.QUEUED, time_limit_s=60).deadline is None


def test_eviction_does_not_count_as_retry() -> None:
    workload = step(running(retry=RetryPolicy(1, 10.0)), StopRequested(stop(StopCause.EVICTION)), NOW).workload
    workload = see(workload, Phase.ENDED, code=143)
    assert (workload.state, workload.retried) == (State.QUEUED, 0)
    workload = step(workload, AllocationAssigned(allocation_for(workload)), NOW).workload
    workload = see(workload, Phase.ENDED, code=1)
    assert (workload.state, workload.retried) == (State.HELD, 1)


@pytest.mark.parametrize("kind", [Kind.JOB, Kind.SERVICE])
def test_requeues_when_the_node_is_lost_and_keeps_retries(kind: Kind) -> None:
    workload = see(running(kind=kind, requeue=True, retry=RetryPolicy(1, 10.0)), Phase.ENDED, reason=DOWN)
    assert (workload.state, workload.retried, workload.losses) == (State.QUEUED, 0, 1)
    assert workload.reason == waiting.Requeued(cause=DOWN)
    assert workload.attempt is not None
    assert workload.attempt.state is State.LOST
    workload = step(workload, AllocationAssigned(allocation_for(workload)), NOW).workload
    workload = step(workload, AttemptLost(f"{workload.id}-2", GONE), NOW).workload
    assert (workload.state, workload.losses) == (State.QUEUED, 2)


def test_gives_up_after_repeated_losses() -> None:
    workload = running(requeue=True)
    while not workload.state.is_terminal:
        workload = see(workload, Phase.ENDED, reason=DOWN)
        if workload.state is State.QUEUED:
            workload = step(workload, AllocationAssigned(allocation_for(workload)), NOW).workload
    assert (workload.state, workload.attempts, workload.losses) == (State.LOST, MAX_LOSSES + 1, MAX_LOSSES)
    assert workload.reason == attempts.LostTooOften(losses=6, cause=DOWN)


NEVER_RAN = (
    attempts.NotDelivered(cause=DOWN),
    TakenByCronRun(node="n1", workload_id="w-9"),
    attempts.PodUnschedulable(node="n1", error="Insufficient cpu"),
)


@pytest.mark.parametrize("cause", NEVER_RAN)
@pytest.mark.parametrize("fields", [{"requeue": True}, {"requeue": False}, {"kind": Kind.SESSION}])
def test_attempts_that_never_ran_are_no_losses_and_queue_again_later_each_time(
    fields: dict[str, object], cause: Reason
) -> None:
    workload = factories.workload(spec_=factories.spec(retry=RetryPolicy(1, 10.0), **fields))
    pauses = []
    for _ in range(3 * MAX_LOSSES):
        workload = step(workload, AllocationAssigned(allocation_for(workload)), NOW).workload
        workload = see(workload, Phase.ENDED, reason=cause)
        assert (workload.state, workload.retried, workload.losses) == (State.HELD, 0, 0)
        assert workload.not_before is not None
        pauses.append(workload.not_before - workload.since)
        workload = step(workload, PreconditionsMet(), workload.not_before).workload
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2.0, LONGEST_PLACEMENT_PAUSE_S)


@pytest.mark.parametrize("cause", NEVER_RAN)
def test_an_attempt_that_was_seen_running_is_lost_whatever_its_site_says_later(cause: Reason) -> None:
    after = see(running(requeue=True), Phase.ENDED, reason=cause)
    assert (after.state, after.losses) == (State.QUEUED, 1)


@pytest.mark.parametrize("fields", [{"requeue": False}, {"requeue": True, "kind": Kind.SESSION}])
def test_is_lost_with_its_node_without_requeue_or_as_a_session(fields: dict[str, object]) -> None:
    """The kernels of a session are gone: the hub starts another one."""
    assert see(running(**fields), Phase.ENDED).state is State.LOST


def test_stopped_workload_is_not_requeued_when_its_node_is_lost() -> None:
    stopping = step(running(requeue=True), StopRequested(stop()), NOW).workload
    assert see(stopping, Phase.ENDED).state is State.STOPPED


# --- docs/concepts/states.md ------------------------------------------------------------------------------------------

DOCUMENT = Path(__file__).parents[3] / "docs" / "concepts" / "states.md"


def outcome(workload: Workload, trigger: str) -> str:
    after = step(workload, triggers(workload)[trigger], NOW + 1)
    if after.workload == workload and not after.effects:
        return "·"
    if after.workload.stop != workload.stop and not after.workload.state.is_terminal and after.workload.stop:
        return {"user": "being stopped", "time-limit": "over its limit", "eviction": "evicted"}[
            after.workload.stop.cause
        ]
    if after.workload.state == workload.state:
        return "noted" if after.workload != workload else "·"
    return str(after.workload.state)


def cell(situation: str, trigger: str) -> str:
    workloads = [*situations(0)[situation], *situations(1)[situation], *situations(0, requeue=True)[situation]]
    outcomes = dict.fromkeys(outcome(workload, trigger) for workload in workloads)
    return " or ".join(text for text in outcomes if text != "·") or "·"


def table() -> str:
    columns = list(situations())
    rows = list(triggers(situations()["queued"][0]))
    lines = ["| what happens | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {row} | " + " | ".join(cell(column, row) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def test_table_of_states_matches_the_code() -> None:
    expected = table()
    assert expected in DOCUMENT.read_text(), f"docs/concepts/states.md should hold this table:\n{expected}"


def test_document_names_every_state() -> None:
    text = DOCUMENT.read_text()
    assert [state for state in State if f"`{state}`" not in text] == []


def test_times_before_the_allocation_become_that_of_the_allocation() -> None:
    """Else a site could take usage off a tenant."""
    workload = factories.workload()
    workload = step(workload, AllocationAssigned(allocation_for(workload)), NOW).workload
    assert workload.attempt is not None
    name = workload.attempt.id
    running = step(workload, StatusReported(Status(name, Phase.RUNNING, NOW - 1e6, started_at=NOW - 1e7)), NOW)
    assert running.workload.attempt is not None
    assert running.workload.attempt.started_at == NOW
    for before in (workload, running.workload):
        ended = step(before, StatusReported(Status(name, Phase.ENDED, NOW - 1e6, exit_code=0)), NOW).workload
        assert ended.attempt is not None
        assert ended.attempt.ended_at == NOW


@pytest.mark.parametrize("kind", [Kind.SESSION, Kind.JOB])
def test_a_workload_that_a_cluster_did_not_place_queues_again_after_a_pause(kind: Kind) -> None:
    cause = attempts.PodUnschedulable(node="n1", error="Insufficient cpu")
    for refuse in ("status", "start"):
        workload = factories.workload(spec_=factories.spec(kind=kind, requeue=False))
        workload = step(workload, AllocationAssigned(allocation_for(workload)), NOW).workload
        assert workload.attempt is not None
        status = Status(workload.attempt.id, Phase.ENDED, NOW + 1, reason=cause)
        refused = StartRefused(workload.attempt.id, cause) if refuse == "start" else StatusReported(status)
        after = step(workload, refused, NOW + 1).workload
        assert after.state is State.HELD
        assert after.reason == waiting.PlacementRetryScheduled(pause_s=2.0, attempt=1, cause=cause)
        assert after.not_before == NOW + 3
        assert after.losses == after.retried == 0
        assert step(after, PreconditionsMet(), NOW + 3).workload.state is State.QUEUED
