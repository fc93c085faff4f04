"""The plan: which workloads start now, and where. Priority, then age; best fit over VRAM.

A request that does not fit lets later ones that do pass it; but where time limits tell when the first that waits can
start, nothing that would still run then is put in its way (see promise.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from commonage.domain.fleet import Lease
from commonage.placement.promise import Promise, promise_for
from commonage.placement.rooms import Ceiling, Room, rooms_of
from commonage.placement.snapshot import Ask, Held, Snapshot

MOST_PROMISE_TRIES = 8  # where the first that wait have no time limits ahead of them, later ones soon have none either


@dataclass(frozen=True, slots=True)
class Plan:
    """What starts: (workload id, lease) in order. `rooms` is what is left then, `promise` what is kept for the first
    that waits, `held` all that is held afterwards. `words` remembers what explain.py says to each shape."""

    starts: tuple[tuple[str, Lease], ...]
    rooms: dict[str, Room]
    held: tuple[Held, ...]
    promise: Promise | None = None
    words: dict[tuple[int, int | None], tuple[str, ...]] = field(default_factory=dict, compare=False)


def plan(snapshot: Snapshot) -> Plan:
    """Go through the queue once and start what fits. The same snapshot gives the same plan."""
    rooms = rooms_of(snapshot.nodes, (held.lease for held in snapshot.held))
    held = list(snapshot.held)
    started, promise = fill(snapshot.queue, rooms, held, snapshot.now)
    return Plan(tuple((ask.workload_id, lease) for ask, lease in started), rooms, tuple(held), promise)


def fill(
    queue: Iterable[Ask], rooms: dict[str, Room], held: list[Held], now: float
) -> tuple[list[tuple[Ask, Lease]], Promise | None]:
    """One pass: takes what starts out of `rooms` and adds it to `held`; what started, and the promise made."""
    started: list[tuple[Ask, Lease]] = []
    promise: Promise | None = None
    tries = 0
    ceiling = Ceiling.over(rooms.values())
    lower = False  # something started since the ceiling was taken
    # Equal requests meet equal answers within a pass, as room only shrinks; beside a promise the time limit counts too.
    nowhere: set[int] = set()
    in_the_way: set[tuple[int, int | None]] = set()
    for ask in queue:
        if ask.shape in nowhere or (in_the_way and (ask.shape, ask.time_limit_s) in in_the_way):
            continue
        covered = ceiling.covers(ask.request)
        lease = place(ask, rooms, promise, now) if covered else None
        if lease is not None:
            rooms[lease.node].take(lease)
            held.append(held_by(ask, lease, now))
            started.append((ask, lease))
            lower = True
            if promise is not None:
                promise.note(ask, lease, now)
            continue
        if covered and promise is not None and any(room.fits(ask.request) for room in rooms.values()):
            in_the_way.add((ask.shape, ask.time_limit_s))
            continue
        nowhere.add(ask.shape)
        if lower:
            ceiling, lower = Ceiling.over(rooms.values()), False
        if promise is None and tries < MOST_PROMISE_TRIES:
            tries += 1
            promise = promise_for(ask, rooms, held, now)
    return started, promise


def place(ask: Ask, rooms: dict[str, Room], promise: Promise | None, now: float) -> Lease | None:
    """The lease that leaves the least room unused, of those that keep the promise; None if there is none."""
    usable = (room if promise is None else promise.beside(room, ask, now) for room in rooms.values())
    fitting = [room for room in usable if room.fits(ask.request)]
    if not fitting:
        return None
    best = min(fitting, key=lambda room: (room.left_after(ask.request), room.node.name))
    return best.lease_for(ask.attempt_id, ask.request, now)


def held_by(ask: Ask, lease: Lease, now: float) -> Held:
    """The lease of an ask that starts now, as the next snapshot would show it."""
    ends_at = None if ask.time_limit_s is None else now + ask.time_limit_s
    return Held(lease, ask.workload_id, "", "", "", ends_at)
