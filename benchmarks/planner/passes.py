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

from benchmarks.planner.synthetic import DEVICES, NOW, QUEUED, SyntheticCluster, ended
from commonage.control.state.live_state import LiveState
from commonage.domain.workloads import State, Workload
from commonage.scheduler.plan import Plan, plan

STEPS = 50


@dataclass(frozen=True, slots=True)
class Durations:
    """Wall-clock milliseconds: median and 95th percentile. `cpu_ms` is the median CPU time of this process."""

    median_ms: float
    p95_ms: float
    cpu_ms: float

    @classmethod
    def of(cls, samples: Sequence[tuple[float, float]]) -> Durations:
        """From (wall-clock seconds, CPU seconds) of each pass."""
        clock = sorted(one * 1000 for one, _ in samples)
        cpu = [one * 1000 for _, one in samples]
        return cls(statistics.median(clock), clock[math.ceil(0.95 * (len(clock) - 1))], statistics.median(cpu))


@dataclass(frozen=True, slots=True)
class Row:
    """One cluster size: the first pass over the whole queue, the next pass (`changed`) after all of its starts, passes
    without changes (`whole`), and passes after one arrival and after one departure.
    """

    nodes: int
    devices: int
    running: int
    queued: int
    request_classes: int
    started: int
    first: Durations
    changed: Durations
    whole: Durations
    arrival: Durations
    departure: Durations
    memory_mib: float


def measure(sizes: Sequence[int]) -> Iterator[Row]:
    """A row for each number of nodes; the queue is in proportion."""
    for nodes in sizes:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            yield alone.submit(measured, nodes).result()


def measured(nodes: int, steps: int = STEPS) -> Row:
    """Measure one size in this process."""
    cluster, live_state = SyntheticCluster(nodes), LiveState()
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
    first, started = _pass(cluster, live_state, at, lambda _now: None)
    changed, _ = _pass(cluster, live_state, at, lambda _now: None)
    whole = [_pass(cluster, live_state, at, lambda _now: None)[0] for _ in range(5)]
    arrivals = [
        _pass(cluster, live_state, at, lambda now: live_state.put(cluster.queued(now)))[0] for _ in range(steps)
    ]
    departures = []
    for _ in range(steps):
        gone = cluster.choose(live_state.in_state(State.RUNNING))
        departures.append(_pass(cluster, live_state, at, partial(_end, live_state, gone))[0])
    return Row(
        nodes=nodes,
        devices=nodes * DEVICES,
        running=running,
        queued=queued,
        request_classes=len({queued.request for queued in live_state.snapshot.queue}),
        started=started,
        first=Durations.of([first]),
        changed=Durations.of([changed]),
        whole=Durations.of(whole),
        arrival=Durations.of(arrivals),
        departure=Durations.of(departures),
        memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


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


def _end(live_state: LiveState, workload: Workload, now: float) -> None:
    live_state.put(ended(workload, now))


def _apply(cluster: SyntheticCluster, live_state: LiveState, outcome: Plan, started_at: Callable[[], float]) -> None:
    for workload_id, allocation in outcome.starts:
        workload = live_state.get(workload_id)
        if workload is not None:
            live_state.put(cluster.running(workload, allocation, started_at()))
