"""Plays records through the scheduler on a clock that jumps from one event to the next. Called by `commonage replay`.

It uses the same snapshot, plan and rules as a server, but ideal engines: an allocated workload runs at once for its
recorded duration, and a preempted one restarts from the beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from commonage.domain.nodes import Node
from commonage.domain.requests import Request
from commonage.domain.tenants import Rules
from commonage.domain.workloads import attempt_id
from commonage.replay.figures import Capacity, Figures, ReplayedWorkload, Sample, figures
from commonage.replay.records import Record, Records
from commonage.scheduler.explain.explain import ever_fits
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.plan import Plan, plan
from commonage.scheduler.policies.registry import POLICIES, Maker
from commonage.scheduler.snapshot import Snapshot

REPLAN_AFTER_S = 300.0
"""Time between plans without an event, in seconds: timeouts, guarantees and reservations expire meanwhile."""
MAX_IDLE_PLANS = 2000  # after this number of plans without an event, the remaining workloads count as unfinished


@dataclass(frozen=True, slots=True)
class ReplayResult:
    ran: tuple[ReplayedWorkload, ...]
    samples: tuple[Sample, ...]
    capacity: Capacity

    @property
    def figures(self) -> Figures:
        return figures(self.ran, self.samples, self.capacity)


def runnable_records(records: Records, nodes: Sequence[Node]) -> Records:
    """The records that these nodes could ever run. Drops a GPU model that no node has from the request."""
    grid = Grid(nodes)
    models = " ".join(device.model for node in nodes for device in node.report.devices).casefold()
    kept: list[Record] = []
    renamed = 0
    for record in records.items:
        asked = _without_unknown_model(record.request, models)
        renamed += asked is not record.request
        if ever_fits(grid, asked) is None:
            kept.append(replace(record, request=asked))
    notes = list(records.notes)
    if renamed:
        notes.append(f"{renamed} requested a GPU model that no node has: replayed with any model")
    if len(kept) < len(records.items):
        notes.append(f"{len(records.items) - len(kept)} workloads are omitted: no node could run them")
    return Records(tuple(kept), tuple(notes))


def _without_unknown_model(request: Request, models: str) -> Request:
    gpu = request.gpu
    if gpu is None or gpu.model is None or any(name.strip().casefold() in models for name in gpu.model.split("|")):
        return request
    return replace(request, gpu=replace(gpu, model=None))


def play(
    records: Sequence[Record],
    nodes: Sequence[Node],
    rules: Rules,
    on_progress: Callable[[int], None] = lambda _ended: None,
    policies: Mapping[str, Maker] = POLICIES,
) -> ReplayResult:
    """Play `records` (at least one, ordered by submission) on `nodes` under `rules`.

    `on_progress` gets the number of ended records after each plan. `policies` are those that the rules may name.
    """
    replay = _Replay(nodes, rules, records, policies)
    for now in replay.instants():
        replay.plan_and_apply(now)
        on_progress(replay.ended)
    return replay.result()


@dataclass(slots=True)
class _RecordState:
    record: Record
    tries: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    preempted: int = 0


class _Replay:
    def __init__(
        self, nodes: Sequence[Node], rules: Rules, records: Sequence[Record], policies: Mapping[str, Maker]
    ) -> None:
        self.snapshot = Snapshot(nodes, rules, policies=policies)
        self.ended = 0
        self._nodes = nodes
        self._states = {record.id: _RecordState(record) for record in records}
        self._coming = deque(records)
        self._ends: list[tuple[float, int, str, int]] = []  # (at, start number, workload id, try)
        self._number = count()
        self._samples: list[Sample] = []
        self._gpu_milli = self._cpus_milli = 0

    def instants(self) -> Iterator[float]:
        """The times at which the scheduler runs, after all events up to then were applied to its snapshot."""
        idle_plans = 0
        now = 0.0
        while self._coming or self._ends or (len(self.snapshot.queue) and idle_plans < MAX_IDLE_PLANS):
            before, now = now, self._next()
            happened = False
            if now == float("inf") or (len(self.snapshot.queue) and now > before + REPLAN_AFTER_S):
                now = before + REPLAN_AFTER_S
            while self._ends and self._ends[0][0] <= now:
                happened |= self._end(*self._ends[0])
                heappop(self._ends)
            while self._coming and self._coming[0].submitted_at <= now:
                record = self._coming.popleft()
                self.snapshot.arrived(record.request)
                self.snapshot.enqueue(_queued(self._states[record.id]))
                happened = True
            idle_plans = 0 if happened or self._ends or self._coming else idle_plans + 1
            if happened or len(self.snapshot.queue):
                yield now
                self._samples.append(Sample(now, self._gpu_milli, self._cpus_milli, len(self.snapshot.queue)))

    def _next(self) -> float:
        coming = self._coming[0].submitted_at if self._coming else float("inf")
        return min(coming, self._ends[0][0] if self._ends else float("inf"))

    def plan_and_apply(self, now: float) -> None:
        while len(self.snapshot.queue):
            outcome = plan(self.snapshot, now)
            self._apply(outcome, now)
            if not outcome.evictions:
                return

    def _apply(self, outcome: Plan, now: float) -> None:
        for workload_id, allocated in outcome.started.items():
            state = self._states[workload_id]
            state.tries += 1
            state.started_at = now if state.started_at is None else state.started_at
            self.snapshot.dequeue(workload_id)
            self.snapshot.allocate(allocated)
            self._count(allocated, 1)
            heappush(self._ends, (now + state.record.duration_s, next(self._number), workload_id, state.tries))
        for eviction in outcome.evictions:
            state = self._states[eviction.workload_id]
            state.preempted += 1
            self._release(eviction.workload_id, now)
            self.snapshot.enqueue(_queued(state))

    def _end(self, at: float, _number: int, workload_id: str, tries: int) -> bool:
        state, allocated = self._states[workload_id], self.snapshot.allocated.get(workload_id)
        if allocated is None or allocated.allocation.attempt_id != attempt_id(workload_id, tries):
            return False  # it was preempted meanwhile
        state.ended_at = at
        self.ended += 1
        self._release(workload_id, at)
        return True

    def _release(self, workload_id: str, at: float) -> None:
        self._count(self.snapshot.allocated[workload_id], -1)
        self.snapshot.release(workload_id, at)

    def _count(self, allocated: AllocatedRequest, sign: int) -> None:
        self._gpu_milli += sign * sum(share.compute_milli for share in allocated.allocation.shares)
        self._cpus_milli += sign * allocated.allocation.cpus_milli

    def result(self) -> ReplayResult:
        capacity = Capacity(
            gpu_milli=1000 * sum(len(node.report.devices) for node in self._nodes),
            cpus_milli=sum(node.report.cpus_milli for node in self._nodes),
        )
        ran = (
            ReplayedWorkload(state.record, state.started_at, state.ended_at, state.preempted)
            for state in self._states.values()
        )
        return ReplayResult(tuple(ran), tuple(self._samples), capacity)


def _queued(state: _RecordState) -> QueuedRequest:
    record = state.record
    return QueuedRequest(
        workload_id=record.id,
        request=record.request,
        priority=record.priority,
        submitted_at=record.submitted_at,
        time_limit_s=record.time_limit_s,
        owner=record.owner,
        tenant=record.tenant,
        kind=record.kind,
        environment=record.environment,
        preemptible=record.preemptible,
        attempt=state.tries + 1,
    )
