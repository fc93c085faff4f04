"""Everything that can happen to a workload, and workloads in every situation: shared by the tests of the lifecycle."""

from __future__ import annotations

from dataclasses import replace

from commonage.domain.lifecycle import (
    AllocationAssigned,
    AttemptLost,
    PreconditionMissing,
    PreconditionsMet,
    StartRefused,
    StatusReported,
    StopRequested,
    TimeLimitNear,
    Trigger,
    step,
)
from commonage.domain.nodes import Allocation
from commonage.domain.reasons import attempts, waiting
from commonage.domain.statuses import Phase, Status
from commonage.domain.workloads import RetryPolicy, State, StopCause, StopRequest, Workload, attempt_id
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
        "seen starting": status_reported(attempt, Phase.STARTING, at),
        "seen running": status_reported(attempt, Phase.RUNNING, at),
        "seen ended, exit code 0": status_reported(attempt, Phase.ENDED, at, 0),
        "seen ended, another code": status_reported(attempt, Phase.ENDED, at, 1),
        "seen ended, nobody knows how": status_reported(attempt, Phase.ENDED, at),
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
        "being stopped": [step(one, StopRequested(stop()), NOW).workload for one in lived],
        "over its limit": [step(one, StopRequested(stop(StopCause.TIME_LIMIT)), NOW).workload for one in lived],
        "evicted": [step(one, StopRequested(stop(StopCause.EVICTION)), NOW).workload for one in lived],
        "ended": [
            replace(running, state=state, attempt=replace(running.attempt, state=state))  # type: ignore[type-var]
            for state in State
            if state.is_terminal
        ],
    }
