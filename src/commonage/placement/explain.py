"""Why a workload waits: what it lacks in numbers, who holds it, what would start instead, and when its turn comes.

Called for one workload at a time, on the snapshot that the last plan was made from. `ever_fits` is asked at submit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import nlargest, nsmallest
from itertools import islice, takewhile

from commonage.domain.explanations import Explanation, Holder
from commonage.domain.fleet import Node, NodeState
from commonage.domain.quantities import format_duration, format_memory
from commonage.domain.requests import GpuRequest, Request
from commonage.placement.expectation import expect
from commonage.placement.plan import Plan, place, plan
from commonage.placement.promise import Promise
from commonage.placement.rooms import Room
from commonage.placement.snapshot import Ask, Snapshot

MOST_HOLDERS = 5
MOST_LACKS = 3
MOST_TRIES = 5
LEAST_CPUS_MILLI, LEAST_MEMORY_MIB = 100, 64  # with less than this nothing is worth starting


def explain(snapshot: Snapshot, ask: Ask) -> Explanation:
    """The whole explanation for `ask`, whether it stands in the queue already or is only being considered."""
    ahead = list(takewhile(lambda other: other.order < ask.order, snapshot.queue))
    behind = [other for other in islice(snapshot.queue, len(ahead), None) if other.workload_id != ask.workload_id]
    queue = [*ahead, ask, *behind]
    position, length = len(ahead) + 1, len(queue)
    stands = len(behind) + len(ahead) < len(snapshot.queue)
    outcome = plan(replace(snapshot, queue=queue))
    lease = next((lease for workload_id, lease in outcome.starts if workload_id == ask.workload_id), None)
    if lease is not None:
        return Explanation(
            workload_id=ask.workload_id,
            summary=f"starts now {_place_in_words(lease.node, ask.request)}",
            startable_now=True,
            position=position,
            queue_length=length,
            expected_start_at=snapshot.now,
            basis="it fits",
        )
    lacks = _lacks(outcome, ask, snapshot.now)
    holders = _holders(snapshot, outcome, ask)
    expected = expect(snapshot, ask, queue)
    without = plan(replace(snapshot, queue=[*ahead, *behind]))
    fits_now, fits_gpus = _smaller(without, ask, snapshot.now)
    return Explanation(
        workload_id=ask.workload_id,
        summary=_summary(_place_of(position, stands), lacks, holders, expected.at, snapshot.now),
        position=position,
        queue_length=length,
        lacks=lacks,
        holders=holders,
        fits_now=fits_now,
        fits_now_gpus=fits_gpus,
        expected_start_at=expected.at,
        basis=expected.basis if expected.at is not None else _no_basis(holders, expected.basis),
    )


def why_waiting(outcome: Plan, ask: Ask, position: int, now: float) -> str:
    """One sentence for a list: place in the queue and what is missing. Cheap: no look ahead, and remembered."""
    sort = (ask.shape, ask.time_limit_s)
    lacks = outcome.words.get(sort)
    if lacks is None:
        lacks = outcome.words[sort] = _lacks(outcome, ask, now)
    return f"{ordinal(position)} in the queue; {lacks[0]}" if lacks else f"{ordinal(position)} in the queue"


def ever_fits(nodes: Iterable[Node], request: Request) -> str | None:
    """None if some machine could run it with everything free; else why none could, in numbers."""
    known = [node for node in nodes if node.state is not NodeState.LOST]
    if not known:
        return None  # no machine has reported yet: waiting is the right answer, not refusing
    empty: list[Room] = []
    refusals: list[str] = []
    for node in known:
        room = Room.empty(replace(node, state=NodeState.READY))
        refusal = room.refusal(request)
        if refusal is None:
            return None  # every submit asks this: of a thousand machines the first that could is enough
        empty.append(room)
        refusals.append(refusal)
    return _never(empty, request, refusals)


def ordinal(number: int) -> str:
    """`first` … `tenth`, then `11th`."""
    words = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    if 1 <= number <= len(words):
        return words[number - 1]
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _never(rooms: Sequence[Room], request: Request, refusals: Sequence[str]) -> str:
    gpu = request.gpu
    if gpu is not None:
        cards = [card for room in rooms for card in room.matching(gpu)]
        if not cards:
            models = sorted({card.device.model for room in rooms for card in room.cards if not card.device.faults})
            if not models:
                return "no machine here has a GPU that takes work; ask for none"
            return f"there is no GPU of the model {gpu.model!r} here; there are: {', '.join(models)}"
        if gpu.whole:
            most = max(len(room.matching(gpu)) for room in rooms)
            if gpu.whole > most:
                return f"{gpu} were asked for, and no machine has more than {most}; ask for {most} or fewer"
        largest = max(card.device.memory_mib for card in cards)
        if gpu.vram_mib > largest:
            return f"{gpu} were asked for, and the largest card has {format_memory(largest)}; ask for that or less"
    return f"{request} were asked for; with everything free, {'; '.join(refusals[:3])}; ask for less"


def _place_in_words(node: str, request: Request) -> str:
    return f"on {node}" if request.gpu is None else f"on {node} with {request.gpu}"


def _lacks(outcome: Plan, ask: Ask, now: float) -> tuple[str, ...]:
    """What is missing, the machine that comes nearest first; nothing for one that came after the plan and fits."""
    if not outcome.rooms:
        return ("no machine has reported yet",)
    if place(ask, outcome.rooms, outcome.promise, now) is not None:
        return ()
    nearest = nsmallest(MOST_LACKS, outcome.rooms.values(), key=lambda room: _distance(room, ask.request))
    found = ((room.refusal(ask.request) or _kept(room, ask, outcome.promise, now), room) for room in nearest)
    return tuple(f"it asks for {_asked(ask.request, room)}, and {why}" for why, room in found)


def _asked(request: Request, room: Room) -> str:
    """What was asked for; a part of a card also as what that is in GiB there, to compare it with what is free."""
    gpu = request.gpu
    if gpu is None:
        return str(request)
    sizes = {card.device.memory_mib for card in room.matching(gpu)} if gpu.fraction_milli else set()
    return f"{gpu} ({format_memory(gpu.memory_on(sizes.pop()))})" if len(sizes) == 1 else str(gpu)


def _distance(room: Room, request: Request) -> tuple[bool, bool, int, str]:
    """Sorts machines: those with such a card first, then those that take work, of them those with the most to give."""
    gpu = request.gpu
    free = room.free_memory_mib if gpu is None else max((card.free_mib for card in room.matching(gpu)), default=-1)
    return (free < 0, room.node.state is not NodeState.READY, -free, room.node.name)


def _kept(room: Room, ask: Ask, promise: Promise | None, now: float) -> str:
    """What to say where it would fit but for the one that waits longer."""
    gpu = ask.request.gpu
    if gpu is None:
        free = str(Request(room.free_cpus_milli, room.free_memory_mib))
    else:
        free = f"{format_memory(max(card.free_mib for card in room.matching(gpu)))} of a card"
    when = f", which starts within {format_duration(promise.at - now)}" if promise else ""
    return f"{free} free on {room.node.name} are kept for one that waits longer{when}"


def _holders(snapshot: Snapshot, outcome: Plan, ask: Ask) -> tuple[Holder, ...]:
    """Who holds the cards (or the machine) that it could use, the largest hold first."""
    gpu = ask.request.gpu
    usable = {
        card.device.uuid for room in outcome.rooms.values() for card in (room.matching(gpu) if gpu is not None else ())
    }
    found: list[tuple[int, Holder]] = []
    for one in snapshot.held:
        vram = sum(share.memory_mib for share in one.lease.shares if share.device_uuid in usable)
        if gpu is not None and not vram:
            continue
        holds = f"{format_memory(vram)} of VRAM" if vram else str(Request(one.lease.cpus_milli, one.lease.memory_mib))
        holder = Holder(one.workload_id, one.name, one.owner, one.kind, one.lease.node, holds, one.ends_at)
        found.append((vram or one.lease.memory_mib, holder))
    found.sort(key=lambda pair: (-pair[0], pair[1].workload_id))
    return tuple(holder for _, holder in found[:MOST_HOLDERS])


def _smaller(without: Plan, ask: Ask, now: float) -> tuple[str | None, str | None]:
    """A smaller request that would start now: (in words, as `--gpus` text). It is tried, not guessed.

    `without` is the plan without `ask`: what could be had by who withdraws it and asks for less.
    """
    for request in (*_with_less_gpu(without, ask.request), *_with_less_else(without, ask.request)):
        if place(replace(ask, request=request), without.rooms, without.promise, now) is not None:
            same = replace(request, gpu=ask.request.gpu) == ask.request
            return str(request.gpu if same else request), request.gpu.text if same and request.gpu else None
    return None, None


def _with_less_gpu(without: Plan, request: Request) -> Iterator[Request]:
    """The same with fewer cards, or less of one: the most first."""
    gpu = request.gpu
    if gpu is None:
        return
    rooms = [room for room in without.rooms.values() if room.node.state is NodeState.READY]
    counts = {sum(card.untouched for card in room.matching(gpu)) for room in rooms}
    for count in nlargest(MOST_TRIES, (count for count in counts if 0 < count < gpu.whole)):
        yield replace(request, gpu=GpuRequest(whole=count, model=gpu.model))
    cards = [card for room in rooms for card in room.matching(gpu)]
    most = max((gpu.memory_on(card.device.memory_mib) for card in cards), default=0)
    amounts = {min(card.free_mib, card.free_milli * card.device.memory_mib // 1000) for card in cards}
    for amount in nlargest(MOST_TRIES, (amount for amount in amounts if 0 < amount < most)):
        yield replace(request, gpu=GpuRequest(vram_mib=amount, model=gpu.model))


def _with_less_else(without: Plan, request: Request) -> Iterator[Request]:
    """The same with fewer cores or less memory, and if need be less of a card too."""
    less_gpu = next(_with_less_gpu(without, request), None)
    for room in nlargest(MOST_TRIES, without.rooms.values(), key=lambda room: room.free_cpus_milli):
        cpus = min(request.cpus_milli, room.free_cpus_milli)
        memory = min(request.memory_mib, room.free_memory_mib)
        if cpus < LEAST_CPUS_MILLI or memory < LEAST_MEMORY_MIB:
            continue
        for one in (request, less_gpu):
            if one is not None:
                yield replace(one, cpus_milli=cpus, memory_mib=memory)


def _no_basis(holders: Sequence[Holder], basis: str) -> str:
    for one in holders:
        if one.ends_at is None:
            return f"nobody can say when: a {one.kind} of {one.owner} has no time limit"
    return basis


def _place_of(position: int, stands: bool) -> str:
    return f"{'' if stands else 'would be '}{ordinal(position)} in the queue"


def _summary(place_: str, lacks: Sequence[str], holders: Sequence[Holder], start_at: float | None, now: float) -> str:
    parts = [place_]
    if lacks:
        parts.append(lacks[0])
    if holders:
        one = holders[0]
        parts.append(f"a {one.kind} of {one.owner} holds {one.holds}")
    if start_at is not None:
        parts.append(f"expected to start in {format_duration(start_at - now)}")
    return "; ".join(parts)
