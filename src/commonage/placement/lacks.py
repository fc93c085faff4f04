"""What one that waits lacks, in numbers: the filter that refused, on how many nodes; quotas, reservations, promises.

Called by explain.py with what the pass left: it says why that did not start it. Nodes that are refused for the same
reason are told of together, those that come nearest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from commonage.domain.parts import part_of
from commonage.domain.quantities import format_duration, format_memory
from commonage.domain.requests import Request
from commonage.domain.tenants import Amounts
from commonage.placement.asks import Ask
from commonage.placement.filters import FILTERS, matching, usable
from commonage.placement.grid import Grid
from commonage.placement.plan import Pass, Plan
from commonage.placement.quota import amounts_of
from commonage.placement.shapes import Bools, Ints, Shape
from commonage.placement.snapshot import Snapshot

Found = list[tuple[int, str]]
"""(its nearest node, what it lacks there) of each group of nodes."""


def lacks(snapshot: Snapshot, outcome: Pass | Plan, ask: Ask) -> tuple[str, ...]:
    """What is missing, one sentence for each kind of thing; nothing for one that came after the plan and fits."""
    grid = snapshot.grid
    if not grid.nodes:
        return ("no machine has reported yet",)
    shape, others = grid.shape(ask.request), ask.gang_size - 1
    members = 1 if ask.gang is None else len(snapshot.queue.gang(ask.gang))
    if members < ask.gang_size:
        return (f"it starts together with {others} others, of which {members - 1} wait here",)
    over = over_quota(snapshot, ask, shape)
    if over is not None:
        return (over,)
    fit = grid.fits(shape, np.arange(len(grid.nodes)))
    within = _within_quota(snapshot, ask, shape, fit)
    may = outcome.gate.mask(ask, shape, within)
    rooms = int(np.count_nonzero(may))
    if rooms >= ask.gang_size:
        if snapshot.sites.choose(may, ask.gang_size).any():
            came_later = _place(snapshot, outcome, ask.workload_id) == len(outcome.order)
            return () if came_later else ("there is room since a moment ago; it is looked at again at once",)
        return (f"it starts together with {others} others at one site, and no site has {ask.gang_size} machines free",)
    nodes = _by_distance(grid, shape, fit)
    found, left = _refused(grid, shape, nodes[~may[nodes]])
    found += _HeldBack(snapshot, outcome, ask).found(left, within)
    place = {number: index for index, number in enumerate(nodes.tolist())}
    sentences = [words for _, words in sorted(found, key=lambda one: place[one[0]])]
    if rooms:
        sentences = [_too_few(ask, rooms), *sentences]
    sentences[0] = f"it asks for {_asked(grid, shape, int(nodes[0]))}, and {sentences[0]}"
    return tuple(sentences)


def might(outcome: Pass, ask: Ask, size: int) -> bool:
    """Whether an ask of `size` members might start beside what the pass left: worth a try."""
    snapshot = outcome.snapshot
    shape = snapshot.grid.shape(ask.request)
    if over_quota(snapshot, ask, shape) is not None:
        return False
    fit = snapshot.grid.fits(shape, np.arange(len(snapshot.grid.nodes)))
    may = outcome.gate.mask(ask, shape, _within_quota(snapshot, ask, shape, fit))
    return int(np.count_nonzero(may)) >= size


def _too_few(ask: Ask, rooms: int) -> str:
    machines = "one machine has" if rooms == 1 else f"{rooms} machines have"
    return f"it starts together with {ask.gang_size - 1} others, and {machines} room for one"


# --- quotas -----------------------------------------------------------------------------------------------------------


def over_quota(snapshot: Snapshot, ask: Ask, shape: Shape) -> str | None:
    """What quotas say to it, or to its whole gang; what is held within a reservation is not counted."""
    if not snapshot.rules.tenants or snapshot.kept.home(ask, shape) is not None:
        return None
    one = amounts_of(shape)
    amounts = Amounts(*(getattr(one, name) * max(1, ask.gang_size) for name in one.__slots__))
    return snapshot.quotas.refusal(ask.tenant, ask.owner, amounts)


def _within_quota(snapshot: Snapshot, ask: Ask, shape: Shape, fit: Bools) -> Bools:
    within = snapshot.quotas.mask(snapshot.grid, shape, ask.tenant, ask.owner) if snapshot.rules.tenants else None
    return fit.copy() if within is None else fit & within


# --- nodes ------------------------------------------------------------------------------------------------------------


def _by_distance(grid: Grid, shape: Shape, fit: Bools) -> Ints:
    """Nodes: where it fits, where it would if nothing were held, those with such a card, those that take work; of
    these those with the most to give first."""
    nodes = np.arange(len(grid.nodes))
    free = grid.memory if shape.request.gpu is None else np.where(usable(grid, shape, nodes), grid.free_mib, -1)
    most = free if free.ndim == 1 else free.max(axis=1, initial=-1)
    return np.lexsort((-most, ~grid.ready, most < 0, ~grid.fits_empty(shape, nodes), ~fit))


def _refused(grid: Grid, shape: Shape, nodes: Ints) -> tuple[Found, Ints]:
    """What filters refuse of these nodes, the nearest first; and those of them that none refuses."""
    found: Found = []
    left = nodes
    for one in FILTERS:
        passes = one.passes(grid, shape, left)
        refused, left = left[~passes], left[passes]
        if len(refused):
            nearest = int(refused[0])
            words = one.refusal(grid, shape, nearest) or ""
            if len(refused) > 1:
                words = f"on {_of_all(grid, refused)} {one.several(grid, shape, refused)}; the nearest: {words}"
            found.append((nearest, words))
    return found, left


class _HeldBack:
    """Why an ask may not start where it fits: a quota, or somebody for whom that is kept."""

    def __init__(self, snapshot: Snapshot, outcome: Pass | Plan, ask: Ask) -> None:
        self._snapshot, self._gate, self._now, self._ask = snapshot, outcome.gate, outcome.now, ask
        self._reserved = snapshot.kept.mask(ask, snapshot.grid.shape(ask.request))
        self._reserving: defaultdict[int, list[str]] = defaultdict(list)
        for number, name, _, _ in snapshot.kept.windows():
            self._reserving[number].append(name)
        self._promised: dict[str, float] = {}  # by node, when the first starts that stands ahead
        mine = _place(snapshot, outcome, ask.workload_id)
        for promise in outcome.promises.values():
            if promise.at is not None and _place(snapshot, outcome, promise.workload_id) < mine:
                for lease in promise.leases:
                    self._promised[lease.node] = min(promise.at, self._promised.get(lease.node, promise.at))

    def found(self, left: Ints, within: Bools) -> Iterator[tuple[int, str]]:
        """(its nearest node, what is to be said) of each group of these nodes; `within` [N]: those within quota."""
        grid, groups = self._snapshot.grid, defaultdict[str, list[int]](list)
        for number in left.tolist():
            words = self._kept_for(number) if within[number] else ""
            groups[words].append(number)
        for words, numbers in groups.items():
            free = f"{_free(grid, self._ask, numbers[0])} free on {_some(grid, numbers)}"
            over = f"more than the quota of the tenant {self._ask.tenant} leaves"
            yield numbers[0], f"{free} are kept for {words}" if words else f"{free} are {over}"

    def _kept_for(self, number: int) -> str:
        if self._reserved is not None and not self._reserved[number]:
            return self._reservation(number)
        if self._gate.claims.kept(number):
            return "one ahead of it, until enough has ended there"
        at = self._promised.get(self._snapshot.grid.nodes[number].name, np.inf)
        if at <= self._now:
            return "one ahead of it, for which others are making room"
        if at < self._gate.until(self._ask):
            return f"one ahead of it, which starts within {format_duration(at - self._now)}"
        first = self._snapshot.ahead.first_ends()[number]
        within = f" within {format_duration(first - self._now)}" if np.isfinite(first) else ""
        return f"those ahead of it, but for what ends{within}"

    def _reservation(self, number: int) -> str:
        """Of those that keep something there, the one that has begun, else the one that begins first."""
        named = {one.id: one for one in self._snapshot.rules.reservations}
        here = [named[name] for name in self._reserving[number] if name in named]
        if not here:
            return "a reservation"
        one = min(here, key=lambda one: (one.starts_at > self._now, one.starts_at, one.id))
        whose = f"{one.owner or one.tenant}{f' ({one.title})' if one.title else ''}"
        if one.starts_at > self._now:
            return f"{whose}, whose reservation begins in {format_duration(one.starts_at - self._now)}"
        return f"{whose}, whose reservation ends in {format_duration(one.ends_at - self._now)}"


def _place(snapshot: Snapshot, outcome: Pass | Plan, workload_id: str) -> int:
    """Where it stands in the order of the pass; behind everybody where it came later."""
    slot, order = snapshot.queue.slot(workload_id), outcome.order
    place = order.place(slot) if len(order) else 0
    return place if slot >= 0 and len(order) and order.slots[place] == slot else len(order)


# --- words ------------------------------------------------------------------------------------------------------------


def _of_all(grid: Grid, nodes: Ints) -> str:
    count, total = len(nodes), len(grid.nodes)
    return f"all {total} machines" if count == total else f"{count} of {total} machines"


def _some(grid: Grid, nodes: Sequence[int]) -> str:
    name, more = grid.nodes[nodes[0]].name, len(nodes) - 1
    return f"{name} and {more} more machine{'s' if more > 1 else ''}" if more else name


def _free(grid: Grid, ask: Ask, number: int) -> str:
    """What is free of what it asks for."""
    shape = grid.shape(ask.request)
    if ask.request.gpu is None:
        return str(Request(int(grid.cpus[number]), int(grid.memory[number])))
    if ask.request.gpu.whole:
        count = int(np.count_nonzero(grid.cards_fit(shape, np.array([number]))))
        return f"{count} whole card{'s' if count > 1 else ''}"
    cards = [card for card, _ in matching(grid, shape, number)]
    return f"{format_memory(int(grid.free_mib[number, cards].max()))} of a card"


def _asked(grid: Grid, shape: Shape, number: int) -> str:
    """What was asked for; a part of a card also as what that is in GiB there (in slots and MIG instances it is
    more), to compare it with what is free."""
    gpu = shape.request.gpu
    if gpu is None:
        return str(shape.request)
    parts = (part_of(device, gpu) for _, device in matching(grid, shape, number) if not gpu.whole)
    sizes = {part.memory_mib for part in parts if part is not None}
    if len(sizes) != 1 or sizes == {gpu.vram_mib}:
        return str(gpu)
    size = format_memory(sizes.pop())
    return f"{gpu} ({size})" if gpu.fraction_milli else f"{gpu} (a share of {size})"
