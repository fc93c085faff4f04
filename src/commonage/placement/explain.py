"""Why a workload waits: what it lacks in numbers, who holds it, what would start instead, and when its turn comes.

Called for one workload at a time; it makes the pass that the schedule loop would make, and looks at what it left.
`why_waiting` is the short answer for lists, from the last plan. `ever_fits` is asked at submit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from commonage.domain.explanations import Explanation, Holder
from commonage.domain.fleet import Node, NodeState
from commonage.domain.quantities import format_duration, format_memory
from commonage.domain.requests import Request
from commonage.placement.asks import Ask, Held
from commonage.placement.backfill import Gate
from commonage.placement.expectation import expect
from commonage.placement.filters import matching, refusal
from commonage.placement.grid import Grid
from commonage.placement.plan import Pass, Plan, passed
from commonage.placement.quota import amounts_of
from commonage.placement.shapes import Bools, Ints, Shape, model_matches
from commonage.placement.smaller import smaller_requests
from commonage.placement.snapshot import Snapshot

MOST_HOLDERS = 5
MOST_LACKS = 3
MOST_TRIES = 5


def explain(snapshot: Snapshot, ask: Ask, now: float) -> Explanation:
    """The whole explanation for `ask`, whether it stands in the queue already or is only being considered."""
    stands = ask.workload_id in snapshot.queue
    with standing(snapshot, ask):
        with passed(snapshot, now) as done:
            position, length = done.order.place(snapshot.queue.slot(ask.workload_id)) + 1, len(done.order)
            held = done.started.get(ask.workload_id)
            if held is not None:
                return Explanation(
                    workload_id=ask.workload_id,
                    summary=f"starts now {_place_in_words(held.lease.node, ask.request)}",
                    startable_now=True,
                    position=position,
                    queue_length=length,
                    expected_start_at=now,
                    basis="it fits",
                )
            lacks = _lacks(snapshot, done.gate, ask, now)
            holders = _holders(snapshot, ask)
        expected = expect(snapshot, ask, now)
        fits_now, fits_gpus = _smaller(snapshot, ask, now)
    return Explanation(
        workload_id=ask.workload_id,
        summary=_summary(_place_of(snapshot, ask, position, stands), lacks, holders, expected.at, now),
        position=position,
        queue_length=length,
        lacks=lacks,
        holders=holders,
        fits_now=fits_now,
        fits_now_gpus=fits_gpus,
        expected_start_at=expected.at,
        basis=expected.basis if expected.at is not None else _no_basis(holders, expected.basis),
    )


@contextmanager
def standing(snapshot: Snapshot, ask: Ask) -> Iterator[None]:
    """Inside, the ask stands in the queue, instead of what stood there under its id."""
    before = snapshot.queue.get(ask.workload_id)
    if before != ask:
        snapshot.arrive(ask)
    try:
        yield
    finally:
        if before is None:
            snapshot.leave(ask.workload_id)
        elif before != ask:
            snapshot.arrive(before)


def why_waiting(snapshot: Snapshot, outcome: Plan, ask: Ask, position: int) -> str:
    """One sentence for a list: place in the queue and what is missing. Cheap: no look ahead, and remembered."""
    sort = (ask.request, ask.time_limit_s, ask.tenant, ask.owner if snapshot.rules.tenants else "", ask.gang)
    lacks = outcome.words.get(sort)
    if lacks is None:
        with snapshot.trial():
            for workload_id, held in outcome.started.items():
                if workload_id in snapshot.queue:
                    snapshot.start(held)
            lacks = outcome.words[sort] = _lacks(snapshot, outcome.gate, ask, outcome.now)
    return f"{ordinal(position)} in the queue; {lacks[0]}" if lacks else f"{ordinal(position)} in the queue"


def ever_fits(grid: Grid, request: Request) -> str | None:
    """None if some machine could run it with everything free; else why none could, in numbers."""
    known = np.array([node.state is not NodeState.LOST for node in grid.nodes], np.bool_)
    if not known.any():
        return None  # no machine has reported yet: waiting is the right answer, not refusing
    if grid.could_fit(grid.shape(request), np.flatnonzero(known)).any():
        return None
    nodes = [replace(node, state=NodeState.READY) for node in grid.nodes if node.state is not NodeState.LOST]
    return _never(nodes, request)


def ordinal(number: int) -> str:
    """`first` … `tenth`, then `11th`."""
    words = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    if 1 <= number <= len(words):
        return words[number - 1]
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _never(nodes: Sequence[Node], request: Request) -> str:
    empty = Grid(nodes)
    shape, gpu = empty.shape(request), request.gpu
    if gpu is not None:
        cards = [[device for _, device in matching(empty, shape, number)] for number in range(len(nodes))]
        if not any(cards):
            models = sorted({one.model for node in nodes for one in node.report.devices if not one.faults})
            if not models:
                return "no machine here has a GPU that takes work; ask for none"
            return f"there is no GPU of the model {gpu.model!r} here; there are: {', '.join(models)}"
        if gpu.whole:
            most = max(len(found) for found in cards)
            if gpu.whole > most:
                return f"{gpu} were asked for, and no machine has more than {most}; ask for {most} or fewer"
        largest = max(device.memory_mib for found in cards for device in found)
        if gpu.vram_mib > largest:
            return f"{gpu} were asked for, and the largest card has {format_memory(largest)}; ask for that or less"
    refusals = [refusal(empty, shape, number) or "" for number in range(min(3, len(nodes)))]
    return f"{request} were asked for; with everything free, {'; '.join(refusals)}; ask for less"


def _place_in_words(node: str, request: Request) -> str:
    return f"on {node}" if request.gpu is None else f"on {node} with {request.gpu}"


def allowed(snapshot: Snapshot, gate: Gate, ask: Ask) -> Bools:
    """[N]: where the ask might start now, quotas aside."""
    shape = snapshot.grid.shape(ask.request)
    return gate.mask(ask, shape, snapshot.grid.fits(shape, np.arange(len(snapshot.grid.nodes))))


def _lacks(snapshot: Snapshot, gate: Gate, ask: Ask, now: float) -> tuple[str, ...]:
    """What is missing, the machine that comes nearest first; nothing for one that came after the plan and fits."""
    grid = snapshot.grid
    if not grid.nodes:
        return ("no machine has reported yet",)
    shape = grid.shape(ask.request)
    over = snapshot.quotas.refusal(ask.tenant, ask.owner, amounts_of(shape))
    if over is not None:
        return (over,)
    members = 1 if ask.gang is None else len(snapshot.queue.gang(ask.gang))
    if members < ask.gang_size:
        return (f"it starts together with {ask.gang_size - 1} others, of which {members - 1} wait here",)
    rooms = int(np.count_nonzero(allowed(snapshot, gate, ask)))
    if rooms >= ask.gang_size:
        return ()
    if rooms:
        return (f"it starts together with {ask.gang_size - 1} others, and {rooms} machines have room for one",)
    nearest = _by_distance(grid, shape)[:MOST_LACKS].tolist()
    found = ((refusal(grid, shape, number) or _kept(grid, gate, shape, number, now), number) for number in nearest)
    return tuple(f"it asks for {_asked(grid, shape, number)}, and {why}" for why, number in found)


def _asked(grid: Grid, shape: Shape, number: int) -> str:
    """What was asked for; a part of a card also as what that is in GiB there, to compare it with what is free."""
    gpu = shape.request.gpu
    if gpu is None:
        return str(shape.request)
    sizes = {device.memory_mib for _, device in matching(grid, shape, number)} if gpu.fraction_milli else set()
    return f"{gpu} ({format_memory(gpu.memory_on(sizes.pop()))})" if len(sizes) == 1 else str(gpu)


def _by_distance(grid: Grid, shape: Shape) -> Ints:
    """Nodes: those with such a card first, then those that take work, of them those with the most to give."""
    free = grid.memory if shape.request.gpu is None else np.where(_usable(grid, shape), grid.free_mib, -1)
    most = free if free.ndim == 1 else free.max(axis=1, initial=-1)
    return np.lexsort((-most, ~grid.ready, most < 0))


def _usable(grid: Grid, shape: Shape) -> Bools:
    """[N, C]: the cards that are of the model asked for and take work."""
    gpu = shape.request.gpu
    of_model = [gpu is not None and model_matches(gpu, device.model) for _, device in grid.kinds]
    usable: Bools = np.array([*of_model, False])[grid.kind]
    return usable


def _kept(grid: Grid, gate: Gate, shape: Shape, number: int, now: float) -> str:
    """What to say where it would fit but for those that wait longer."""
    if shape.request.gpu is None:
        free = str(Request(int(grid.cpus[number]), int(grid.memory[number])))
    else:
        cards = [card for card, _ in matching(grid, shape, number)]
        free = f"{format_memory(int(grid.free_mib[number, cards].max()))} of a card"
    return f"{free} free on {grid.nodes[number].name} are kept for {gate.kept_for(number, now)}"


def _holders(snapshot: Snapshot, ask: Ask) -> tuple[Holder, ...]:
    """Who holds the cards (or the machine) that it could use, the largest hold first."""
    grid, holdings = snapshot.grid, snapshot.holdings
    slots = np.flatnonzero(holdings.node >= 0)
    if ask.request.gpu is None:
        amounts = holdings.rows[slots, 1]
    else:
        usable = _usable(grid, grid.shape(ask.request))[holdings.node[slots]]
        amounts = np.where(usable, holdings.rows[slots, 2 : 2 + usable.shape[1]], 0).sum(axis=1)
    found: list[tuple[int, Held]] = []
    for index in np.argsort(-amounts, kind="stable").tolist():
        one, amount = holdings.held[slots[index]], int(amounts[index])
        if not amount or (len(found) >= MOST_HOLDERS and amount < found[-1][0]):
            break
        if one is not None and one.workload_id in snapshot.held:
            found.append((amount, one))
    found.sort(key=lambda pair: (-pair[0], pair[1].workload_id))
    holders = []
    for amount, one in found[:MOST_HOLDERS]:
        vram = f"{format_memory(amount)} of VRAM"
        holds = vram if ask.request.gpu is not None else str(Request(one.lease.cpus_milli, one.lease.memory_mib))
        holders.append(Holder(one.workload_id, one.name, one.owner, one.kind, one.lease.node, holds, one.ends_at))
    return tuple(holders)


def _smaller(snapshot: Snapshot, ask: Ask, now: float) -> tuple[str | None, str | None]:
    """A smaller request that would start now: (in words, as `--gpus` text). It is tried, not guessed."""
    for request in _candidates(snapshot, ask, now):
        instead = replace(ask, request=request, submitted_at=max(now, ask.submitted_at), gang=None, gang_size=1)
        with standing(snapshot, instead), passed(snapshot, now) as done:
            if ask.workload_id in done.started:
                same = replace(request, gpu=ask.request.gpu) == ask.request
                return str(request.gpu if same else request), request.gpu.text if same and request.gpu else None
    return None, None


def _candidates(snapshot: Snapshot, ask: Ask, now: float) -> list[Request]:
    """What might start if the ask were not there; the largest first."""
    snapshot.leave(ask.workload_id)
    try:
        with passed(snapshot, now) as done:
            return [one for one in smaller_requests(snapshot.grid, ask.request) if _might(done, ask, one)][:MOST_TRIES]
    finally:
        snapshot.arrive(ask)


def _might(done: Pass, ask: Ask, request: Request) -> bool:
    return bool(allowed(done.snapshot, done.gate, replace(ask, request=request)).any())


def _no_basis(holders: Sequence[Holder], basis: str) -> str:
    for one in holders:
        if one.ends_at is None:
            return f"nobody can say when: a {one.kind} of {one.owner} has no time limit"
    return basis


def _place_of(snapshot: Snapshot, ask: Ask, position: int, stands: bool) -> str:
    place = f"{'' if stands else 'would be '}{ordinal(position)} in the queue"
    if len(snapshot.sites.names) < 2:
        return place
    could = snapshot.grid.fits_empty(snapshot.grid.shape(ask.request), np.arange(len(snapshot.grid.nodes)))
    site = snapshot.sites.stands(ask.workload_id, could, ask.gang_size)
    return place if site is None else f"{place}, at {site}"


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
