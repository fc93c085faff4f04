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

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
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
        self._left: list[int] = []  # their slots are reused after the next merge
        self._by_age: Ints = np.zeros(0, np.int64)
        self._slots: Ints = np.zeros(0, np.int64)  # in their last order
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
        self._last: tuple[tuple[object, ...], QueueOrder, Floats] | None = None  # with the keys of all slots
        self._lines: _Lines | None = None
        self._costs_ahead: tuple[tuple[int, bytes], Ints] | None = None

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
        self._left.append(slot)
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
            self._merge_changes()
            keys = self._keys(now, usage, rules, costs)
            behind = self._join_gangs(keys) if self._gangs else None
            self._last = (state, self._sorted(now, keys, behind), keys)
        return self._last[1]

    def _sorted(self, now: float, keys: Floats, behind: npt.NDArray[np.bool_] | None) -> QueueOrder:
        age = self._by_age
        before = self._nearly_sorted(age)
        if len(self._priorities) == 1:
            slots = self._ranked(before, keys)
        else:
            levels = (before[self._priority[before] == priority] for priority in sorted(self._priorities, reverse=True))
            slots = np.concatenate([age[:0], *(self._ranked(level, keys) for level in levels)])
        self._slots = slots
        leads = np.ones(len(slots), np.bool_) if behind is None else ~behind[slots]
        return QueueOrder(now, self.version, slots, self._request_class[slots], self._account, self._limit, leads)

    def _nearly_sorted(self, age: Ints) -> Ints:
        """All slots, nearly in order: the last order, then new ones. Nearly sorted input sorts ten times faster."""
        before = self._slots[self._is_queued[self._slots]]
        if len(before) == len(age):
            return before
        known = np.zeros(len(self._is_queued), np.bool_)
        known[before] = True
        return np.concatenate((before, age[~known[age]]))

    def _ranked(self, slots: Ints, keys: Floats) -> Ints:
        """The slots ordered by key, then age."""
        ranked = keys[slots]
        order = np.argsort(ranked, kind="stable")
        slots, ranked = slots[order], ranked[order]
        equal = ranked[1:] == ranked[:-1]
        if bool(equal.any()):
            rank = np.empty(len(self._is_queued), np.int64)
            rank[self._by_age] = np.arange(len(self._by_age))
            tied = np.concatenate((equal, [False])) | np.concatenate(([False], equal))
            some = slots[tied]
            slots[tied] = some[np.lexsort((rank[some], keys[some]))]
        return slots

    def _keys(self, now: float, usage: Usage, rules: Rules, costs: Floats) -> Floats:
        """[slots]: the sort keys of all requests, in capacity-seconds."""
        age = self._by_age
        keys = np.zeros(len(self._is_queued))
        if not len(age):
            return keys
        own, of_tenants = usage.debts(now)
        lines = self._by_account()
        mine, account, first = lines.slots, lines.accounts, lines.first
        tenant = usage.tenant_of[: len(own)]
        members = np.bincount(tenant[account[first]], minlength=len(of_tenants))[tenant]
        weights = np.array([max(rules.tenant(name).weight, 1e-9) for name in usage.tenants])[tenant]
        base = (of_tenants[tenant] + members * own) / weights
        step = members * rules.entry_penalty_s / weights / COST_UNIT
        keys[mine] = base[account] + step[account] * self._ahead(lines, costs) + rules.age_credit * lines.submitted
        return keys

    def _ahead(self, lines: _Lines, costs: Floats) -> Ints:
        """The cost of the requests of the same account ahead of each request, in the order of the lines."""
        state = (self.version, costs.tobytes())
        if self._costs_ahead is None or self._costs_ahead[0] != state:
            cost = np.rint(costs * COST_UNIT).astype(np.int64)[self._request_class[lines.slots]]
            before = np.cumsum(cost) - cost
            before -= np.repeat(before[lines.first], np.diff(np.concatenate((lines.first, [len(cost)]))))
            self._costs_ahead = (state, before)
        return self._costs_ahead[1]

    def _by_account(self) -> _Lines:
        levels = tuple(sorted(self._priorities, reverse=True))
        if self._lines is None or self._lines.levels != levels:
            codes = self._codes(self._by_age, levels)
            # numpy sorts 16-bit numbers by radix sort, in one sweep
            order = np.argsort(codes.astype(np.uint16) if int(codes.max()) < 65536 else codes, kind="stable")
            slots = self._by_age[order]
            self._lines = _Lines(levels, slots, codes[order], self._submitted[slots])
        return self._lines

    def _codes(self, slots: Ints, levels: tuple[int, ...]) -> Ints:
        """[slots]: a number for each account and priority; those of an account are adjacent."""
        if len(levels) < 2:
            return self._account[slots]
        level = np.searchsorted(-np.array(levels), -self._priority[slots])
        return np.asarray(self._account[slots] * len(levels) + level, np.int64)

    def _merge_lines(self, young: Sequence[int], *, has_left: bool) -> None:
        """Keep the lines in step with the queue: a few requests came, and some left."""
        lines, levels = self._lines, tuple(sorted(self._priorities, reverse=True))
        if lines is None or lines.levels != levels:
            self._lines = None
            return
        if has_left:
            lines = lines.only(self._is_queued[lines.slots])
        if young:
            fresh = np.array(young, np.int64)
            codes = self._codes(fresh, levels)
            begins, ends = np.searchsorted(lines.codes, codes), np.searchsorted(lines.codes, codes, side="right")
            places = [
                bisect_left(lines.slots, self._age_of(slot), begin, end, key=self._age_of)
                for slot, begin, end in zip(young, begins.tolist(), ends.tolist(), strict=True)
            ]
            order = np.lexsort((np.arange(len(fresh)), codes))
            lines = lines.with_inserted(
                np.array(places)[order], fresh[order], codes[order], self._submitted[fresh[order]]
            )
        self._lines = lines

    def _join_gangs(self, keys: Floats) -> npt.NDArray[np.bool_]:
        """Give gang members the key of their first; returns [slots]: True for those behind the first."""
        behind = np.zeros(len(self._is_queued), np.bool_)
        for slots in self._gangs.values():
            members = sorted(slots, key=self._age_of)
            keys[members] = keys[members].min()
            behind[members[1:]] = True
        return behind

    def ranks(self, now: float, usage: Usage, rules: Rules, costs: Floats) -> tuple[Ints, Floats, Floats]:
        """[slots]: priority, submission time and sort key of all requests, for explanations."""
        self.order(now, usage, rules, costs)
        assert self._last is not None  # from the order
        return self._priority, self._submitted, self._last[2]

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

    def _merge_changes(self) -> None:
        has_left = bool(self._left)
        if has_left:
            self._by_age = self._by_age[self._is_queued[self._by_age]]
            arrived = {slot for slot in self._arrived if self._is_queued[slot]}
            self._free += self._left
            self._left = []
        else:
            arrived = set(self._arrived)
        self._arrived = []
        if len(arrived) > 100 + len(self._by_age) // 10:
            self._by_age = np.array(sorted([*self._by_age.tolist(), *arrived], key=self._age_of), np.int64)
            self._lines = None
            return
        young = sorted(arrived, key=self._age_of)
        if young:
            places = [bisect_left(self._by_age, self._age_of(slot), key=self._age_of) for slot in young]
            self._by_age = np.insert(self._by_age, places, young)
        if young or has_left:
            self._merge_lines(young, has_left=has_left)


class _Lines:
    """The queue by account, then priority, then age. Columns [n]: `slots`, their `codes` (see `Queue._codes`), their
    submission times and `accounts`. `first` are the indices at which accounts begin.
    """

    def __init__(self, levels: tuple[int, ...], slots: Ints, codes: Ints, submitted: Floats) -> None:
        self.levels, self.slots, self.codes, self.submitted = levels, slots, codes, submitted
        self.accounts: Ints = codes if len(levels) < 2 else codes // len(levels)
        self.first: Ints = np.flatnonzero(np.concatenate(([True], self.accounts[1:] != self.accounts[:-1])))

    def only(self, which: npt.NDArray[np.bool_]) -> _Lines:
        return _Lines(self.levels, self.slots[which], self.codes[which], self.submitted[which])

    def with_inserted(self, places: Ints, slots: Ints, codes: Ints, submitted: Floats) -> _Lines:
        return _Lines(
            self.levels,
            np.insert(self.slots, places, slots),
            np.insert(self.codes, places, codes),
            np.insert(self.submitted, places, submitted),
        )
