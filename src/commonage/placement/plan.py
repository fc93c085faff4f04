"""The plan: which workloads start now, and where. Priority, then age; best fit over VRAM.

A request that does not fit lets later ones that do pass it; but where time limits tell when the first that waits can
start, nothing that would still run then is put in its way (see promise.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from commonage.domain.fleet import Lease
from commonage.placement.promise import Promise, promise_for
from commonage.placement.rooms import Room, rooms_of
from commonage.placement.snapshot import Ask, Held, Snapshot


@dataclass(frozen=True, slots=True)
class Plan:
    """What starts: (workload id, lease) in order. `rooms` is what is left then, `promise` what is kept for the first
    that waits, `held` all that is held afterwards."""

    starts: tuple[tuple[str, Lease], ...]
    rooms: dict[str, Room]
    held: tuple[Held, ...]
    promise: Promise | None = None


def plan(snapshot: Snapshot) -> Plan:
    """Go through the queue once and start what fits. The same snapshot gives the same plan."""
    rooms = rooms_of(snapshot.nodes, (held.lease for held in snapshot.held))
    starts: list[tuple[str, Lease]] = []
    held = list(snapshot.held)
    promise: Promise | None = None
    refused: set[tuple[int, int | None]] = set()
    for ask in snapshot.queue:
        # Equal requests meet equal answers within a pass, as room only shrinks; under a promise the time counts too.
        sort = (ask.shape, ask.time_limit_s if promise else None)
        if sort in refused or (ask.shape, None) in refused:
            continue
        lease = place(ask, rooms, promise, snapshot.now)
        if lease is None:
            refused.add(sort)
            promise = promise or promise_for(ask, rooms, held, snapshot.now)
            continue
        rooms[lease.node].take(lease)
        if promise is not None:
            promise.note(ask, lease, snapshot.now)
        starts.append((ask.workload_id, lease))
        held.append(held_by(ask, lease, snapshot.now))
    return Plan(tuple(starts), rooms, tuple(held), promise)


def place(ask: Ask, rooms: dict[str, Room], promise: Promise | None, now: float) -> Lease | None:
    """The lease that leaves the least room unused, of those that keep the promise; None if there is none."""
    fitting = [room for room in rooms.values() if room.refusal(ask.request) is None]
    fitting.sort(key=lambda room: (room.left_after(ask.request), room.node.name))
    for room in fitting:
        lease = lease_in(room, ask, now)
        if promise is None or promise.allows(ask, lease, now):
            return lease
    return None


def lease_in(room: Room, ask: Ask, now: float) -> Lease:
    """What `ask` would hold in a room that does not refuse it."""
    request = ask.request
    shares = room.shares_for(request.gpu)
    return Lease(ask.attempt_id, room.node.name, request.cpus_milli, request.memory_mib, shares, now)


def held_by(ask: Ask, lease: Lease, now: float) -> Held:
    """The lease of an ask that starts now, as the next snapshot would show it."""
    ends_at = None if ask.time_limit_s is None else now + ask.time_limit_s
    return Held(lease, ask.workload_id, "", "", "", ends_at)


def expected_start(snapshot: Snapshot, target: Ask, *, most_steps: int = 200) -> float | None:
    """When `target` starts if everything that has a time limit uses it up, and nothing new comes before it.

    Unix seconds; None where no time limit tells, or it lies more than `most_steps` ends ahead.
    """
    queue = [ask for ask in snapshot.queue if ask.order < target.order] + [target]
    now, held = snapshot.now, snapshot.held
    for _ in range(most_steps):
        outcome = plan(replace(snapshot, now=now, held=held, queue=queue))
        started = {workload_id for workload_id, _ in outcome.starts}
        if target.workload_id in started:
            return now
        ends = [max(now, one.ends_at) for one in outcome.held if one.ends_at is not None]
        if not ends:
            return None
        now = min(ends)
        held = tuple(one for one in outcome.held if one.ends_at is None or one.ends_at > now)
        queue = [ask for ask in queue if ask.workload_id not in started]
    return None
