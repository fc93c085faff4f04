"""How long the planner takes over a large cluster and a long queue, as the schedule loop calls it: live state, then
plan.

The benchmark `schedule` prints it. Each size is measured in a process of its own, so that its memory counts alone.
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

from benchmarks.planner.crowd import DEVICES, NOW, QUEUED, Crowd, ended
from commonage.control.state.live_state import LiveState
from commonage.domain.workloads import State, Workload
from commonage.scheduler.plan import Plan, plan

STEPS = 50


@dataclass(frozen=True, slots=True)
class Took:
    """Milliseconds on the clock: the median and the 95th percentile; `cpu_ms` is the median of this process's own."""

    median_ms: float
    p95_ms: float
    cpu_ms: float

    @classmethod
    def of(cls, samples: Sequence[tuple[float, float]]) -> Took:
        """From (seconds on the clock, seconds of CPU) of each."""
        clock = sorted(one * 1000 for one, _ in samples)
        cpu = [one * 1000 for _, one in samples]
        return cls(statistics.median(clock), clock[math.ceil(0.95 * (len(clock) - 1))], statistics.median(cpu))


@dataclass(frozen=True, slots=True)
class Row:
    """One size. `first` is the first pass over the whole queue, `changed` the next, when all that it started is held,
    `whole` one over everything when nothing changed; then passes after one arrival, and after one departure.
    """

    nodes: int
    devices: int
    running: int
    queued: int
    sorts: int
    started: int
    first: Took
    changed: Took
    whole: Took
    arrival: Took
    departure: Took
    memory_mib: float


def measure(sizes: Sequence[int]) -> Iterator[Row]:
    """A row for each number of nodes, the queue in proportion."""
    for nodes in sizes:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            yield alone.submit(measured, nodes).result()


def measured(nodes: int, steps: int = STEPS) -> Row:
    """One size, in this process."""
    crowd, live_state = Crowd(nodes), LiveState()
    live_state.put_nodes(crowd.nodes)
    for workload in crowd.first():
        live_state.put(workload)
    _carry_out(crowd, live_state, plan(live_state.snapshot, NOW - 1000), crowd.some_time_ago)
    for left in live_state.in_state(State.QUEUED):
        live_state.put(replace(left, state=State.STOPPED))
    for number in range(nodes * QUEUED):
        live_state.put(crowd.queued(NOW - 50_000 + 50_000 * number / (nodes * QUEUED)))
    running, queued = len(live_state.held()), live_state.queue_length()
    at = iter(range(1, 1_000_000))
    first, started = _pass(crowd, live_state, at, lambda _now: None)
    changed, _ = _pass(crowd, live_state, at, lambda _now: None)
    whole = [_pass(crowd, live_state, at, lambda _now: None)[0] for _ in range(5)]
    arrivals = [_pass(crowd, live_state, at, lambda now: live_state.put(crowd.queued(now)))[0] for _ in range(steps)]
    departures = []
    for _ in range(steps):
        gone = crowd.one_of(live_state.in_state(State.RUNNING))
        departures.append(_pass(crowd, live_state, at, partial(_end, live_state, gone))[0])
    return Row(
        nodes=nodes,
        devices=nodes * DEVICES,
        running=running,
        queued=queued,
        sorts=len({queued.request for queued in live_state.snapshot.queue}),
        started=started,
        first=Took.of([first]),
        changed=Took.of([changed]),
        whole=Took.of(whole),
        arrival=Took.of(arrivals),
        departure=Took.of(departures),
        memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _pass(
    crowd: Crowd, live_state: LiveState, at: Iterator[int], happens: Callable[[float], None]
) -> tuple[tuple[float, float], int]:
    """What happens, and the pass after it, timed; then what it plans is carried out."""
    now = NOW + next(at)
    clock, cpu = time.perf_counter(), time.process_time()
    happens(now)
    outcome = plan(live_state.snapshot, now)
    took = (time.perf_counter() - clock, time.process_time() - cpu)
    _carry_out(crowd, live_state, outcome, lambda: now)
    return took, len(outcome.started)


def _end(live_state: LiveState, workload: Workload, now: float) -> None:
    live_state.put(ended(workload, now))


def _carry_out(crowd: Crowd, live_state: LiveState, outcome: Plan, since: Callable[[], float]) -> None:
    for workload_id, allocation in outcome.starts:
        workload = live_state.get(workload_id)
        if workload is not None:
            live_state.put(crowd.begun(workload, allocation, since()))
