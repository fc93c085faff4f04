"""The queue: all waiting requests in one total order.

The snapshot adds and removes requests; the pass and the explanations read the same order. Whether a request fits is
decided elsewhere. Columns are numpy arrays by slot: ordering 100,000 requests takes milliseconds.

Higher priority comes first. Within a priority the lower key in capacity-seconds (see fair_share.py) comes first:

    key = (tenant's debt + members waiting * (user's debt + cost of the user's own requests ahead)) / tenant's weight
          + age credit * submission time

The cost of a request is its dominant share times the entry penalty: a user's requests count as if each had started in
turn, so that two users with many requests alternate. The requests of one user are ordered by priority, then age. Ties
go to the older request, then to the lower id. A gang takes the position of its first member.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commonage.domain.requests import Request
from commonage.domain.tenants import Rules
from commonage.scheduler.model.groups import Groups
from commonage.scheduler.model.shapes import Floats, Ints, QueuedRequest
from commonage.scheduler.queue.fair_share import Usage

COST_UNIT = 1e9  # costs are summed in whole billionths of the capacity, so that the order of summation does not matter
FEW_CHANGES = 64  # arrivals and departures between two orders that are applied one by one
SLOT, ACCOUNT, CLASS, AHEAD = range(4)  # the lines of `Queue._columns`


@dataclass(frozen=True, eq=False)
class QueueOrder:
    """The queue at `now`, first to last. Columns [n]: `slots` of the queue, `request_classes`, `accounts`, `limits`
    (time limits in seconds, inf for none), and `leads` (False for members of a gang behind the first). Accounts and
    limits are those of the queue, by slot; read them before it changes.
    """

    now: float
    version: int
    slots: Ints
    request_classes: Ints
    account_of: Ints
    limit_of: Floats
    leads: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.slots)

    @cached_property
    def accounts(self) -> Ints:
        return self.account_of[self.slots]

    @cached_property
    def limits(self) -> Floats:
        return self.limit_of[self.slots]

    def limits_at(self, indices: Ints) -> Floats:
        """[indices]: the limits of some requests, without those of all."""
        limits: Floats = self.limit_of[self.slots[indices]]
        return limits

    def only(self, which: Ints | npt.NDArray[np.bool_]) -> QueueOrder:
        return replace(
            self, slots=self.slots[which], request_classes=self.request_classes[which], leads=self.leads[which]
        )

    def place(self, slot: int) -> int:
        return int(np.argmax(self.slots == slot))


class Queue:
    """Requests by workload id. Equal requests share a request class: a number that is reused once no request has it."""

    def __init__(self) -> None:
        self.version = 0
        self.queued_requests: list[QueuedRequest | None] = []
        self._class_of: dict[Request, int] = {}
        self._class_sizes: list[int] = []
        self._slot: dict[str, int] = {}
        self._free: list[int] = []
        self._free_classes: list[int] = []
        self._gangs: defaultdict[str, set[int]] = defaultdict(set)
        self._priorities: Counter[int] = Counter()
        self._arrived: list[int] = []
        self._left: list[tuple[int, QueuedRequest]] = []  # their slots are reused after the next order
        # In the last order, which is nearly the next one: it sorts fast. `AHEAD` is the cost of the requests of the
        # same account ahead, in `COST_UNIT`.
        self._columns: Ints = np.zeros((4, 0), np.int64)
        self._ages: Floats = np.zeros(0)  # submission times
        self._costs: Ints = np.zeros(0, np.int64)  # of each request class, as counted in `AHEAD`
        self._account: Ints = np.zeros(64, np.int64)
        self._request_class: Ints = np.zeros(64, np.int64)
        self._priority: Ints = np.zeros(64, np.int64)
        self._submitted: Floats = np.zeros(64)
        self._limit: Floats = np.zeros(64)
        self._environment: Ints = np.zeros(64, np.int64)
        self._environments: dict[str, int] = {}  # the number of each, in order of appearance
        self._group: Ints = np.zeros(64, np.int64)
        self.groups = Groups()
        self._is_queued: npt.NDArray[np.bool_] = np.zeros(64, np.bool_)
        self._last: tuple[tuple[object, ...], QueueOrder, Floats] | None = None  # with the keys, in order

    def __len__(self) -> int:
        return len(self._slot)

    def __contains__(self, workload_id: str) -> bool:
        return workload_id in self._slot

    def __iter__(self) -> Iterator[QueuedRequest]:
        """All requests, in no particular order."""
        return (queued for queued in self.queued_requests if queued is not None)

    def get(self, workload_id: str) -> QueuedRequest | None:
        slot = self._slot.get(workload_id)
        return None if slot is None else self.queued_requests[slot]

    def in_environment(self, slots: Ints, environment: str) -> npt.NDArray[np.bool_]:
        """[slots]: True for requests in this environment."""
        same: npt.NDArray[np.bool_] = self._environment[slots] == self._environments.get(environment, -1)
        return same

    def groups_of(self, slots: Ints) -> Ints:
        """[slots]: the numbers in `groups`."""
        numbers: Ints = self._group[slots]
        return numbers

    def has_class(self, count: int) -> npt.NDArray[np.bool_]:
        """[count]: the request classes of which something is queued."""
        return np.array([*(size > 0 for size in self._class_sizes), *[False] * (count - len(self._class_sizes))])

    def slot(self, workload_id: str) -> int:
        """The slot of a workload; -1 if it is not queued."""
        return self._slot.get(workload_id, -1)

    @property
    def last(self) -> QueueOrder | None:
        """The order computed last, if no request came or left since."""
        return self._last[1] if self._last is not None and self._last[1].version == self.version else None

    # --- changes -----------------------------------------------------------------------------------------

    def enqueue(self, queued: QueuedRequest, account: int) -> int:
        """Add or replace a request; returns its request class."""
        self.dequeue(queued.workload_id)
        slot = self._free.pop() if self._free else len(self.queued_requests)
        if slot == len(self.queued_requests):
            self.queued_requests.append(None)
            if slot >= len(self._account):
                self._grow()
        request_class = self._class_for(queued.request)
        self.queued_requests[slot] = queued
        self._slot[queued.workload_id] = slot
        self._account[slot], self._request_class[slot], self._priority[slot] = account, request_class, queued.priority
        self._submitted[slot] = queued.submitted_at
        self._limit[slot] = np.inf if queued.time_limit_s is None else queued.time_limit_s
        self._environment[slot] = self._environments.setdefault(queued.environment, len(self._environments))
        self._group[slot] = self.groups.number(queued.kind, queued.environment, queued.owner)
        self._is_queued[slot] = True
        self._priorities[queued.priority] += 1
        if queued.gang is not None:
            self._gangs[queued.gang].add(slot)
        self._arrived.append(slot)
        self.version += 1
        return request_class

    def dequeue(self, workload_id: str) -> None:
        slot = self._slot.pop(workload_id, None)
        queued = None if slot is None else self.queued_requests[slot]
        if slot is None or queued is None:
            return
        self.queued_requests[slot] = None
        self._is_queued[slot] = False
        self._left.append((slot, queued))
        self._priorities[queued.priority] -= 1
        if not self._priorities[queued.priority]:
            del self._priorities[queued.priority]
        if queued.gang is not None:
            self._gangs[queued.gang].discard(slot)
            if not self._gangs[queued.gang]:
                del self._gangs[queued.gang]
        request_class = int(self._request_class[slot])
        self._class_sizes[request_class] -= 1
        if not self._class_sizes[request_class]:
            del self._class_of[queued.request]
            self._free_classes.append(request_class)
        self.version += 1

    def _class_for(self, request: Request) -> int:
        request_class = self._class_of.get(request)
        if request_class is None:
            request_class = self._free_classes.pop() if self._free_classes else len(self._class_sizes)
            if request_class == len(self._class_sizes):
                self._class_sizes.append(0)
            self._class_of[request] = request_class
        self._class_sizes[request_class] += 1
        return request_class

    def _grow(self) -> None:
        for name in (
            "_account",
            "_request_class",
            "_priority",
            "_submitted",
            "_limit",
            "_environment",
            "_group",
            "_is_queued",
        ):
            old = getattr(self, name)
            setattr(self, name, np.concatenate((old, np.zeros_like(old))))

    # --- order ----------------------------------------------------------------------------------------------------

    def order(self, now: float, usage: Usage, rules: Rules, costs: Floats) -> QueueOrder:
        """The order at `now`. `costs` is the dominant share of each request class."""
        state = (now, self.version, usage.version, rules, costs.tobytes())
        if self._last is None or self._last[0] != state:
            self._merge_changes(np.rint(costs * COST_UNIT).astype(np.int64))
            keys, leads = self._sort(self._keys(now, usage, rules))
            slots, classes = self._columns[SLOT], self._columns[CLASS]
            self._last = (state, QueueOrder(now, self.version, slots, classes, self._account, self._limit, leads), keys)
        return self._last[1]

    def _keys(self, now: float, usage: Usage, rules: Rules) -> Floats:
        """[n]: the sort keys of all requests, in capacity-seconds."""
        own, of_tenants = usage.debts(now)
        accounts = self._columns[ACCOUNT]
        tenant = usage.tenant_of[: len(own)]
        waits = np.bincount(accounts, minlength=len(own)) > 0
        members = np.bincount(tenant[waits], minlength=len(of_tenants))[tenant]
        weight_of = {one.name: one.weight for one in reversed(rules.tenants)}
        weights = np.array([max(weight_of.get(name, 1.0), 1e-9) for name in usage.tenants])[tenant]
        base = (of_tenants[tenant] + members * own) / weights
        step = members * rules.entry_penalty_s / weights / COST_UNIT
        keys: Floats = step[accounts]
        keys *= self._columns[AHEAD]
        keys += base[accounts]
        keys += rules.age_credit * self._ages
        return keys

    def _sort(self, keys: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Order the columns by priority, key and age; returns the keys and `leads` in this order."""
        behind = self._join_gangs(keys) if self._gangs else None
        levels = () if len(self._priorities) < 2 else (-self._priority[self._columns[SLOT]],)
        order = np.lexsort((keys, *levels)) if levels else np.argsort(keys, kind="stable")
        keys = keys[order]
        equal = keys[1:] == keys[:-1]
        if bool(equal.any()):
            tied = np.flatnonzero(np.concatenate((equal, [False])) | np.concatenate(([False], equal)))
            some = order[tied]
            before = [key[some] for key in levels]
            order[tied] = some[self._by_age(some, (keys[tied], *before))]
        self._columns, self._ages = self._columns.take(order, axis=1), self._ages[order]
        return keys, np.ones(len(order), np.bool_) if behind is None else ~behind[order]

    def _by_age(self, rows: Ints, before: tuple[Ints | Floats, ...]) -> Ints:
        """The order of rows by the keys `before` (the last counts most), then submission time, then id."""
        keys = (self._ages[rows], *before)
        order = np.lexsort(keys)
        equal = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
        cuts = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        for first, last in zip(cuts[::2].tolist(), (cuts[1::2] + 1).tolist(), strict=True):
            ids = [self._queued(slot).workload_id for slot in self._columns[SLOT, rows[order[first:last]]].tolist()]
            order[first:last] = order[first:last][sorted(range(len(ids)), key=ids.__getitem__)]
        return order

    def _join_gangs(self, keys: Floats) -> npt.NDArray[np.bool_]:
        """Give gang members the key of their first; returns [n]: True for those behind the first."""
        row_of = np.empty(len(self._is_queued), np.int64)
        row_of[self._columns[SLOT]] = np.arange(len(keys))
        behind = np.zeros(len(keys), np.bool_)
        for slots in self._gangs.values():
            members = row_of[sorted(slots, key=self._age_of)]
            keys[members] = keys[members].min()
            behind[members[1:]] = True
        return behind

    def ranks(self, now: float, usage: Usage, rules: Rules, costs: Floats) -> tuple[Ints, Floats, Floats]:
        """[slots]: priority, submission time and sort key of all requests, for explanations."""
        slots = self.order(now, usage, rules, costs).slots
        assert self._last is not None  # from the order
        keys = np.zeros(len(self._is_queued))
        keys[slots] = self._last[2]
        return self._priority, self._submitted, keys

    def gangs(self) -> list[str]:
        return list(self._gangs)

    def gang(self, name: str) -> list[QueuedRequest]:
        """The queued members of a gang, by age."""
        return [self._queued(slot) for slot in sorted(self._gangs.get(name, ()), key=self._age_of)]

    def _queued(self, slot: int) -> QueuedRequest:
        queued = self.queued_requests[slot]
        assert queued is not None  # callers pass slots in use
        return queued

    def _age_of(self, slot: int) -> tuple[float, str]:
        queued = self._queued(slot)
        return (queued.submitted_at, queued.workload_id)

    # --- columns --------------------------------------------------------------------------------------------------

    def _merge_changes(self, costs: Ints) -> None:
        """Bring the columns in step with the queue. A few changes only touch the requests of the same accounts."""
        slots, left = self._columns[SLOT], self._left
        arrived = np.array([slot for slot in dict.fromkeys(self._arrived) if self._is_queued[slot]], np.int64)
        is_known = np.array_equal(costs, self._costs) and len(left) + len(arrived) <= FEW_CHANGES
        gone = [row for slot, _ in left for row in np.flatnonzero(slots == slot).tolist()] if is_known else ()
        removed = [(int(self._columns[CLASS, row]), int(slots[row])) for row in gone]
        if gone:
            self._columns, self._ages = np.delete(self._columns, gone, axis=1), np.delete(self._ages, gone)
        elif left:
            stay = self._is_queued[slots]
            self._columns, self._ages = self._columns.compress(stay, axis=1), self._ages[stay]
        rows = len(self._ages)
        if len(arrived):
            fresh = np.stack((arrived, self._account[arrived], self._request_class[arrived], np.zeros_like(arrived)))
            self._columns = np.concatenate((self._columns, fresh), axis=1)
            self._ages = np.concatenate((self._ages, self._submitted[arrived]))
        self._costs = costs
        if is_known:
            gone_requests = dict(left)
            for request_class, slot in removed:
                self._count(slot, gone_requests[slot], -int(costs[request_class]), rows)
            for number, slot in enumerate(arrived.tolist()):
                cost = int(costs[self._request_class[slot]])
                self._columns[AHEAD, rows + number] = self._count(slot, self._queued(slot), cost, rows + number)
        else:
            self._count_all()
        self._free += [slot for slot, _ in left]
        self._arrived, self._left = [], []

    def _count(self, slot: int, queued: QueuedRequest, cost: int, rows: int) -> int:
        """Add the cost of a request to `AHEAD` of those behind it among the first `rows`; returns its own `AHEAD`."""
        same = np.flatnonzero(self._columns[ACCOUNT, :rows] == self._account[slot])
        slots = self._columns[SLOT, same]
        priority, ages = self._priority[slots], self._ages[same]
        behind = (priority < queued.priority) | ((priority == queued.priority) & (ages > queued.submitted_at))
        for index in np.flatnonzero((priority == queued.priority) & (ages == queued.submitted_at)).tolist():
            behind[index] = self._queued(int(slots[index])).workload_id > queued.workload_id
        self._columns[AHEAD, same[behind]] += cost
        return int(self._costs[self._columns[CLASS, same[~behind]]].sum())

    def _count_all(self) -> None:
        """Compute `AHEAD` of all requests."""
        columns = self._columns
        if not columns.shape[1]:
            return
        account = columns[ACCOUNT]
        order = self._by_age(np.arange(len(account)), (-self._priority[columns[SLOT]], account))
        account, cost = account[order], self._costs[columns[CLASS, order]]
        first = np.flatnonzero(np.concatenate(([True], account[1:] != account[:-1])))
        before = np.cumsum(cost) - cost
        before -= np.repeat(before[first], np.diff(np.concatenate((first, [len(cost)]))))
        columns[AHEAD, order] = before
