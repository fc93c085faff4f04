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

    def allows(self, ask: Ask, lease: Lease, now: float) -> bool:
        """True if the lease ends in time, lies elsewhere, or fits beside what is promised."""
        return lease.node != self.node or self._ends_in_time(ask, now) or _fits(self.spare, lease)

    def note(self, ask: Ask, lease: Lease, now: float) -> None:
        """Count a lease that was allowed."""
        if lease.node == self.node and not self._ends_in_time(ask, now):
            self.spare.take(lease)

    def _ends_in_time(self, ask: Ask, now: float) -> bool:
        return ask.time_limit_s is not None and now + ask.time_limit_s <= self.at


def promise_for(ask: Ask, rooms: dict[str, Room], held: Sequence[Held], now: float) -> Promise | None:
    """The earliest place and time at which time limits make room for `ask`; None if none ever do."""
    later = {name: _copy(room) for name, room in rooms.items()}
    ending = sorted((one for one in held if one.ends_at is not None), key=lambda one: (one.ends_at, one.workload_id))
    for one in ending:
        room = later.get(one.lease.node)
        if room is None or one.ends_at is None:
            continue
        room.take(one.lease, -1)
        if room.refusal(ask.request) is None:
            shares = room.shares_for(ask.request.gpu)
            request = ask.request
            room.take(Lease(ask.attempt_id, room.node.name, request.cpus_milli, request.memory_mib, shares, now))
            return Promise(ask.workload_id, room.node.name, max(now, one.ends_at), room)
    return None


def _copy(room: Room) -> Room:
    cards = [Card(card.device, card.free_mib, card.free_milli) for card in room.cards]
    return Room(room.node, room.free_cpus_milli, room.free_memory_mib, cards)


def _fits(room: Room, lease: Lease) -> bool:
    if lease.cpus_milli > room.free_cpus_milli or lease.memory_mib > room.free_memory_mib:
        return False
    free = {card.device.uuid: card for card in room.cards}
    return all(
        share.device_uuid in free
        and share.memory_mib <= free[share.device_uuid].free_mib
        and share.compute_milli <= free[share.device_uuid].free_milli
        for share in lease.shares
    )
