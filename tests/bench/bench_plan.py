"""How long the planner takes: `python tests/bench/bench_plan.py`. Figures for a person to read; nothing is asserted.

One pass over 10,000 that wait, an explanation of the last of them, and the words for a page of 100: with three
shapes of request and with 1,000, on one machine and on 100, with and without time limits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from commonage.control.board import Board
from commonage.domain.requests import GpuRequest, Request
from commonage.domain.workloads import Spec, State, Workload
from commonage.placement.explain import explain, why_waiting
from commonage.placement.plan import plan
from commonage.testing import factories

QUEUED = 10_000


def requests(shapes: int) -> Iterator[Request]:
    if shapes == 3:
        yield from (
            Request(1000, 1024),
            Request(2000, 4096, GpuRequest(vram_mib=6144)),
            Request(4000, 8192, GpuRequest(whole=1)),
        )
        return
    for number in range(shapes):
        yield Request(1000 + number, 1024 + number, GpuRequest(vram_mib=1024 + 20 * number) if number % 2 else None)


def filled(shapes: int, nodes: int, limits: bool) -> Board:
    """A board whose machines are full and whose queue is long."""
    board = Board()
    board.put_nodes([factories.node(f"n{i:03}", 4, cpus_milli=32_000) for i in range(nodes)])
    wanted = list(requests(shapes))
    specs: list[Spec] = [
        factories.spec(request=request, time_limit_s=600 + 60 * (i % 7) if limits else None)
        for i, request in enumerate(wanted)
    ]
    for number in range(QUEUED):
        board.put(factories.workload(State.QUEUED, spec_=specs[number % len(specs)]))
    for name in board.nodes:
        for card in board.nodes[name].report.devices:
            one: Workload = factories.workload(State.STARTING, time_limit_s=3600 if limits else None)
            lease = factories.lease(
                f"{one.id}-1", node=name, shares=[factories.share(card, memory_mib=card.memory_mib)], cpus_milli=7900
            )
            held = factories.attempt(one.id, state=State.STARTING, lease=lease)
            board.put(factories.changed(one, attempt=held))
    return board


def milliseconds(what: Callable[[], Any], times: int = 5) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        what()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def measure(board: Board) -> tuple[float, ...]:
    """First plan, plan, explanation of the last and of the 100th, words for a page of 100: milliseconds each."""
    now = factories.NOW + 1
    snapshot = board.snapshot
    first = milliseconds(lambda: plan(snapshot, now), 1)
    outcome = plan(snapshot, now)
    page = [ask for slot in outcome.order.slots[QUEUED // 2 :][:100] if (ask := snapshot.queue.asks[slot]) is not None]
    hundredth, last = (snapshot.queue.asks[outcome.order.slots[place]] for place in (99, -1))
    assert hundredth is not None
    assert last is not None

    def words() -> list[str]:
        outcome.words.clear()
        return [why_waiting(snapshot, outcome, ask, board.position(ask.workload_id, now) or 0) for ask in page]

    return (
        first,
        milliseconds(lambda: plan(snapshot, now)),
        milliseconds(lambda: explain(snapshot, last, now), 3),
        milliseconds(lambda: explain(snapshot, hundredth, now), 3),
        milliseconds(words),
    )


def main() -> None:
    print(f"{QUEUED} queued; milliseconds, median of 5")
    print("shapes nodes limits     first      plan  explain last  explain 100th  page of 100")
    for shapes, nodes, limits in product((3, 1000), (1, 10, 100), (False, True)):
        a, b, c, d, e = measure(filled(shapes, nodes, limits))
        print(f"{shapes:>6} {nodes:>5} {limits!s:>6} {a:>9.2f} {b:>9.2f} {c:>13.2f} {d:>14.2f} {e:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
