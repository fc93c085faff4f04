"""The plan: who starts now and where, who is promised what, who must go. A pure function of a snapshot and an instant.

One pass goes through the queue in its order (queue.py). What fits nowhere is left out as a whole, by sort; of the
others only the first of each class is looked at, as what is refused to one is refused to all behind it that ask the
same for as long or longer. Where is the policy's choice (policies/), among the places that the gate leaves open
(backfill.py), within quotas (quota.py). When `plan` returns the snapshot is as it was; committing is the schedule
loop's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from commonage.domain.fleet import Lease
from commonage.domain.tenants import Quota
from commonage.placement.affinity import nearest
from commonage.placement.asks import Ask, Held
from commonage.placement.backfill import MOST_PROMISES, Gate, Promise
from commonage.placement.preemption import Preemption
from commonage.placement.queue import Order
from commonage.placement.quota import Standing, amounts_of
from commonage.placement.shapes import Bools, Ints, Shape
from commonage.placement.snapshot import Snapshot

MOST_TRIES = 4 * MOST_PROMISES
"""So many of the first that wait are looked at for a promise: of some no time limit tells when they can start."""
LONGEST = 1 << 26  # seconds: longer than any time limit, and what stands for none
SOON_S = 60.0  # for who can start so soon anyway nobody is evicted
NOT_YET = float("nan")  # no limit is as long


@dataclass(frozen=True, slots=True)
class Eviction:
    """`workload_id` is to give its place to `for_id` and return to the queue; `reason` tells its owner why."""

    workload_id: str
    reason: str
    for_id: str


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What starts, by workload and in order. `promises` by workload, of a gang by its first member. `order` is the
    queue as the pass saw it, `gate` what it let start where. `words` remembers what explain.py says to each class."""

    now: float
    started: dict[str, Held]
    promises: dict[str, Promise]
    evictions: tuple[Eviction, ...]
    order: Order
    gate: Gate
    words: dict[object, tuple[str, ...]] = field(default_factory=dict)

    @property
    def starts(self) -> tuple[tuple[str, Lease], ...]:
        """(workload id, lease) of each that starts, in order."""
        return tuple((workload_id, held.lease) for workload_id, held in self.started.items())


def plan(snapshot: Snapshot, now: float) -> Plan:
    """Who starts now. The same snapshot gives the same plan."""
    with passed(snapshot, now) as done:
        return done.plan()


@contextmanager
def passed(snapshot: Snapshot, now: float) -> Iterator[Pass]:
    """The pass, with the snapshot as it will be once it is carried out: for explanations."""
    snapshot.ready(now)
    with snapshot.trial():
        one = Pass(snapshot, now)
        one.run()
        yield one


class Pass:
    """One pass over the queue, under way or done. `started` and `promises` are by workload id, in order."""

    def __init__(self, snapshot: Snapshot, now: float, order: Order | None = None) -> None:
        self.snapshot, self.now = snapshot, now
        self.order = snapshot.order(now) if order is None else order
        self.gate = Gate(snapshot.grid, snapshot.ahead, snapshot.kept, snapshot.rules.reservations, now)
        self.started: dict[str, Held] = {}
        self.promises: dict[str, Promise] = {}
        self.evictions: list[Eviction] = []
        self._gone: Bools = np.zeros(len(self.order), np.bool_)  # started, or passed over by quota
        self._seen = 0  # everybody before this index was looked at
        self._tries = 0
        self._keeps = True  # one machine may be kept for the first that waits in vain
        self._guards: Bools = np.zeros(len(snapshot.fits.count), np.bool_)
        self._refused: dict[tuple[object, ...], float] = {}  # from which time limit on, in seconds
        self._bounded = any(one.quota != Quota() for one in snapshot.rules.tenants)

    def plan(self) -> Plan:
        """What came of it."""
        return Plan(self.now, self.started, self.promises, tuple(self.evictions), self.order, self.gate)

    def run(self) -> None:
        """Go through the queue once."""
        turns, classes = self._turns()
        while turns:
            index, number, place = heappop(turns)
            if self._refused_before(index):
                continue
            self._pass_over(index)
            members = classes[number]
            asks = self.unit(index)
            standing = self.standing(asks)
            if not standing.starts:
                self._reclaim(index)
                self._gone[members[place:]] = True
            elif self._start(index, asks):
                self._gone[index] = True
                if place + 1 < len(members):
                    heappush(turns, (int(members[place + 1]), number, place + 1))
        if self._tries < MOST_TRIES:
            self._pass_over(len(self.order), guard=False)

    # --- whose turn it is -----------------------------------------------------------------------------------------

    def _turns(self) -> tuple[list[tuple[int, int, int]], list[Ints]]:
        """A heap of (index in the order, class, place in the class), and the classes: indices of who ask the same.

        Only of what fits somewhere. Where quotas or reservations tell accounts apart, so do the classes.
        """
        order, fits = self.order, self.snapshot.fits
        alive = fits.count > 0
        single = alive[order.sorts] & order.leads
        gangs = [index for index in self._gangs() if alive[order.sorts[index]]]
        single[gangs] = False
        indices = np.flatnonzero(single)
        limits = np.minimum(order.limits[indices], LONGEST).astype(np.int64)
        code = order.sorts[indices] * (2 * LONGEST) + limits
        if self._bounded or self.snapshot.rules.reservations:
            code = np.unique(code, return_inverse=True)[1] * len(self.snapshot.usage.names) + order.accounts[indices]
        by_class = np.argsort(code, kind="stable")
        cuts = np.flatnonzero(np.diff(code[by_class])) + 1
        classes = np.split(indices[by_class], cuts) if len(indices) else []
        classes += [np.array([index]) for index in gangs]
        turns = [(int(members[0]), number, 0) for number, members in enumerate(classes)]
        heapify(turns)
        return turns, classes

    def _gangs(self) -> list[int]:
        """Where the first members of gangs stand."""
        queue = self.snapshot.queue
        first = [queue.slot(queue.gang(name)[0].workload_id) for name in queue.gangs()]
        found: list[int] = np.flatnonzero(np.isin(self.order.slots, first)).tolist() if first else []
        return found

    def unit(self, index: int) -> Sequence[Ask]:
        """Who starts together with the one at this index: it alone, or its gang."""
        queue = self.snapshot.queue
        ask = queue.asks[self.order.slots[index]]
        assert ask is not None  # the queue does not change during a pass
        return [ask] if ask.gang is None else queue.gang(ask.gang)

    def _pass_over(self, upto: int, *, guard: bool = True) -> None:
        """All before `upto` that have not started wait: promise the first of them, guard what others could use."""
        indices = np.arange(self._seen, upto)
        self._seen = max(self._seen, upto)
        waiting = indices[~self._gone[indices] & self.order.leads[indices]]
        tried = 0
        for index in waiting.tolist():
            if len(self.promises) >= MOST_PROMISES or self._tries >= MOST_TRIES:
                break
            tried += 1
            self._tries += 1
            self._promise(index)
        if not guard or tried == len(waiting):
            return
        sorts = self.order.sorts[waiting[tried:]]
        for sort in np.unique(sorts[~self._guards[sorts]]).tolist():
            self._guards[sort] = True
            self.gate.guard(self.snapshot.fits.empty[sort])
        self._tries = MOST_TRIES  # who comes now stands behind those that only the guard protects

    def _promise(self, index: int) -> None:
        """The earliest place and time, one that others make room for, or a machine that is kept."""
        asks, sort = self.unit(index), int(self.order.sorts[index])
        if len(asks) < asks[0].gang_size:
            return
        shape, promise = self.snapshot.fits.shape(sort), None
        starts = self.standing(asks).starts
        when = self.gate.when(asks, shape) if starts else None
        if when is None or when[0] > self.now + SOON_S:
            promise = self._evict(asks, shape)
        if promise is None and when is not None:
            promise = self.gate.promise(asks, shape, when)
        patient = self.now - asks[0].submitted_at <= self.snapshot.rules.patience_s
        if promise is None and starts and self._keeps and not patient:
            promise = self.gate.keep(asks, shape, self.snapshot.fits.empty[sort])
            self._keeps = promise is None
        if promise is not None:
            self.promises[asks[0].workload_id] = promise

    def _reclaim(self, index: int) -> None:
        """It is over its quota, but may have something coming to it."""
        if self._tries < MOST_TRIES:
            self._tries += 1
            self._promise(index)

    def _evict(self, asks: Sequence[Ask], shape: Shape) -> Promise | None:
        """Have others make room, if it has a right to that; not twice, while they are on their way out."""
        snapshot, ask = self.snapshot, asks[0]
        if not snapshot.holdings.preemptible.any():
            return None
        ending = [one for one in snapshot.holdings if one.ending]
        if any(one.recalled_for == ask.workload_id for one in ending):
            return None
        spared = {one.lease.attempt_id for one in (*ending, *self.started.values())} | snapshot.kept.counted
        rules = Preemption(snapshot.grid, snapshot.holdings, snapshot.quotas, snapshot.rules.guaranteed_s, spared)
        found = rules.victims(ask, shape, self.now, self.gate.open_to(ask, shape))
        if found is None or not found.victims:
            return None
        for victim in found.victims:
            self.evictions.append(Eviction(victim.held.workload_id, victim.reason, ask.workload_id))
        return self.gate.make_room(asks, shape, found.nodes, [victim.held for victim in found.victims])

    # --- starting -------------------------------------------------------------------------------------------------

    def standing(self, asks: Sequence[Ask]) -> Standing:
        """What quotas say to those who start together."""
        ask = asks[0]
        if not self._bounded:
            return Standing.OWN
        amounts = total = amounts_of(self.snapshot.grid.shape(ask.request))
        for _ in asks[1:]:
            total = total.plus(amounts)
        return self.snapshot.quotas.standing(ask.tenant, ask.owner, total)

    def allowed(self, ask: Ask, shape: Shape) -> Bools:
        """[N]: where an ask may start now, as things stand."""
        fit = np.isfinite(self.snapshot.policy.costs(shape))
        if self._bounded:
            within = self.snapshot.quotas.mask(self.snapshot.grid, shape, ask.tenant, ask.owner)
            fit = fit if within is None else fit & within
        return self.gate.mask(ask, shape, fit)

    def _start(self, index: int, asks: Sequence[Ask]) -> bool:
        """Start them if there is a place for each."""
        ask = asks[0]
        if len(asks) < ask.gang_size:
            return False
        shape = self.snapshot.fits.shape(int(self.order.sorts[index]))
        allowed = self.allowed(ask, shape)
        if np.count_nonzero(allowed) < len(asks):
            if len(asks) == 1:
                self._refused[self._lane(index, ask)] = float(self.order.limits[index])
            return False
        costs = np.where(allowed, self.snapshot.policy.costs(shape), np.inf)
        for member in asks:
            number = nearest(costs, lambda number: self.snapshot.runs(ask.environment, number))
            self._place(member, shape, number)
            costs[number] = np.inf
        return True

    def _lane(self, index: int, ask: Ask) -> tuple[object, ...]:
        """All of a lane meet the same answers: what is refused to one is refused to who asks it for longer."""
        account = int(self.order.accounts[index]) if self._bounded else None
        return (int(self.order.sorts[index]), account, self.gate.exempt(ask))

    def _refused_before(self, index: int) -> bool:
        ask = self.unit(index)[0]
        return float(self.order.limits[index]) >= self._refused.get(self._lane(index, ask), NOT_YET)

    def _place(self, ask: Ask, shape: Shape, number: int) -> None:
        cards = self.gate.cards(ask, shape, number)
        if cards is None:
            with self.snapshot.kept.aside(ask, shape, number):
                cards = self.snapshot.policy.cards(shape, number)
        lease = self.snapshot.grid.lease(shape, number, cards, ask.attempt_id, self.now)
        held = held_by(ask, lease)
        self.started[ask.workload_id] = held
        self.snapshot.start(held)
        self.gate.claims.taken(lease)


def held_by(ask: Ask, lease: Lease) -> Held:
    """The lease of an ask that starts now, as the next snapshot would show it."""
    return Held(
        lease=lease,
        workload_id=ask.workload_id,
        name="",
        owner=ask.owner,
        kind=ask.kind,
        ends_at=None if ask.time_limit_s is None else lease.at + ask.time_limit_s,
        tenant=ask.tenant,
        environment=ask.environment,
        priority=ask.priority,
        preemptible=ask.preemptible,
        gang=ask.gang,
    )
