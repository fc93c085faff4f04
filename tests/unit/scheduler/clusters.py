"""Strategies for random clusters and queues, and a simulation in which all time limits are used up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from commonage.domain.explanations import Explanation
from commonage.domain.nodes import Device, Node, NodeState
from commonage.domain.reasons.devices import GpuNotReachable
from commonage.domain.requests import GpuRequest, Request, parse_gpus
from commonage.domain.tenants import Rules
from commonage.domain.workloads import attempt_id
from commonage.scheduler.explain.explain import explain
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.plan import Plan, plan
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

NOW = 1000.0
GIB = 1024
PATIENT = Rules(head_of_queue_timeout_s=1e9, policy="best-fit")


@dataclass(frozen=True)
class Scene:
    """The state at an instant. `snapshot()` is built from scratch."""

    now: float
    nodes: Sequence[Node]
    allocated: Sequence[AllocatedRequest]
    queue: Sequence[QueuedRequest]
    rules: Rules = field(default=PATIENT)

    def snapshot(self) -> Snapshot:
        snapshot = Snapshot(self.nodes, self.rules)
        for request in self.allocated:
            snapshot.allocate(request)
        for queued in self.queue:
            snapshot.enqueue(queued)
        return snapshot

    def plan(self) -> Plan:
        return plan(self.snapshot(), self.now)

    def explain(self, queued: QueuedRequest) -> Explanation:
        return explain(self.snapshot(), queued, self.now)

    def grid(self, allocated: Sequence[AllocatedRequest] | None = None) -> Grid:
        grid = Grid(self.nodes)
        for request in self.allocated if allocated is None else allocated:
            grid.take(request.allocation)
        return grid

    def after(self, outcome: Plan) -> Scene:
        """The world once a plan is carried out."""
        waiting = [queued for queued in self.queue if queued.workload_id not in outcome.started]
        evicted = {request.workload_id for request in outcome.evictions}
        allocated = [request for request in self.allocated if request.workload_id not in evicted]
        return replace(self, allocated=[*allocated, *outcome.started.values()], queue=waiting)

    def later(self, now: float) -> Scene:
        """The world at `now`: what had a time limit has used it up."""
        return replace(self, now=now, allocated=[request for request in self.allocated if _runs_at(request, now)])


def queued(
    number: int,
    gpus: str | None = None,
    *,
    limit: int | None = None,
    priority: int = 0,
    cpus: int = 1000,
    memory: int = 1024,
) -> QueuedRequest:
    name = f"w{number:012}"
    request = Request(cpus, memory, parse_gpus(gpus))
    return QueuedRequest(name, request, priority, NOW + number / 1000, limit)


def allocated(
    number: int, node: str, gpus_mib: dict[str, int] | None = None, *, ends_at: float | None = None, cpus: int = 1000
) -> AllocatedRequest:
    name = f"h{number:012}"
    shares = [factories.share(factories.device(0, uuid=uuid), memory_mib=mib) for uuid, mib in (gpus_mib or {}).items()]
    allocation = factories.allocation(attempt_id(name, 1), node=node, shares=shares, cpus_milli=cpus)
    return AllocatedRequest(allocation, name, "train", "ann", "job", ends_at)


def _runs_at(allocated: AllocatedRequest, at: float) -> bool:
    return allocated.ends_at is None or allocated.ends_at > at


def by_age(queue: Sequence[QueuedRequest]) -> list[QueuedRequest]:
    """The order in which they stand while all are of one user: by priority, then age."""
    return sorted(queue, key=lambda queued: (-queued.priority, queued.submitted_at, queued.workload_id))


DEVICES = st.fixed_dictionaries(
    {
        "memory_mib": st.sampled_from([16 * GIB, 24 * GIB, 80 * GIB]),
        "model": st.sampled_from(["A30", "A100"]),
        "faults": st.sampled_from([(), (), (), (GpuNotReachable(),)]),
        "slots": st.sampled_from([0, 0, 0, 3, 4]),
    }
)


def _instances(name: str, index: int, count: int) -> list[Device]:
    """A GPU that was cut into instances."""
    parent = f"{name}-mig-{index}"
    return [
        factories.device(
            index, uuid=f"{parent}/{part}", memory_mib=10 * GIB, model="A100", mig_profile="1g.10gb",
            parent_uuid=parent, parent_memory_mib=80 * GIB,
        )
        for part in range(count)
    ]  # fmt: skip


@st.composite
def clusters(draw: st.DrawFn, most: int = 4) -> list[Node]:
    nodes = []
    for number in range(draw(st.integers(1, most))):
        name = f"node-{number}"
        devices = [
            factories.device(index, uuid=f"{name}-{index}", numa=index % 2, **fields)
            for index, fields in enumerate(draw(st.lists(DEVICES, max_size=3)))
        ]
        devices += _instances(name, len(devices), draw(st.sampled_from([0, 0, 0, 3])))
        state = draw(st.sampled_from([NodeState.READY] * 5 + [NodeState.DRAINING, NodeState.LOST]))
        cpus, memory = draw(st.integers(1, 16)), draw(st.integers(1, 64))
        labels = draw(st.sampled_from([(), (("disk", "nvme"),)]))
        nodes.append(
            factories.node(name, devices, cpus_milli=cpus * 1000, memory_mib=memory * GIB, state=state, labels=labels)
        )
    return nodes


GPUS = st.none() | st.one_of(
    st.builds(GpuRequest, whole=st.integers(1, 3), model=st.sampled_from([None, None, "A100", "A30|A100"])),
    st.builds(GpuRequest, fraction_milli=st.sampled_from([100, 250, 333, 500, 750])),
    st.builds(GpuRequest, vram_mib=st.integers(1, 24).map(lambda gib: gib * GIB), model=st.sampled_from([None, "A30"])),
)
REQUESTS = st.builds(
    Request,
    st.integers(1, 8).map(lambda n: n * 500),
    st.integers(1, 16).map(lambda n: n * GIB),
    GPUS,
    st.sampled_from([(), (), (), (("disk", "nvme"),)]),
    st.sampled_from([False, False, True]),
)


@st.composite
def queues(draw: st.DrawFn, most: int = 12, *, users: int = 1, gangs: bool = False) -> list[QueuedRequest]:
    few = draw(st.lists(REQUESTS, min_size=1, max_size=4))
    queued_requests = []
    for number in range(draw(st.integers(1, most))):
        name = f"w{number:012}"
        user = draw(st.integers(1, users))
        request = QueuedRequest(
            workload_id=name,
            request=draw(st.sampled_from(few)),
            priority=draw(st.sampled_from([0, 0, 0, 5])),
            submitted_at=NOW - 100 + draw(st.integers(0, 50)),
            time_limit_s=draw(st.sampled_from([None, 10, 60, 100])),
            owner=f"user-{user}",
            tenant=f"lab-{user % 2}",
            kind="job",
        )
        size = draw(st.sampled_from([1, 1, 1, 2])) if gangs else 1
        members = [replace(request, workload_id=f"{name}{part}") for part in range(size)]
        queued_requests += (
            [request] if size == 1 else [replace(member, gang=name, gang_size=size) for member in members]
        )
    return by_age(queued_requests)


def _old(allocated: AllocatedRequest) -> AllocatedRequest:
    allocation = replace(allocated.allocation, attempt_id="h" + allocated.allocation.attempt_id[1:])
    return replace(
        allocated,
        allocation=allocation,
        workload_id="h" + allocated.workload_id[1:],
        name="old",
        owner="ann",
        gang=None,
    )


@st.composite
def scenes(draw: st.DrawFn, most: int = 12, *, users: int = 1, gangs: bool = False) -> Scene:
    """A cluster on which something runs already (placed by the scheduler itself), and a queue."""
    nodes = draw(clusters())
    running = Scene(NOW - 50, nodes, [], draw(queues(6, users=users))).plan()
    allocated = [_old(request) for request in running.started.values() if _runs_at(request, NOW)]
    return Scene(NOW, nodes, allocated, draw(queues(most, users=users, gangs=gangs)))


def play(scene: Scene) -> dict[str, float]:
    """When each request starts, if all workloads use up their time limits and no request comes."""
    starts: dict[str, float] = {}
    while True:
        outcome = scene.plan()
        starts |= dict.fromkeys(outcome.started, scene.now)
        scene = scene.after(outcome)
        ends = [request.ends_at for request in scene.allocated if request.ends_at is not None]
        if not ends:
            return starts
        scene = scene.later(max(scene.now, min(ends)))


def stored_fields(outcome: Plan) -> tuple[object, ...]:
    return (outcome.starts, tuple(outcome.promises.items()), outcome.evictions)


def overdrawn(scene: Scene) -> list[str]:
    """Resources of which more is allocated than exists, counted without code of the scheduler."""
    excesses = []
    for node in scene.nodes:
        allocations = [request.allocation for request in scene.allocated if request.allocation.node == node.name]
        if sum(allocation.cpus_milli for allocation in allocations) > node.report.cpus_milli:
            excesses.append(f"cpus of {node.name}")
        if sum(allocation.memory_mib for allocation in allocations) > node.report.memory_mib:
            excesses.append(f"memory of {node.name}")
        for device in node.report.devices:
            shares = [
                share for allocation in allocations for share in allocation.shares if share.device_uuid == device.uuid
            ]
            if sum(share.memory_mib for share in shares) > device.memory_mib:
                excesses.append(f"VRAM of {device.uuid}")
            if sum(share.compute_milli for share in shares) > 1000:
                excesses.append(f"compute of {device.uuid}")
            if len(shares) > 1 and any(share.whole for share in shares):
                excesses.append(f"{device.uuid}, held whole, twice")
            if device.slots and len(shares) > device.slots:
                excesses.append(f"slots of {device.uuid}")
    return excesses
