"""A cluster that lives: work comes, starts as planned, ends, is evicted, nodes go and come back. On a fake clock.

The snapshot is told of everything as it happens; after each pass `check` compares what came of it with what must hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
from tests.unit.scheduler.clusters import GIB, NOW, Scene, essence, overdrawn

from commonage.domain.nodes import Node, NodeState
from commonage.domain.requests import Request, parse_gpus
from commonage.domain.tenants import Rules
from commonage.scheduler.model.queued_requests import Held, QueuedRequest
from commonage.scheduler.plan import Plan, plan
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

LONGEST_S = 60  # nothing runs longer, whether its time limit says so or nobody knows
HEAD_OF_QUEUE_TIMEOUT_S = 20.0
GRACE_S = 5.0
MOST_AS_HEAD_S = HEAD_OF_QUEUE_TIMEOUT_S + 2 * LONGEST_S + 2 * GRACE_S
RULES = Rules(
    policy="best-fit",
    head_of_queue_timeout_s=HEAD_OF_QUEUE_TIMEOUT_S,
    guaranteed_s=10.0,
    half_life_s=300.0,
    entry_penalty_s=30.0,
)
GPUS = (None, None, "0.25", "1/3", "0.5", "6GiB", "1", "1", "2", "3", "A100:1", "A100:20GiB")


@dataclass(frozen=True)
class Sort:
    """What may happen in a life."""

    rules: Rules = RULES
    endless: bool = True  # some work has no time limit
    gangs: bool = True
    losses: bool = True
    preemptible: bool = True


class Life:
    """One of many, by its seed."""

    def __init__(self, seed: int, sort: Sort | None = None) -> None:
        self.sort, self.random = sort or Sort(), Random(seed)
        self.now = NOW
        self.nodes = {node.name: node for node in self._cluster()}
        self.snapshot = Snapshot(list(self.nodes.values()), self.sort.rules)
        self.waiting: dict[str, QueuedRequest] = {}
        self.held: dict[str, tuple[Held, float]] = {}  # with when it really ends
        self.asked: dict[str, QueuedRequest] = {}
        self.head: tuple[str, float] | None = None
        self.started = self.evicted = 0

    def _cluster(self) -> list[Node]:
        nodes = []
        for number in range(self.random.randint(1, 4)):
            name, model = f"node-{number}", self.random.choice(["A30", "A100"])
            devices = [
                factories.device(
                    index, uuid=f"{name}-{index}", memory_mib=24 * GIB, model=model, numa=index % 2,
                    slots=self.random.choice([0, 0, 3]),
                )
                for index in range(self.random.randint(0, 4))
            ]  # fmt: skip
            cpus = self.random.randint(2, 16) * 1000
            nodes.append(factories.node(name, devices, cpus_milli=cpus, memory_mib=32 * GIB))
        return nodes

    # --- what happens ---------------------------------------------------------------------------------------------

    def enqueue(self, count: int = 1, **fields: object) -> list[QueuedRequest]:
        """So many equal asks of somebody."""
        gang = self.sort.gangs and count > 1 and self.random.random() < 0.5
        user, first = self.random.randint(1, 3), len(self.asked)
        limits = (5, 10, 30, LONGEST_S, *((None,) if self.sort.endless else ()))
        cpus = self.random.randint(1, 4) * 500
        base = QueuedRequest(
            workload_id="",
            attempt_id="",
            request=Request(cpus, self.random.randint(1, 8) * GIB, parse_gpus(self.random.choice(GPUS))),
            priority=self.random.choice([0, 0, 0, 10]),
            submitted_at=self.now,
            time_limit_s=self.random.choice(limits),
            owner=f"user-{user}",
            tenant=f"lab-{user % 2}",
            environment=self.random.choice("ab"),
            preemptible=self.sort.preemptible and self.random.random() < 0.3,
            gang=f"gang-{first}" if gang else None,
            gang_size=count if gang else 1,
        )
        queued_requests = []
        for number in range(first, first + count):
            name = f"w{number:012}"
            one = replace(base, workload_id=name, attempt_id=f"{name}-1", **fields)  # type: ignore[arg-type]
            self.asked[name] = self.waiting[name] = one
            self.snapshot.enqueue(one)
            queued_requests.append(one)
        return queued_requests

    def end(self, workload_id: str) -> None:
        """It is over, and back in the queue if it was only evicted."""
        held, _ = self.held.pop(workload_id)
        self.snapshot.release(workload_id, self.now)
        if held.evicted_for:
            number = int(held.allocation.attempt_id.rpartition("-")[2]) + 1
            again = replace(self.asked[workload_id], attempt_id=f"{workload_id}-{number}")
            self.asked[workload_id] = self.waiting[workload_id] = again
            self.snapshot.enqueue(again)

    def put(self, node: Node) -> None:
        """A node goes, or comes back; what runs on one that goes is lost, and the rest of its gangs with it."""
        self.nodes[node.name] = node
        self.snapshot.put([node])
        self.head = None
        if node.state is NodeState.LOST:
            gone = {name for name, (held, _) in self.held.items() if held.allocation.node == node.name}
            gangs = {self.held[name][0].gang for name in gone} - {None}
            for name in [name for name, (held, _) in self.held.items() if name in gone or held.gang in gangs]:
                del self.held[name]
                self.snapshot.release(name, self.now)

    def step(self, *, arrivals: bool = True) -> Plan:
        """Some time, whatever happens in it, and a pass."""
        later = self.now + self.random.choice([0.5, 1, 3, 10])
        ends = [at for _, at in self.held.values()]
        self.now = min([later, *ends]) if ends and self.random.random() < 0.5 else later
        for name in [name for name, (_, at) in self.held.items() if at <= self.now]:
            self.end(name)
        if self.sort.losses and arrivals and self.random.random() < 0.05:
            node = self.random.choice(list(self.nodes.values()))
            state = self.random.choice([NodeState.READY, NodeState.DRAINING, NodeState.LOST])
            self.put(replace(node, state=state))
        if arrivals and self.random.random() < 0.7:
            self.enqueue(self.random.choice([1, 1, 1, 2, 3]))
        return self.plan()

    def plan(self) -> Plan:
        """A pass, checked and carried out."""
        outcome = plan(self.snapshot, self.now)
        self.check(outcome)
        for name, held in outcome.started.items():
            queued = self.waiting.pop(name)
            really = self.random.randint(1, queued.time_limit_s or LONGEST_S)
            self.snapshot.dequeue(name)
            self._allocate(held, self.now + really)
            self.started += 1
        for eviction in outcome.evictions:
            held, really = self.held[eviction.workload_id]
            over = self.now + GRACE_S
            evicted = replace(held, ending=True, evicted_for=eviction.for_id, ends_at=min(over, held.ends_at or over))
            self._allocate(evicted, min(over, really))
            self.evicted += 1
        assert overdrawn(self.scene()) == []
        return outcome

    def _allocate(self, held: Held, until: float) -> None:
        self.held[held.workload_id] = (held, until)
        self.snapshot.allocate(held)

    # --- what must hold -------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """All there is now."""
        held = [held for held, _ in self.held.values()]
        return Scene(self.now, list(self.nodes.values()), held, list(self.waiting.values()), self.sort.rules)

    def check(self, outcome: Plan) -> None:
        """What a plan must keep to before it is carried out."""
        assert essence(plan(self.snapshot, self.now)) == essence(outcome), "the same snapshot, another plan"
        scene, usage = self.scene(), self.snapshot.usage
        anew = Snapshot(scene.nodes, scene.rules)
        anew.usage = usage
        for one in scene.held:
            anew.allocate(one)
        for queued in scene.queue:
            anew.enqueue(queued)
        assert essence(plan(anew, self.now)) == essence(outcome), "made from scratch, another plan"
        for name, held in outcome.started.items():
            queued = self.waiting[name]
            together = [one for one in outcome.started.values() if one.gang == queued.gang] if queued.gang else [held]
            assert len(together) == queued.gang_size, "a gang is whole or absent"
            assert len({one.allocation.node for one in together}) == queued.gang_size, "each on a node of its own"
        for eviction in outcome.evictions:
            victim = self.held[eviction.workload_id][0]
            assert victim.preemptible
            assert not victim.ending
            assert self.now - victim.allocation.at >= self.sort.rules.guaranteed_s
            assert victim.priority < self.waiting[eviction.for_id].priority
        self._head(outcome)

    def _head(self, outcome: Plan) -> None:
        """Whoever is first in the order, and could run here at all, is not first for ever."""
        order, queue, grid = outcome.order, self.snapshot.queue, self.snapshot.grid
        queued_requests = [queue.queued_requests[slot] for slot in order.slots]
        could = (
            one
            for one in queued_requests
            if one is not None
            and len(queue.gang(one.gang) if one.gang else [one]) == one.gang_size
            and grid.fits_empty(grid.shape(one.request), np.arange(len(grid.nodes))).sum() >= one.gang_size
        )
        first = next(could, None)
        if first is None or first.workload_id in outcome.started:
            self.head = None
        elif self.head is None or self.head[0] != first.workload_id:
            self.head = (first.workload_id, self.now)
        else:
            assert self.now - self.head[1] <= MOST_AS_HEAD_S, f"{first} starves"
