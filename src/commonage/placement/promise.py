"""What is kept for the first workload that waits, where time limits tell when it can start.

Without it a stream of small requests would pass a large one for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonage.domain.fleet import Lease
from commonage.placement.rooms import Card, Room
from commonage.placement.snapshot import Ask, Held


@dataclass(slots=True)
class Promise:
    """`workload_id` starts on `node` at `at` at the latest. `spare` is what is free there then beside it."""

    workload_id: str
    node: str
    at: float
    spare: Room

    def beside(self, room: Room, ask: Ask, now: float) -> Room:
        """The part of a room that `ask` may have: all of it, or what it can keep when the promise falls due."""
        if room.node.name != self.node or self._ends_in_time(ask, now):
            return room
        cards = [
            Card(here.device, min(here.free_mib, then.free_mib), min(here.free_milli, then.free_milli))
            for here, then in zip(room.cards, self.spare.cards, strict=True)
        ]
        cpus = min(room.free_cpus_milli, self.spare.free_cpus_milli)
        return Room(room.node, cpus, min(room.free_memory_mib, self.spare.free_memory_mib), cards)

    def note(self, ask: Ask, lease: Lease, now: float) -> None:
        """Count a lease that was given beside it."""
        if lease.node == self.node and not self._ends_in_time(ask, now):
            self.spare.take(lease)

    def _ends_in_time(self, ask: Ask, now: float) -> bool:
        return ask.time_limit_s is not None and now + ask.time_limit_s <= self.at


def promise_for(ask: Ask, rooms: dict[str, Room], held: Sequence[Held], now: float) -> Promise | None:
    """The earliest place and time at which time limits make room for `ask`; None if none ever do."""
    later: dict[str, Room] = {}
    ending = sorted(
        ((one.ends_at, one.lease) for one in held if one.ends_at is not None),
        key=lambda pair: (pair[0], pair[1].attempt_id),
    )
    for ends_at, lease in ending:
        if lease.node not in rooms:
            continue
        if lease.node not in later:
            later[lease.node] = rooms[lease.node].copy()
        room = later[lease.node]
        room.take(lease, -1)
        if room.fits(ask.request):
            room.take(room.lease_for(ask.attempt_id, ask.request, now))
            return Promise(ask.workload_id, room.node.name, max(now, ends_at), room)
    return None
