"""`plan`: one pass over 10,000 queued jobs, an explanation of the last of them, and the reasons for a page of 100.

With 3 and 1,000 request classes, on 1 to 100 nodes, with and without time limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import product
from statistics import median
from typing import Any

import click

from benchmarks.report import Figure, as_json, progress, show
from commonage.control.state.live_state import LiveState
from commonage.domain.reasons.base import Reason
from commonage.domain.requests import GpuRequest, Request
from commonage.domain.workloads import Spec, State, Workload
from commonage.scheduler.explain.explain import explain, why_waiting
from commonage.scheduler.plan import plan as make_plan
from commonage.testing import factories

QUEUED = 10_000


@click.command
@as_json
def plan(as_json: bool) -> None:
    """Plans and explanations with 10,000 queued jobs.

    \b
    Example:
      python -m benchmarks plan
    """
    figures: list[Figure] = []
    for shapes, nodes, limits in product((3, 1000), (1, 10, 100), (False, True)):
        name = f"{shapes} shapes, nodes: {nodes}, {'with' if limits else 'no'} time limits"
        progress(name)
        figures += _measure(name, _filled(shapes, nodes, limits))
    click.echo(show(f"{QUEUED:,} queued jobs", figures, as_json=as_json))


def _requests(shapes: int) -> Iterator[Request]:
    if shapes == 3:
        yield from (
            Request(1000, 1024),
            Request(2000, 4096, GpuRequest(vram_mib=6144)),
            Request(4000, 8192, GpuRequest(whole=1)),
        )
        return
    for number in range(shapes):
        yield Request(1000 + number, 1024 + number, GpuRequest(vram_mib=1024 + 20 * number) if number % 2 else None)


def _filled(shapes: int, nodes: int, limits: bool) -> LiveState:
    """A live state whose nodes are full and whose queue is long."""
    live_state = LiveState()
    live_state.put_nodes([factories.node(f"n{i:03}", 4, cpus_milli=32_000) for i in range(nodes)])
    wanted = list(_requests(shapes))
    specs: list[Spec] = [
        factories.spec(request=request, time_limit_s=600 + 60 * (i % 7) if limits else None)
        for i, request in enumerate(wanted)
    ]
    for number in range(QUEUED):
        live_state.put(factories.workload(State.QUEUED, spec_=specs[number % len(specs)]))
    for name in live_state.nodes:
        for device in live_state.nodes[name].report.devices:
            one: Workload = factories.workload(State.STARTING, time_limit_s=3600 if limits else None)
            allocation = factories.allocation(
                f"{one.id}-1",
                node=name.name,
                shares=[factories.share(device, memory_mib=device.memory_mib)],
                cpus_milli=7900,
            )
            held = factories.attempt(one.id, state=State.STARTING, allocation=allocation)
            live_state.put(factories.changed(one, attempt=held))
    return live_state


def _milliseconds(work: Callable[[], Any], times: int = 5) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return median(taken) * 1000


def _measure(name: str, live_state: LiveState) -> list[Figure]:
    now = factories.NOW + 1
    snapshot = live_state.snapshot
    first = _milliseconds(lambda: make_plan(snapshot, now), 1)
    outcome = make_plan(snapshot, now)
    page = [
        queued
        for slot in outcome.order.slots[QUEUED // 2 :][:100]
        if (queued := snapshot.queue.queued_requests[slot]) is not None
    ]
    hundredth, last = (snapshot.queue.queued_requests[outcome.order.slots[place]] for place in (99, -1))
    assert hundredth is not None
    assert last is not None

    def reasons() -> list[Reason]:
        outcome.reasons.clear()
        return [
            why_waiting(snapshot, outcome, queued, live_state.position(queued.workload_id, now) or 0) for queued in page
        ]

    explain_last = _milliseconds(lambda: explain(snapshot, last, now), 3)
    explain_hundredth = _milliseconds(lambda: explain(snapshot, hundredth, now), 3)
    return [
        Figure(f"{name}: first plan", first, "ms", "once"),
        Figure(f"{name}: plan", _milliseconds(lambda: make_plan(snapshot, now)), "ms", "median of 5"),
        Figure(f"{name}: explain the last", explain_last, "ms", "median of 3"),
        Figure(f"{name}: explain the 100th", explain_hundredth, "ms", "the same"),
        Figure(f"{name}: reasons for a page of 100", _milliseconds(reasons), "ms", "median of 5"),
    ]
