"""A simulated cluster with random events: arrivals, ends, evictions, node losses. On a fake clock.

It reports every event to the snapshot, and checks invariants after each pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
from tests.unit.scheduler.clusters import GIB, NOW, Scene, overdrawn, stored_fields

from commonage.domain.nodes import Node, NodeState
from commonage.domain.requests import Request, parse_gpus
from commonage.domain.tenants import Rules
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.plan import Plan, plan
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

LONGEST_S = 60  # the longest run, with or without a time limit
HEAD_OF_QUEUE_TIMEOUT_S = 20.0
GRACE_S = 5.0
MAX_AS_HEAD_S = HEAD_OF_QUEUE_TIMEOUT_S + 2 * LONGEST_S + 2 * GRACE_S
RULES = Rules(
    policy="best-fit",
    head_of_queue_timeout_s=HEAD_OF_QUEUE_TIMEOUT_S,
    guaranteed_s=10.0,
    half_life_s=300.0,
    entry_penalty_s=30.0,
)
GPUS = (None, None, "0.25", "1/3", "0.5", "6GiB", "1", "1", "2", "3", "A100:1", "A100:20GiB")


@dataclass(frozen=True)
class LifeOptions:
    """Events that may happen."""

    rules: Rules = RULES
    endless: bool = True  # some work has no time limit
    gangs: bool = True
    losses: bool = True
    preemptible: bool = True


class Life:
    """A random cluster with random events, deterministic for a seed."""

    def __init__(self, seed: int, options: LifeOptions | None = None) -> None:
        self.options, self.random = options or LifeOptions(), Random(seed)
        self.now = NOW
        self.nodes = {node.name: node for node in self._cluster()}
        self.snapshot = Snapshot(list(self.nodes.values()), self.options.rules)
        self.waiting: dict[str, QueuedRequest] = {}
        self.allocated: dict[str, tuple[AllocatedRequest, float]] = {}  # with its actual end
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

    # --- events ---------------------------------------------------------------------------------------------

    def enqueue(self, count: int = 1, **fields: object) -> list[QueuedRequest]:
        """Queue `count` equal requests of a random user."""
        gang = self.options.gangs and count > 1 and self.random.random() < 0.5
        user, first = self.random.randint(1, 3), len(self.asked)
        limits = (5, 10, 30, LONGEST_S, *((None,) if self.options.endless else ()))
        cpus = self.random.randint(1, 4) * 500
        base = QueuedRequest(
            workload_id="",
            request=Request(cpus, self.random.randint(1, 8) * GIB, parse_gpus(self.random.choice(GPUS))),
            priority=self.random.choice([0, 0, 0, 10]),
            submitted_at=self.now,
            time_limit_s=self.random.choice(limits),
            owner=f"user-{user}",
            tenant=f"lab-{user % 2}",
            environment=self.random.choice("ab"),
            preemptible=self.options.preemptible and self.random.random() < 0.3,
            gang=f"gang-{first}" if gang else None,
            gang_size=count if gang else 1,
        )
        queued_requests = []
        for number in range(first, first + count):
            name = f"w{number:012}"
            queued = replace(base, workload_id=name, **fields)  # type: ignore[arg-type]  # fields by name
            self.asked[name] = self.waiting[name] = queued
            self.snapshot.enqueue(queued)
            queued_requests.append(queued)
        return queued_requests

    def end(self, workload_id: str) -> None:
        """End a workload; an evicted one is requeued."""
        allocated, _ = self.allocated.pop(workload_id)
        self.snapshot.release(workload_id, self.now)
        if allocated.evicted_for:
            number = int(allocated.allocation.attempt_id.rpartition("-")[2]) + 1
            again = replace(self.asked[workload_id], attempt=number)
            self.asked[workload_id] = self.waiting[workload_id] = again
            self.snapshot.enqueue(again)

    def put(self, node: Node) -> None:
        """Change a node. The workloads on a lost node are lost, with their gangs."""
        self.nodes[node.name] = node
        self.snapshot.put([node])
        self.head = None
        if node.state is NodeState.LOST:
            gone = {name for name, (allocated, _) in self.allocated.items() if allocated.allocation.node == node.name}
            gangs = {self.allocated[name][0].gang for name in gone} - {None}
            for name in [
                name for name, (allocated, _) in self.allocated.items() if name in gone or allocated.gang in gangs
            ]:
                del self.allocated[name]
                self.snapshot.release(name, self.now)

    def step(self, *, arrivals: bool = True) -> Plan:
        """Advance the clock, apply events, and run a pass."""
        later = self.now + self.random.choice([0.5, 1, 3, 10])
        ends = [at for _, at in self.allocated.values()]
        self.now = min([later, *ends]) if ends and self.random.random() < 0.5 else later
        for name in [name for name, (_, at) in self.allocated.items() if at <= self.now]:
            self.end(name)
        if self.options.losses and arrivals and self.random.random() < 0.05:
            node = self.random.choice(list(self.nodes.values()))
            state = self.random.choice([NodeState.READY, NodeState.DRAINING, NodeState.LOST])
            self.put(replace(node, state=state))
        if arrivals and self.random.random() < 0.7:
            self.enqueue(self.random.choice([1, 1, 1, 2, 3]))
        return self.plan()

    def plan(self) -> Plan:
        """Run a pass, check it and apply it."""
        outcome = plan(self.snapshot, self.now)
        self.check(outcome)
        for name, allocated in outcome.started.items():
            queued = self.waiting.pop(name)
            really = self.random.randint(1, queued.time_limit_s or LONGEST_S)
            self.snapshot.dequeue(name)
            self._allocate(allocated, self.now + really)
            self.started += 1
        for eviction in outcome.evictions:
            allocated, really = self.allocated[eviction.workload_id]
            over = self.now + GRACE_S
            evicted = replace(
                allocated, ending=True, evicted_for=eviction.for_id, ends_at=min(over, allocated.ends_at or over)
            )
            self._allocate(evicted, min(over, really))
            self.evicted += 1
        assert overdrawn(self.scene()) == []
        return outcome

    def _allocate(self, allocated: AllocatedRequest, end: float) -> None:
        self.allocated[allocated.workload_id] = (allocated, end)
        self.snapshot.allocate(allocated)

    # --- invariants -------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """The current state."""
        allocated = [allocated for allocated, _ in self.allocated.values()]
        return Scene(self.now, list(self.nodes.values()), allocated, list(self.waiting.values()), self.options.rules)

    def rebuilt(self) -> Snapshot:
        """A snapshot of the same state, built from scratch."""
        scene = self.scene()
        rebuilt = Snapshot(scene.nodes, scene.rules)
        rebuilt.usage = self.snapshot.usage
        for request in scene.allocated:
            rebuilt.allocate(request)
        for queued in scene.queue:
            rebuilt.enqueue(queued)
        return rebuilt

    def check(self, outcome: Plan) -> None:
        """Check the invariants of a plan before it is applied."""
        assert stored_fields(plan(self.snapshot, self.now)) == stored_fields(outcome), "the same snapshot, another plan"
        if self.snapshot.rules.policy != "expected-waste":  # which chooses by the arrivals that it has seen
            assert stored_fields(plan(self.rebuilt(), self.now)) == stored_fields(outcome), (
                "made from scratch, another plan"
            )
        for name, allocated in outcome.started.items():
            queued = self.waiting[name]
            together = (
                [member for member in outcome.started.values() if member.gang == queued.gang]
                if queued.gang
                else [allocated]
            )
            assert len(together) == queued.gang_size, "a gang is whole or absent"
            assert len({member.allocation.node for member in together}) == queued.gang_size, "each on a node of its own"
        for eviction in outcome.evictions:
            victim = self.allocated[eviction.workload_id][0]
            assert victim.preemptible
            assert not victim.ending
            assert self.now - victim.allocation.at >= self.options.rules.guaranteed_s
            assert victim.priority < self.waiting[eviction.for_id].priority
        self._head(outcome)

    def _head(self, outcome: Plan) -> None:
        """Check that the first request that could run here does not stay first for too long."""
        order, queue, grid = outcome.order, self.snapshot.queue, self.snapshot.grid
        queued_requests = [queue.queued_requests[slot] for slot in order.slots]
        could = (
            queued
            for queued in queued_requests
            if queued is not None
            and len(queue.gang(queued.gang) if queued.gang else [queued]) == queued.gang_size
            and grid.fits_empty(grid.shape(queued.request), np.arange(len(grid.nodes))).sum() >= queued.gang_size
        )
        first = next(could, None)
        if first is None or first.workload_id in outcome.started:
            self.head = None
        elif self.head is None or self.head[0] != first.workload_id:
            self.head = (first.workload_id, self.now)
        else:
            assert self.now - self.head[1] <= MAX_AS_HEAD_S, f"{first} starves"
