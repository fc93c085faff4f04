"""The life of a workload as one pure function: step(workload, happening, now) -> Step(workload, effects).

Control calls it for every event; nothing else changes a workload's state. An event that has no meaning in the present
state changes nothing. See docs/concepts/states.md for the picture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from commonage.domain.nodes import Allocation
from commonage.domain.reasons import Reason, attempts, waiting
from commonage.domain.statuses import Phase, Status
from commonage.domain.workloads import (
    MAX_LOSSES,
    Attempt,
    EventKind,
    Kind,
    Spec,
    State,
    StopCause,
    StopRequest,
    Workload,
    attempt_id,
)

FIRST_PLACEMENT_PAUSE_S, LONGEST_PLACEMENT_PAUSE_S = 2.0, 300.0

# --- what can happen ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreconditionsMet:
    """Nothing holds it back any more: dependencies are met, the pause is over."""


@dataclass(frozen=True, slots=True)
class PreconditionMissing:
    reason: Reason


@dataclass(frozen=True, slots=True)
class AllocationAssigned:
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class StatusReported:
    status: Status


@dataclass(frozen=True, slots=True)
class StartRefused:
    attempt_id: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class AttemptLost:
    attempt_id: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class StopRequested:
    stop: StopRequest


@dataclass(frozen=True, slots=True)
class TimeLimitNear:
    left_s: float


@dataclass(frozen=True, slots=True)
class IdleWarned:
    reason: Reason


@dataclass(frozen=True, slots=True)
class IdleWarningWithdrawn:
    """Something happened in the session, or it no longer has a limit of idle time."""


@dataclass(frozen=True, slots=True)
class Extended:
    """It is kept until then, against its time limit and as idle."""

    until: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Reassigned:
    """It gets another owner or tenant, while it waits. `spec` differs in nothing else, except for the client key."""

    spec: Spec
    reason: Reason


Trigger = (
    PreconditionsMet
    | PreconditionMissing
    | AllocationAssigned
    | StatusReported
    | StartRefused
    | AttemptLost
    | StopRequested
    | TimeLimitNear
    | IdleWarned
    | IdleWarningWithdrawn
    | Extended
    | Reassigned
)

# --- what is to be done about it ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRun:
    attempt_id: str


@dataclass(frozen=True, slots=True)
class StopRun:
    attempt_id: str
    grace_s: int


@dataclass(frozen=True, slots=True)
class Record:
    """`state` of the workload at the event; None for that after the step."""

    kind: EventKind
    reason: Reason
    state: State | None = None


Effect = StartRun | StopRun | Record


@dataclass(frozen=True, slots=True)
class Step:
    """The workload after an event, and the effects to carry out once it is written."""

    workload: Workload
    effects: tuple[Effect, ...] = ()


# --- the step -----------------------------------------------------------------------------------------------------


def step(workload: Workload, trigger: Trigger, now: float) -> Step:
    match trigger:
        case PreconditionsMet():
            return _preconditions_met(workload, now)
        case PreconditionMissing(reason):
            return _precondition_missing(workload, reason, now)
        case AllocationAssigned(allocation):
            return _allocated(workload, allocation, now)
        case StatusReported(status):
            return _status_reported(workload, status, now)
        case StartRefused(attempt, reason):
            return _ended_without_code(workload, attempt, State.FAILED, reason, now)
        case AttemptLost(attempt, reason):
            return _ended_without_code(workload, attempt, State.LOST, reason, now)
        case StopRequested(stop):
            return _stop_asked(workload, stop, now)
        case TimeLimitNear() | IdleWarned() | IdleWarningWithdrawn() | Extended():
            return _while_it_runs(workload, trigger, now)
        case Reassigned(spec, reason):
            return _reassigned(workload, spec, reason)
    assert_never(trigger)


def _preconditions_met(workload: Workload, now: float) -> Step:
    if workload.state is not State.HELD:
        return Step(workload)
    after = replace(workload, state=State.QUEUED, since=now, not_before=None, reason=waiting.InQueue())
    return Step(after, (Record(EventKind.QUEUED, after.reason),))


def _precondition_missing(workload: Workload, reason: Reason, now: float) -> Step:
    if not workload.state.waits or (workload.state is State.HELD and workload.reason == reason):
        return Step(workload)
    after = replace(workload, state=State.HELD, since=now, not_before=None, reason=reason)
    return Step(after, (Record(EventKind.HELD, reason),))


def started_by_site(workload: Workload, allocation: Allocation, now: float) -> Workload:
    """A queued workload, with the first attempt that its site started without the control plane."""
    return _allocated(workload, allocation, now).workload


def _allocated(workload: Workload, allocation: Allocation, now: float) -> Step:
    number = workload.attempts + 1
    if workload.state is not State.QUEUED or allocation.attempt_id != attempt_id(workload.id, number):
        return Step(workload)
    attempt = Attempt(allocation.attempt_id, workload.id, number, State.STARTING, allocation)
    reason = attempts.Starting(node=allocation.node_key.label)
    after = replace(
        workload,
        state=State.STARTING,
        since=now,
        reason=reason,
        attempt=attempt,
        warned=False,
        kept_until=None,
        idle_warned_at=None,
    )
    return Step(after, (Record(EventKind.STARTING, reason), StartRun(attempt.id)))


def _status_reported(workload: Workload, status: Status, now: float) -> Step:
    attempt = workload.attempt
    if attempt is None or attempt.id != status.attempt_id or attempt.state.is_terminal:
        # End an attempt that should not run: it appeared after it was given up.
        if status.phase is not Phase.ENDED:
            return Step(workload, (StopRun(status.attempt_id, 0),))
        return Step(workload)
    match status.phase:
        case Phase.STARTING:
            return _progressed(workload, attempt, status)
        case Phase.RUNNING:
            return _runs(workload, attempt, status, now)
        case Phase.ENDED:
            return _ended(workload, attempt, status, now)
    assert_never(status.phase)


def _progressed(workload: Workload, attempt: Attempt, status: Status) -> Step:
    if attempt.state is not State.STARTING or workload.stop is not None:
        return Step(workload)
    reason = status.reason
    if isinstance(reason, attempts.Starting):  # an engine knows the node, but not the site
        reason = attempts.Starting(node=attempt.allocation.node_key.label)
    if reason is None or reason == workload.reason:
        return Step(workload)
    return Step(replace(workload, reason=reason), (Record(EventKind.PROGRESS, reason),))


def _runs(workload: Workload, attempt: Attempt, status: Status, now: float) -> Step:
    if attempt.state is not State.STARTING:
        if workload.stop is None and status.url is not None and status.url != attempt.url:  # it has another address now
            workload = replace(workload, attempt=replace(attempt, url=status.url))
        return _warned(workload, status)
    started_at = max(status.started_at or status.at, attempt.allocation.at)
    running = replace(attempt, state=State.RUNNING, started_at=started_at, url=status.url)
    if workload.stop is not None:  # its stop is in progress: only the start matters
        begun = replace(attempt, started_at=running.started_at)
        return Step(workload if begun == attempt else replace(workload, attempt=begun))
    reason = attempts.Running(node=attempt.allocation.node_key.label)
    after = replace(workload, state=State.RUNNING, since=now, reason=reason, attempt=running)
    return Step(after, (Record(EventKind.RUNNING, reason, State.RUNNING),))


def _warned(workload: Workload, status: Status) -> Step:
    if workload.stop is not None or status.reason is None or status.reason == workload.reason:
        return Step(workload)
    return Step(replace(workload, reason=status.reason), (Record(EventKind.WARNING, status.reason),))


def _ended(workload: Workload, attempt: Attempt, status: Status, now: float) -> Step:
    """Its start is recorded, too, if it was not reported before: it ran while the site was unreachable, or briefly."""
    if attempt.started_at is None and status.started_at is not None:
        begun = _runs(workload, attempt, replace(status, at=status.started_at, reason=None, url=None), now)
        assert begun.workload.attempt is not None
        ended = _ended_now(begun.workload, begun.workload.attempt, status, now)
        return Step(ended.workload, (*begun.effects, *ended.effects))
    return _ended_now(workload, attempt, status, now)


def _ended_now(workload: Workload, attempt: Attempt, status: Status, now: float) -> Step:
    code = status.exit_code
    # An engine, or a site, may report any time: one before the allocation would take usage off its tenant.
    ended_at = max(status.at, attempt.started_at or attempt.allocation.at)
    attempt = replace(attempt, ended_at=ended_at, exit_code=code, url=None)
    if workload.stop is not None:
        return _ended_by_stop(workload, attempt, workload.stop, now)
    if code is None:
        if status.reason is not None and _never_ran(attempt, status.reason):
            return _queues_again(workload, attempt, status.reason, now)
        lost = status.reason or attempts.NodeLost(node=attempt.allocation.node_key.label)
        return _finish(workload, attempt, State.LOST, lost, now)
    if code == 0:
        return _finish(workload, attempt, State.SUCCEEDED, attempts.Completed(), now)
    return _finish(workload, attempt, State.FAILED, status.reason or reason_of_exit(code, status.oom), now)


def reason_of_exit(code: int, oom: bool = False) -> Reason:
    if oom:
        return attempts.OutOfMemory()
    if code == 126:
        return attempts.CommandNotExecutable()
    if code == 127:
        return attempts.CommandNotFound()
    if code > 128:
        return attempts.Signaled(exit_code=code, signal=code - 128)
    return attempts.ExitCode(exit_code=code)


def _ended_by_itself(workload: Workload, attempt: Attempt, stop: StopRequest) -> bool:
    """True if it ended well before the stop could reach it, or was a job that could finish while it was evicted.

    Preemptible workloads and gang members are excluded: there exit code 0 says that it saved its work, to resume later.
    """
    before = attempt.ended_at is not None and attempt.ended_at < stop.at
    spec = workload.spec
    finished = stop.cause is StopCause.EVICTION and spec.kind is Kind.JOB and not (spec.gang or spec.preemptible)
    return attempt.exit_code == 0 and (before or finished)


def _state_after_stop(stop: StopRequest) -> State:
    return State.TIMED_OUT if stop.cause is StopCause.TIME_LIMIT else State.STOPPED


def _ended_without_code(workload: Workload, attempt: str, state: State, reason: Reason, now: float) -> Step:
    current = workload.attempt
    if current is None or current.id != attempt or current.state.is_terminal:
        return Step(workload)
    ended = replace(current, ended_at=now, url=None)
    if workload.stop is not None:
        return _ended_by_stop(workload, ended, workload.stop, now)
    if _never_ran(ended, reason):
        return _queues_again(workload, ended, reason, now)
    return _finish(workload, ended, state, reason, now)


def _ended_by_stop(workload: Workload, attempt: Attempt, stop: StopRequest, now: float) -> Step:
    if _ended_by_itself(workload, attempt, stop):
        return _finish(workload, attempt, State.SUCCEEDED, attempts.Completed(), now)
    reason = _reason_of(stop)
    if stop.cause is not StopCause.EVICTION or workload.spec.kind is Kind.SESSION:
        # A session's kernels are gone, and its user may no longer wait for it.
        return _finish(workload, attempt, _state_after_stop(stop), reason, now)
    return _requeued(workload, replace(attempt, state=State.STOPPED), reason, now)


def _requeued(workload: Workload, attempt: Attempt, cause: Reason, now: float) -> Step:
    attempt, reason = replace(attempt, reason=cause), waiting.Requeued(cause=cause)
    after = replace(workload, state=State.QUEUED, since=now, reason=reason, attempt=attempt, stop=None, warned=False)
    return Step(after, (Record(EventKind.QUEUED, reason),))


def _never_ran(attempt: Attempt, reason: Reason) -> bool:
    return reason.never_ran and attempt.started_at is None


def _queues_again(workload: Workload, attempt: Attempt, cause: Reason, now: float) -> Step:
    """Nothing of it ran: also a session, or a workload that is not requeued after a loss, queues again.

    However often, but later each time.
    """
    pause = min(LONGEST_PLACEMENT_PAUSE_S, FIRST_PLACEMENT_PAUSE_S * 2 ** min(attempt.number - 1, 16))
    reason = waiting.PlacementRetryScheduled(pause_s=pause, attempt=attempt.number, cause=cause)
    after = replace(
        workload,
        state=State.HELD,
        since=now,
        reason=reason,
        attempt=replace(attempt, state=State.LOST, reason=cause),
        not_before=now + pause,
        warned=False,
    )
    return Step(after, (Record(EventKind.RETRYING, reason),))


def _finish(workload: Workload, attempt: Attempt, state: State, reason: Reason, now: float) -> Step:
    """End the attempt in `state`; the workload follows it, is requeued after a loss, or is held for a retry."""
    attempt = replace(attempt, state=state, reason=reason)
    spec, policy = workload.spec, workload.spec.retry
    # A session does not: its kernels are gone. Control has the hub start another one if its owner wanted that.
    if state is State.LOST and spec.requeue and spec.kind is not Kind.SESSION:
        if workload.losses < MAX_LOSSES:
            return _requeued(replace(workload, losses=workload.losses + 1), attempt, reason, now)
        reason = attempts.LostTooOften(losses=workload.losses + 1, cause=reason)
    if state in (State.FAILED, State.LOST) and workload.retried < policy.retries:
        retry = workload.retried + 1
        pause = policy.pause_before(retry)
        scheduled = waiting.RetryScheduled(
            retry=retry,
            retries=policy.retries,
            pause_s=pause,
            attempt=attempt.number,
            state=state.value,
            cause=reason,
        )
        after = replace(
            workload,
            state=State.HELD,
            since=now,
            reason=scheduled,
            attempt=attempt,
            not_before=now + pause,
            warned=False,
            retried=retry,
        )
        return Step(after, (Record(EventKind.RETRYING, scheduled),))
    after = replace(workload, state=state, since=now, reason=reason, attempt=attempt)
    return Step(after, (Record(EventKind.ENDED, reason),))


def _reason_of(stop: StopRequest) -> Reason:
    return stop.reason or attempts.StoppedBy(by=stop.by)


def _stop_asked(workload: Workload, stop: StopRequest, now: float) -> Step:
    evicted = workload.stop is not None and workload.stop.cause is StopCause.EVICTION
    if workload.state.is_terminal or (workload.stop is not None and (not evicted or stop.cause is StopCause.EVICTION)):
        return Step(workload)
    if workload.state.waits:
        if stop.cause is StopCause.EVICTION:
            return Step(workload)
        state, reason = _state_after_stop(stop), _reason_of(stop)
        after = replace(workload, state=state, since=now, stop=stop, reason=reason, not_before=None)
        return Step(after, (Record(EventKind.ENDED, reason),))
    attempt = workload.attempt
    if attempt is None:  # cannot happen: a workload with an allocation has an attempt
        return Step(workload)
    stopping = attempts.Stopping(cause=_reason_of(stop))
    after = replace(workload, stop=stop, reason=stopping)
    return Step(after, (Record(EventKind.STOPPING, stopping), StopRun(attempt.id, workload.spec.grace_s)))


def _reassigned(workload: Workload, spec: Spec, reason: Reason) -> Step:
    if not workload.state.waits or (workload.spec.owner, workload.spec.tenant) == (spec.owner, spec.tenant):
        return Step(workload)
    return Step(replace(workload, spec=spec), (Record(EventKind.AUDIT, reason),))


def _while_it_runs(
    workload: Workload, trigger: TimeLimitNear | IdleWarned | IdleWarningWithdrawn | Extended, now: float
) -> Step:
    """Warnings to the owner before a limit ends it, and extensions that the owner asks for."""
    match trigger:
        case TimeLimitNear(left_s):
            return _time_limit_near(workload, left_s)
        case IdleWarned(reason):
            return _idle_warned(workload, reason, now)
        case IdleWarningWithdrawn():
            return Step(replace(workload, idle_warned_at=None) if _runs_on(workload) else workload)
        case Extended(until, reason):
            return _extended(workload, until, reason)
    assert_never(trigger)


def _time_limit_near(workload: Workload, left_s: float) -> Step:
    if workload.warned or workload.stop is not None or not workload.state.holds_allocation:
        return Step(workload)
    near = attempts.TimeLimitNear(left_s=left_s)
    return Step(replace(workload, warned=True), (Record(EventKind.WARNING, near),))


def _runs_on(workload: Workload) -> bool:
    return workload.state is State.RUNNING and workload.stop is None


def _idle_warned(workload: Workload, reason: Reason, now: float) -> Step:
    if not _runs_on(workload) or workload.idle_warned_at is not None:
        return Step(workload)
    return Step(replace(workload, idle_warned_at=now), (Record(EventKind.WARNING, reason),))


def _extended(workload: Workload, until: float, reason: Reason) -> Step:
    if not _runs_on(workload) or until <= (workload.kept_until or 0.0):
        return Step(workload)
    deadline = workload.deadline
    warned = workload.warned and (deadline is None or until <= deadline)
    after = replace(workload, kept_until=until, idle_warned_at=None, warned=warned)
    return Step(after, (Record(EventKind.PROGRESS, reason),))
