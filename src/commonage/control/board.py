"""Everything that has not ended, in memory: what loops and answers look at instead of the database.

Only the ledger changes workloads here, after it has written them; only the fleet loop changes nodes. Nothing on the
board is the only copy of anything: at start it is read from the store.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator

from sortedcontainers import SortedKeyList

from commonage.domain.fleet import Node
from commonage.domain.ids import attempt_id
from commonage.domain.requests import Request
from commonage.domain.tenants import Rules
from commonage.domain.workloads import State, Workload
from commonage.placement.plan import Plan
from commonage.placement.snapshot import Ask, Held, Snapshot

MOST_SHAPES = 100_000


class Board:
    """The live workloads by id, the queue in order, what is held, and the machines."""

    def __init__(self) -> None:
        self._workloads: dict[str, Workload] = {}
        self._by_state: dict[State, dict[str, None]] = defaultdict(dict)
        self._asks: dict[str, Ask] = {}
        self._queue: SortedKeyList[Ask, tuple[int, float, str]] = SortedKeyList(key=_order)
        self._dependents: dict[str, set[str]] = defaultdict(set)
        self._shapes: dict[Request, int] = {}
        self._last_shape = 0
        self.nodes: dict[str, Node] = {}
        self.outcome: Plan | None = None
        self.rules = Rules()
        self.changed = asyncio.Event()  # something the planner should know

    def get(self, workload_id: str) -> Workload | None:
        """A live workload."""
        return self._workloads.get(workload_id)

    def __len__(self) -> int:
        return len(self._workloads)

    def __iter__(self) -> Iterator[Workload]:
        return iter(list(self._workloads.values()))

    def put(self, workload: Workload) -> None:
        """Take in a workload as it was just written; an ended one leaves the board."""
        before = self._workloads.get(workload.id)
        if before is not None:
            self._by_state[before.state].pop(before.id, None)
        self._requeue(workload)
        if workload.state.is_terminal:
            self._workloads.pop(workload.id, None)
            for dependency in workload.spec.depends_on:
                self._dependents[dependency.workload_id].discard(workload.id)
                if not self._dependents[dependency.workload_id]:
                    del self._dependents[dependency.workload_id]
        else:
            self._workloads[workload.id] = workload
            self._by_state[workload.state][workload.id] = None
            for dependency in workload.spec.depends_on:
                self._dependents[dependency.workload_id].add(workload.id)
        if before is None or before.state is not workload.state:
            self.changed.set()

    def _requeue(self, workload: Workload) -> None:
        waits = workload.state is State.QUEUED
        ask = self._asks.get(workload.id)
        if ask is not None and not waits:
            self._queue.remove(ask)
            del self._asks[workload.id]
        elif ask is None and waits:
            ask = self.ask_of(workload)
            self._asks[workload.id] = ask
            self._queue.add(ask)

    def ask_of(self, workload: Workload) -> Ask:
        """How the planner sees a workload that waits."""
        spec = workload.spec
        return Ask(
            workload_id=workload.id,
            attempt_id=attempt_id(workload.id, workload.attempts + 1),
            request=spec.request,
            shape=self.shape_of(spec.request),
            priority=spec.priority,
            submitted_at=workload.submitted_at,
            time_limit_s=spec.time_limit_s,
        )

    def shape_of(self, request: Request) -> int:
        """A number that only equal requests share."""
        shape = self._shapes.get(request)
        if shape is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()  # equal requests may then differ, which costs the planner time and nothing else
            shape = self._last_shape = self._last_shape + 1
            self._shapes[request] = shape
        return shape

    def in_state(self, *states: State) -> list[Workload]:
        """Live workloads in these states, in no order that means anything."""
        return [self._workloads[workload_id] for state in states for workload_id in self._by_state[state]]

    def counts(self) -> dict[State, int]:
        """How many live workloads are in each state."""
        return {state: len(members) for state, members in self._by_state.items() if members}

    def dependents_of(self, workload_id: str) -> list[str]:
        """Live workloads that wait for this one."""
        return list(self._dependents.get(workload_id, ()))

    def queue_length(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    def position(self, workload_id: str) -> int | None:
        """Place in the queue from 1; None if it does not stand in it."""
        ask = self._asks.get(workload_id)
        return None if ask is None else self._queue.index(ask) + 1

    def ask(self, workload_id: str) -> Ask | None:
        """The queued workload's ask."""
        return self._asks.get(workload_id)

    def held(self) -> list[Held]:
        """All leases that are held now."""
        return [_held(one) for one in self.in_state(State.STARTING, State.RUNNING) if one.attempt is not None]

    def snapshot(self, now: float) -> Snapshot:
        """What the planner sees. The queue is the board's own: read it before the next await."""
        return Snapshot(now, tuple(self.nodes.values()), self.held(), self._queue)

    def govern(self, rules: Rules) -> None:
        """Plan by these rules from now on."""
        self.rules = rules
        self.changed.set()

    def load(self, workloads: Iterable[Workload], nodes: Iterable[Node]) -> None:
        """Take in what the store remembers, at start."""
        for workload in workloads:
            self.put(workload)
        self.nodes.update((node.name, node) for node in nodes)


def _order(ask: Ask) -> tuple[int, float, str]:
    return ask.order


def _held(workload: Workload) -> Held:
    attempt, spec = workload.attempt, workload.spec
    assert attempt is not None  # in_state() gave only those with one
    name = spec.name or spec.kind.value
    return Held(attempt.lease, workload.id, name, spec.owner, spec.kind, workload.deadline)
