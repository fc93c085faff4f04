"""Which attempts hold more VRAM than their share, since when, and whether somebody else needs it. Pure.

Fed by the watchdog, round by round; says nothing where a figure is missing. A process needs a CUDA context of its own
on a card, which frameworks do not count against their limit: so much above the share is no fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from commonage.control.attribution import Round
from commonage.domain.fleet import Device, Lease
from commonage.domain.parts import part_of
from commonage.domain.reasons.attempts import NeededBy
from commonage.domain.requests import GpuRequest

ROUNDS_TO_BE_SURE = 2
IMPOSSIBLE_PART = 1.05  # no process holds more than its card; a figure that says so is none


class OverSharePolicy(StrEnum):
    """What is done about an attempt over its share: nothing but to say so, end it after a while, or end it as soon as
    somebody else needs the memory.
    """

    WARN = "warn"
    STOP = "stop"
    CONTENDED = "contended"


@dataclass(frozen=True, slots=True)
class Excess:
    """An attempt that holds `used_mib` of a card, of which `share_mib` are its own (0: it was given no part of it).

    `since` and `rounds`: from when on, and how often in a row it was seen so.
    """

    attempt_id: str
    uuid: str
    card: Device
    used_mib: int
    share_mib: int
    since: float
    rounds: int

    @property
    def sure(self) -> bool:
        """False while it could be a moment's peak."""
        return self.rounds >= ROUNDS_TO_BE_SURE


class Excesses:
    """Follows attempts over their share. `tolerance_mib`: for a context, unless that was measured and
    is larger; `gap_s`: what was not seen for longer is over."""

    def __init__(self, tolerance_mib: int, gap_s: float) -> None:
        self._tolerance_mib, self._gap_s = tolerance_mib, gap_s
        self._open: dict[tuple[str, str], tuple[Excess, float]] = {}

    def take(self, round_: Round, held: Iterable[Lease], cards: dict[str, Device]) -> list[Excess]:
        """Those over their share in this round. `cards` by uuid: what is not among them is not judged."""
        found: list[Excess] = []
        still: dict[tuple[str, str], tuple[Excess, float]] = {}
        shares = {lease.attempt_id: _shares(lease) for lease in held}
        for (attempt_id, uuid), (before, last_at) in self._open.items():
            if attempt_id in shares and 0 <= round_.at - last_at <= self._gap_s:
                still[attempt_id, uuid] = (before, last_at)
        for (attempt_id, uuid), use in round_.uses.items():
            card = cards.get(uuid)
            if attempt_id not in shares or card is None or use.memory_mib is None:
                continue  # nothing is known of it: what was seen before stands until it is too old
            excess = self._judged(attempt_id, card, use.memory_mib, shares[attempt_id])
            if excess is None:
                still.pop((attempt_id, uuid), None)
                continue
            earlier = still.get((attempt_id, uuid))
            since, rounds = (earlier[0].since, earlier[0].rounds + 1) if earlier else (round_.at, 1)
            excess = replace(excess, since=since, rounds=rounds)
            still[attempt_id, uuid] = (excess, round_.at)
            found.append(excess)
        gone = [key for key in still if key[1] in round_.samples and key not in round_.uses]
        for key in gone:  # its card was asked, and lists no process of it any more
            del still[key]
        self._open = still
        return found

    def _judged(self, attempt_id: str, card: Device, used_mib: int, shares: dict[str, int]) -> Excess | None:
        share_mib = shares.get(card.uuid, 0)
        allowed = share_mib + max(self._tolerance_mib, card.context_mib) if share_mib else 0
        if used_mib <= allowed or share_mib >= card.memory_mib or used_mib > card.memory_mib * IMPOSSIBLE_PART:
            return None
        return Excess(attempt_id, card.uuid, card, used_mib, share_mib, 0.0, 0)


def _shares(lease: Lease) -> dict[str, int]:
    mine: dict[str, int] = {}
    for share in lease.shares:
        mine[share.device_uuid] = mine.get(share.device_uuid, 0) + share.memory_mib
    return mine


def who_needs_it(excess: Excess, round_: Round, held: Sequence[Lease], queue: Iterable[GpuRequest]) -> NeededBy | None:
    """Who else needs the memory that the excess takes; None if nobody does, or nobody can know.

    A neighbour does, when what it holds a share of and does not use yet is no longer free on the card. One in the queue
    does, when it would fit onto the card without the attempt that is over its share.
    """
    sample = round_.samples.get(excess.uuid)
    if sample is None or sample.memory_used_mib is None:
        return None
    owed, leased = 0, 0
    for lease in held:
        mine = _shares(lease).get(excess.uuid, 0)
        leased += mine
        used = round_.memory_of(lease.attempt_id, excess.uuid)
        if lease.attempt_id != excess.attempt_id and used is not None:
            owed += max(0, mine - used)
    free = max(0, excess.card.memory_mib - sample.memory_used_mib)
    if owed > free:
        return NeededBy(is_queued=False, needed_mib=owed, free_mib=free)
    room = excess.card.memory_mib - leased + excess.share_mib
    for gpu in queue:
        part = part_of(excess.card, gpu) if _wants(gpu, excess.card) else None
        if part is not None and part.memory_mib <= room:
            return NeededBy(is_queued=True, needed_mib=part.memory_mib)
    return None


def _wants(gpu: GpuRequest, card: Device) -> bool:
    """True if one such card is all that it waits for."""
    return gpu.whole <= 1 and (gpu.model is None or gpu.model.casefold() in card.model.casefold())
