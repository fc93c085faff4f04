"""When a workload that waits will start, as far as time limits tell: the plans to come, played through.

Called by explain.py. The answer is a promise of nothing: what ends early or comes with a higher priority moves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from commonage.placement.plan import fill
from commonage.placement.rooms import rooms_of
from commonage.placement.snapshot import Ask, Snapshot

MOST_AHEAD = 500  # asks, and
MOST_ENDS = 200  # ends that are played through: enough for a day's work, quick enough to answer while one types


@dataclass(frozen=True, slots=True)
class Expectation:
    """`at` is unix seconds, None where nothing tells; `basis` says what it rests on, or why nothing does."""

    at: float | None
    basis: str


def expect(snapshot: Snapshot, target: Ask, queue: Sequence[Ask]) -> Expectation:
    """When `target`, which stands in `queue`, starts if all use up their time limits and nobody new comes."""
    waiting = list(islice(queue, MOST_AHEAD))
    if target.order > waiting[-1].order:
        return Expectation(None, f"nobody can say when: more than {MOST_AHEAD} stand ahead of it")
    rooms = rooms_of(snapshot.nodes, (one.lease for one in snapshot.held))
    held, now = list(snapshot.held), snapshot.now
    for _ in range(MOST_ENDS):
        started = {ask.workload_id for ask, _ in fill(waiting, rooms, held, now)[0]}
        if target.workload_id in started:
            return Expectation(now, "the time limits of what runs and of what waits ahead of it")
        waiting = [ask for ask in waiting if ask.workload_id not in started]
        ends = [max(now, one.ends_at) for one in held if one.ends_at is not None]
        if not ends:
            return Expectation(None, "nobody can say when: what it waits for has no time limit")
        now = min(ends)
        for one in held:
            if one.ends_at is not None and one.ends_at <= now and one.lease.node in rooms:
                rooms[one.lease.node].take(one.lease, -1)
        held = [one for one in held if one.ends_at is None or one.ends_at > now]
    return Expectation(None, f"nobody can say when: the next {MOST_ENDS} ends make no room for it")
