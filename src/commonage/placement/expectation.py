"""When a workload that waits will start, as far as time limits tell: the plans to come, played through.

Called by explain.py. The answer is a promise of nothing: what ends early moves it and who comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commonage.placement.asks import Ask
from commonage.placement.plan import Pass
from commonage.placement.snapshot import Snapshot

MOST_AHEAD = 500  # asks, and
MOST_ENDS = 200  # ends that are played through: enough for a day's work, quick enough to answer while one types


@dataclass(frozen=True, slots=True)
class Expectation:
    """`at` is unix seconds, None where nothing tells; `basis` says what it rests on, or why nothing does."""

    at: float | None
    basis: str


def expect(snapshot: Snapshot, target: Ask, now: float) -> Expectation:
    """When `target`, which stands in the queue, starts if all use up their time limits and nobody new comes."""
    order = snapshot.order(now)
    slot = snapshot.queue.slot(target.workload_id)
    if slot < 0 or order.place(slot) >= MOST_AHEAD:
        return Expectation(None, f"nobody can say when: more than {MOST_AHEAD} stand ahead of it")
    order = order.only(np.arange(order.place(slot) + 1))  # nobody behind it delays it
    with snapshot.trial():
        for _ in range(MOST_ENDS):
            snapshot.ready(now)
            one = Pass(snapshot, now, order)
            one.run()
            if target.workload_id in one.started:
                return Expectation(now, "the time limits of what runs and of what waits ahead of it")
            order = order.only(~np.isin(order.slots, [snapshot.queue.slot(started) for started in one.started]))
            ends = snapshot.next_ends(now)
            if ends is None:
                return Expectation(None, "nobody can say when: what it waits for has no time limit")
            now, ended = ends
            for held in ended:
                snapshot.end(held)
    return Expectation(None, f"nobody can say when: the next {MOST_ENDS} ends make no room for it")
