"""Spans of workloads for traces: each state that a workload leaves is a span below the request that submitted it."""

from __future__ import annotations

from commonage import tracing
from commonage.domain.workloads import State, Workload

_NAMES = {State.HELD: "held", State.QUEUED: "queue", State.STARTING: "start", State.RUNNING: "run"}


class WorkloadTraces:
    """Follows the writer, in the order of its writes."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[State, float]] = {}

    def changed(self, workload: Workload) -> None:
        if not workload.spec.traceparent:
            return
        before, now = self._since.get(workload.id), (workload.state, workload.since)
        if workload.state.is_terminal:
            self._since.pop(workload.id, None)
        else:
            self._since[workload.id] = now
        if before is not None and before != now:
            state, began = before
            attempt = workload.attempt
            tracing.record(
                f"workload.{_NAMES[state]}",
                workload.spec.traceparent,
                began,
                workload.since,
                workload=workload.id,
                kind=workload.spec.kind.value,
                tenant=workload.spec.tenant,
                state=workload.state.value,
                attempt=workload.attempts,
                site="" if attempt is None else attempt.allocation.site,
                node="" if attempt is None else attempt.allocation.node,
            )
