"""Reads ended workloads from the store as records. Called by `commonage replay`."""

from __future__ import annotations

from commonage.domain.workloads import TERMINAL, Workload
from commonage.ports.store import Filter, Store
from commonage.replay.records import Record, Records, by_submission, left_out

PAGE = 1000


async def read_history(store: Store, *, since: float | None = None) -> Records:
    """All workloads submitted since then (unix seconds; None: ever) that started and ended."""
    found: list[Record] = []
    unstarted = 0
    cursor = None
    while True:
        page = await store.workloads(Filter(states=TERMINAL, submitted_after=since), limit=PAGE, cursor=cursor)
        records = [record_of(workload) for workload in page.items]
        found += [record for record in records if record is not None]
        unstarted += sum(record is None for record in records)
        cursor = page.next_cursor
        if cursor is None:
            break
    return Records(tuple(by_submission(found)), left_out(unstarted))


def record_of(workload: Workload) -> Record | None:
    """The record of its last attempt; None without an attempt, or before its end."""
    attempt, spec = workload.attempt, workload.spec
    if attempt is None or attempt.ended_at is None:
        return None
    began = attempt.started_at or attempt.allocation.at
    return Record(
        id=workload.id,
        owner=spec.owner,
        tenant=spec.tenant,
        request=spec.request,
        submitted_at=workload.submitted_at,
        duration_s=max(1.0, attempt.ended_at - began),
        kind=spec.kind,
        environment=spec.environment,
        priority=spec.priority,
        preemptible=spec.preemptible,
        time_limit_s=spec.time_limit_s,
        waited_s=max(0.0, attempt.allocation.at - workload.submitted_at) if attempt.number == 1 else None,
    )
