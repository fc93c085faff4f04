"""Time of scheduling passes over a large cluster and a long queue, run as by the schedule loop.

The benchmark `schedule` prints the rows. Each size runs in its own process, to measure its memory alone.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

from benchmarks.planner.synthetic import DEVICES, NOW, QUEUED, USERS, SyntheticCluster, ended
from commonage.control.loops.schedule import Slice
from commonage.control.state.live_state import LiveState, request_from_spec
from commonage.domain.workloads import State, Workload
from commonage.scheduler.explain.explain import explain
from commonage.scheduler.model.shapes import QueuedRequest
from commonage.scheduler.plan import Plan, all_starts, plan

STEPS = 50
FRONT = 500


@dataclass(frozen=True, slots=True)
class Durations:
    """Milliseconds, median and 95th percentile: of wall-clock time, and of the CPU time of this process."""

    median_ms: float
    p95_ms: float
    cpu_ms: float
    cpu_p95_ms: float

    @classmethod
    def of(cls, samples: Sequence[tuple[float, float]]) -> Durations:
        """From (wall-clock seconds, CPU seconds) of each pass."""
        clock, cpu = (sorted(one * 1000 for one in some) for some in zip(*samples, strict=True))
        at = math.ceil(0.95 * (len(clock) - 1))
        return cls(statistics.median(clock), clock[at], statistics.median(cpu), cpu[at])


@dataclass(frozen=True, slots=True)
class Row:
    """One cluster size: the first pass over the whole queue, at once and as the schedule loop cuts it (`cut`), the next
    pass (`changed`) after all of its starts, passes without changes (`whole`), and passes after one arrival and after
    one departure. Then explanations of queued workloads (`explain`: anywhere in the queue; `front`: of the first
    `FRONT`) and dry runs of new ones.
    """

    nodes: int
    users: int
    devices: int
    running: int
    queued: int
    request_classes: int
    started: int
    first: Durations
    cut: Durations
    changed: Durations
    whole: Durations
    arrival: Durations
    departure: Durations
    explain: Durations
    front: Durations
    dry_run: Durations
    memory_mib: float


def measure(sizes: Sequence[int], users: int = USERS, steps: int = STEPS) -> Iterator[Row]:
    """A row for each number of nodes; the queue is in proportion."""
    for nodes in sizes:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            yield alone.submit(measured, nodes, steps, users).result()


def measured(nodes: int, steps: int = STEPS, users: int = USERS) -> Row:
    """Measure one size in this process."""
    cluster, live_state = SyntheticCluster(nodes, users=users), LiveState()
    live_state.put_nodes(cluster.nodes)
    for workload in cluster.small_workloads():
        live_state.put(workload)
    _apply(cluster, live_state, plan(live_state.snapshot, NOW - 1000), cluster.recent_time)
    for left in live_state.in_state(State.QUEUED):
        live_state.put(replace(left, state=State.STOPPED))
    for number in range(nodes * QUEUED):
        live_state.put(cluster.queued(NOW - 50_000 + 50_000 * number / (nodes * QUEUED)))
    running, queued = len(live_state.allocated()), live_state.queue_length()
    at = iter(range(1, 1_000_000))
    first, outcome = _planned(live_state, NOW)
    started = len(outcome.started)
    cut = [_planned(live_state, NOW, cut=True)[0] for _ in range(6)][1:]  # the first warms the caches up again
    _apply(cluster, live_state, outcome, lambda: NOW)
    changed, _ = _pass(cluster, live_state, at, lambda _now: None)
    whole = [_pass(cluster, live_state, at, lambda _now: None)[0] for _ in range(5)]
    arrivals = [
        _pass(cluster, live_state, at, lambda now: live_state.put(cluster.queued(now)))[0] for _ in range(steps)
    ]
    departures = []
    for _ in range(steps):
        gone = cluster.choose(live_state.in_state(State.RUNNING))
        departures.append(_pass(cluster, live_state, at, partial(_end, live_state, gone))[0])
    now = NOW + next(at)
    explain_, front, dry_run = (
        Durations.of([_explained(live_state, one, now) for one in some])
        for some in _considered(cluster, live_state, now, steps)
    )
    return Row(
        nodes=nodes,
        users=users,
        devices=nodes * DEVICES,
        running=running,
        queued=queued,
        request_classes=len({queued.request for queued in live_state.snapshot.queue}),
        started=started,
        first=Durations.of([first]),
        cut=Durations.of(cut),
        changed=Durations.of([changed]),
        whole=Durations.of(whole),
        arrival=Durations.of(arrivals),
        departure=Durations.of(departures),
        explain=explain_,
        front=front,
        dry_run=dry_run,
        memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _planned(live_state: LiveState, now: float, *, cut: bool = False) -> tuple[tuple[float, float], Plan]:
    """A plan and its time. With `cut` it ends after the CPU time that the schedule loop gives to starts."""
    clock, cpu = time.perf_counter(), time.process_time()
    outcome = plan(live_state.snapshot, now, Slice(time.process_time).is_over if cut else all_starts)
    return (time.perf_counter() - clock, time.process_time() - cpu), outcome


def _pass(
    cluster: SyntheticCluster, live_state: LiveState, at: Iterator[int], change: Callable[[float], None]
) -> tuple[tuple[float, float], int]:
    """Apply a change and run a pass, timed; then apply the plan. Returns (seconds, number of starts)."""
    now = NOW + next(at)
    clock, cpu = time.perf_counter(), time.process_time()
    change(now)
    outcome = plan(live_state.snapshot, now)
    took = (time.perf_counter() - clock, time.process_time() - cpu)
    _apply(cluster, live_state, outcome, lambda: now)
    return took, len(outcome.started)


def _considered(
    cluster: SyntheticCluster, live_state: LiveState, now: float, steps: int
) -> Iterator[list[QueuedRequest]]:
    """Requests to explain: from anywhere in the queue, from its front, and new ones."""
    queue, slots = live_state.snapshot.queue, live_state.snapshot.order(now).slots.tolist()
    for some in (slots, slots[:FRONT]):
        chosen = [queue.queued_requests[slot] for slot in some[:: max(1, len(some) // steps)]]
        yield [one for one in chosen if one is not None]
    specs = (cluster.queued(now).spec for _ in range(steps))
    yield [request_from_spec(spec, "", now) for spec in specs]


def _explained(live_state: LiveState, queued: QueuedRequest, now: float) -> tuple[float, float]:
    clock, cpu = time.perf_counter(), time.process_time()
    explain(live_state.snapshot, queued, now)
    return time.perf_counter() - clock, time.process_time() - cpu


def _end(live_state: LiveState, workload: Workload, now: float) -> None:
    live_state.put(ended(workload, now))


def _apply(cluster: SyntheticCluster, live_state: LiveState, outcome: Plan, started_at: Callable[[], float]) -> None:
    for workload_id, allocation in outcome.starts:
        workload = live_state.get(workload_id)
        if workload is not None:
            live_state.put(cluster.running(workload, allocation, started_at()))
