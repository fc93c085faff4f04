"""Why a workload waits: what it lacks in numbers, who holds it, what would start instead, and when its turn comes.

Called for one workload at a time, on the snapshot that the last plan was made from. `ever_fits` is asked at submit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from commonage.domain.explanations import Explanation, Holder
from commonage.domain.fleet import Node, NodeState
from commonage.domain.quantities import format_cpus, format_duration, format_memory
from commonage.domain.requests import GpuRequest, Request
from commonage.placement.plan import Plan, expected_start, place, plan
from commonage.placement.rooms import Room
from commonage.placement.snapshot import Ask, Snapshot

MOST_HOLDERS = 5


def explain(snapshot: Snapshot, ask: Ask) -> Explanation:
    """The whole explanation for `ask`, whether it stands in the queue already or is only being considered."""
    ahead = [other for other in snapshot.queue if other.order < ask.order]
    behind = [other for other in snapshot.queue if other.order > ask.order]
    position, length = len(ahead) + 1, len(ahead) + 1 + len(behind)
    whole = plan(replace(snapshot, queue=[*ahead, ask, *behind]))
    for workload_id, lease in whole.starts:
        if workload_id == ask.workload_id:
            where = _place_in_words(lease.node, ask.request)
            return Explanation(
                ask.workload_id,
                f"starts now {where}",
                True,
                position,
                length,
                expected_start_at=snapshot.now,
                basis="it fits",
            )
    lacks = _lacks(whole, ask, snapshot.now)
    holders = _holders(snapshot, whole, ask)
    fits_now, fits_gpus = _smaller(whole, ask, snapshot)
    start_at = expected_start(snapshot, ask)
    basis = "the time limits of what runs and waits ahead of it" if start_at is not None else _no_basis(holders, ahead)
    summary = _summary(ask, position, lacks, holders, start_at, snapshot.now)
    return Explanation(
        workload_id=ask.workload_id,
        summary=summary,
        position=position,
        queue_length=length,
        lacks=lacks,
        holders=holders,
        fits_now=fits_now,
        fits_now_gpus=fits_gpus,
        expected_start_at=start_at,
        basis=basis,
    )


def why_waiting(outcome: Plan, ask: Ask, position: int, now: float) -> str:
    """One sentence for a list: place in the queue and what is missing. Cheap: no look ahead."""
    lacks = _lacks(outcome, ask, now)
    return f"{ordinal(position)} in the queue; {lacks[0]}" if lacks else f"{ordinal(position)} in the queue"


def ever_fits(nodes: Iterable[Node], request: Request) -> str | None:
    """None if some machine could run it with everything free; else why none could, in numbers."""
    known = [node for node in nodes if node.state is not NodeState.LOST]
    if not known:
        return None  # no machine has reported yet: waiting is the right answer, not refusing
    empty = [Room.empty(replace(node, state=NodeState.READY)) for node in known]
    refusals = [room.refusal(request) for room in empty]
    if any(refusal is None for refusal in refusals):
        return None
    return _never(empty, request, [refusal for refusal in refusals if refusal])


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
            models = sorted({card.device.model for room in rooms for card in room.cards})
            there = f"there are: {', '.join(models)}" if models else "no machine here has a GPU"
            return f"no machine here has {'a ' + gpu.model if gpu.model else 'a GPU'}; {there}"
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
    """What is missing, the machine that comes nearest first."""
    near: list[tuple[int, str]] = []
    for room in outcome.rooms.values():
        refusal = room.refusal(ask.request)
        if refusal is None:
            promise = outcome.promise
            refusal = f"what is free on {room.node.name} is kept for the first in the queue"
            if promise is not None:
                refusal += f", which starts within {format_duration(promise.at - now)}"
        free = max((card.free_mib for card in room.cards), default=0) if ask.request.gpu else room.free_memory_mib
        near.append((-free, refusal))
    if not near:
        return ("no machine has reported yet",)
    asked = str(ask.request.gpu) if ask.request.gpu else str(ask.request)
    near.sort()
    return tuple(f"it asks for {asked}, and {refusal}" for _, refusal in near[:3])


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
        holds = (
            f"{format_memory(vram)} of VRAM"
            if vram
            else f"{format_cpus(one.lease.cpus_milli)} CPUs and {format_memory(one.lease.memory_mib)}"
        )
        holder = Holder(one.workload_id, one.name, one.owner, one.kind, one.lease.node, holds, one.ends_at)
        found.append((vram or one.lease.memory_mib, holder))
    found.sort(key=lambda pair: (-pair[0], pair[1].workload_id))
    return tuple(holder for _, holder in found[:MOST_HOLDERS])


def _smaller(outcome: Plan, ask: Ask, snapshot: Snapshot) -> tuple[str | None, str | None]:
    """A smaller request that would start now: (in words, as `--gpus` text). It is tried, not guessed."""
    gpu = ask.request.gpu
    tries: list[Request] = []
    if gpu is not None:
        cards = [card for room in outcome.rooms.values() for card in room.matching(gpu)]
        amounts = {min(card.free_mib, card.free_milli * card.device.memory_mib // 1000) for card in cards}
        tries += [
            replace(ask.request, gpu=GpuRequest(vram_mib=amount, model=gpu.model))
            for amount in sorted(amounts, reverse=True)
            if amount > 0 and (gpu.whole or amount < max(gpu.memory_on(card.device.memory_mib) for card in cards))
        ]
    for room in sorted(outcome.rooms.values(), key=lambda room: -room.free_cpus_milli):
        cpus = min(ask.request.cpus_milli, room.free_cpus_milli)
        memory = min(ask.request.memory_mib, room.free_memory_mib)
        if cpus >= 100 and memory >= 64 and (cpus, memory) != (ask.request.cpus_milli, ask.request.memory_mib):
            tries += [replace(one, cpus_milli=cpus, memory_mib=memory) for one in (ask.request, *tries[:1])]
    for request in tries:
        smaller = replace(ask, request=request, shape=-1)
        if place(smaller, outcome.rooms, outcome.promise, snapshot.now) is not None:
            return str(
                request if request.gpu is None or request.cpus_milli != ask.request.cpus_milli else request.gpu
            ), (request.gpu.text if request.gpu else None)
    return None, None


def _no_basis(holders: Sequence[Holder], ahead: Sequence[Ask]) -> str:
    unlimited = [holder for holder in holders if holder.ends_at is None]
    if unlimited:
        one = unlimited[0]
        return f"nobody can say when: {one.kind} {one.name!r} of {one.owner} has no time limit"
    return "nobody can say when: what it waits for has no time limit" if ahead or holders else "nothing tells"


def _summary(
    ask: Ask,
    position: int,
    lacks: Sequence[str],
    holders: Sequence[Holder],
    start_at: float | None,
    now: float,
) -> str:
    parts = [f"{ordinal(position)} in the queue"]
    if lacks:
        parts.append(lacks[0])
    if holders:
        one = holders[0]
        parts.append(f"{one.kind} {one.name!r} of {one.owner} holds {one.holds}")
    if start_at is not None:
        parts.append(f"expected to start in {format_duration(start_at - now)}")
    return "; ".join(parts)
