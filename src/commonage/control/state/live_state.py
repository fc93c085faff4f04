"""Live state: all workloads that have not ended, in memory. Loops and queries read it instead of the database.

Only the writer changes workloads here, after it has written them; only the loop `nodes` changes nodes, and only
`cron_jobs` cron jobs. Nothing
here is the only copy: at start everything is read from the store. The planner's snapshot is kept in step with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from commonage.domain.cron_jobs import CronJob
from commonage.domain.errors import InvalidInput, NotFound
from commonage.domain.nodes import Node, NodeKey, NodePoolPolicy, PendingNode
from commonage.domain.services import ServiceHealth
from commonage.domain.tenants import Rules
from commonage.domain.usage import PastAllocation
from commonage.domain.workloads import Kind, Spec, State, Workload, workload_of
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.plan import Plan
from commonage.scheduler.snapshot import Snapshot

CountKey = tuple[str, str]
MAX_LISTED = 20  # nodes in an error message


def count_keys(spec: Spec) -> tuple[CountKey, ...]:
    """Keys under which a live workload is counted: sessions per user; other workloads per user and per tenant."""
    if spec.kind is Kind.SESSION:
        return (("sessions of user", spec.owner),)
    return (("user", spec.owner), ("tenant", spec.tenant))


class LiveState:
    """The live workloads by id, the nodes, and the snapshot: the queue and the allocations.

    `node_pools` are the node pools, from which nodes could be added.
    """

    def __init__(self, rules: Rules | None = None, node_pools: Sequence[NodePoolPolicy] = ()) -> None:
        self._workloads: dict[str, Workload] = {}
        self._by_state: dict[State, dict[str, None]] = defaultdict(dict)
        self._dependents: dict[str, set[str]] = defaultdict(set)
        self._runs: dict[str, dict[str, None]] = defaultdict(dict)
        self._cron_jobs: dict[str, CronJob] = {}
        self.cron_jobs: Mapping[str, CronJob] = MappingProxyType(self._cron_jobs)
        self._counts: Counter[CountKey] = Counter()
        self._waiting: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
        self._nodes: dict[NodeKey, Node] = {}
        self.nodes: Mapping[NodeKey, Node] = MappingProxyType(self._nodes)
        self.evicted_for: dict[str, str] = {}  # by evicted workload: the id it makes room for; from the schedule loop
        self.progress: dict[str, float] = {}  # start progress of attempts (0..1), by id; written by the reconcile loop
        self.service_health: dict[str, ServiceHealth] = {}  # by attempt; written by the loop of services
        self.snapshot = Snapshot(rules=rules)
        self.outcome: Plan | None = None
        self.node_pools = tuple(node_pools)
        self.pending_nodes: tuple[PendingNode, ...] = ()  # requested, not joined yet; written by `node_pools`
        self.changed = asyncio.Event()  # set when the scheduler should run again

    @property
    def simulated_gpus(self) -> bool:
        """True if any GPU is simulated: pages that show GPUs must say so."""
        return any(device.simulated for node in self._nodes.values() for device in node.report.devices)

    def set_plan(self, outcome: Plan) -> None:
        self.outcome = outcome

    def note_eviction(self, workload_id: str, for_id: str) -> None:
        self.evicted_for[workload_id] = for_id

    def set_pending_nodes(self, pending: Iterable[PendingNode]) -> None:
        self.pending_nodes = tuple(pending)

    def node(self, key: NodeKey) -> Node:
        """Raises NotFound, which lists known nodes."""
        node = self._nodes.get(key)
        if node is None:
            known = ", ".join(one.label for one in sorted(self._nodes)[:MAX_LISTED]) or "none"
            raise NotFound(f"there is no node {key.label[:120]!r}; there are: {known}", code="node-not-found")
        return node

    def get(self, workload_id: str) -> Workload | None:
        return self._workloads.get(workload_id)

    def is_service(self, workload_id: str) -> bool:
        found = self._workloads.get(workload_id)
        return found is not None and found.spec.kind is Kind.SERVICE

    def of_attempt(self, attempt_id: str, site: str) -> Workload | None:
        """The workload whose latest attempt this is, if that has its allocation at this site.

        For what a site reports: it may only speak about its own attempts, and `attempt_id` may be any text.
        """
        try:
            workload = self._workloads.get(workload_of(attempt_id))
        except InvalidInput:
            return None
        attempt = workload.attempt if workload is not None else None
        return workload if attempt is not None and (attempt.id, attempt.allocation.site) == (attempt_id, site) else None

    def __len__(self) -> int:
        return len(self._workloads)

    def __iter__(self) -> Iterator[Workload]:
        return iter(list(self._workloads.values()))

    def put(self, workload: Workload) -> None:
        if workload.id not in self._workloads and not workload.state.is_terminal:
            self.snapshot.arrived(workload.spec.request)
        self._put(workload)

    def _put(self, workload: Workload) -> None:
        before = self._workloads.get(workload.id)
        if before is not None:
            self._by_state[before.state].pop(before.id, None)
            if before.spec is not workload.spec and _charged(before.spec) != _charged(workload.spec):
                self._reassign(before, workload.spec)
        self._count_waiting(workload.spec, _waits(workload) - (before is not None and _waits(before)))
        self._plan_for(workload)
        if workload.state.is_terminal:
            if self._workloads.pop(workload.id, None) is not None:
                self._count(workload.spec, -1)
            for dependency in workload.spec.depends_on:
                self._dependents[dependency.workload_id].discard(workload.id)
                if not self._dependents[dependency.workload_id]:
                    del self._dependents[dependency.workload_id]
        else:
            if before is None:
                self._count(workload.spec, 1)
            self._workloads[workload.id] = workload
            self._by_state[workload.state][workload.id] = None
            for dependency in workload.spec.depends_on:
                self._dependents[dependency.workload_id].add(workload.id)
        self._note_run(workload)
        if before is None or before.state is not workload.state:
            self.changed.set()

    def _note_run(self, workload: Workload) -> None:
        cron_job = workload.spec.cron_job
        if cron_job is None:
            return
        runs = self._runs[cron_job]
        if not workload.state.is_terminal:
            runs[workload.id] = None
        else:
            runs.pop(workload.id, None)
        if not runs:
            del self._runs[cron_job]

    def runs_of(self, cron_job_id: str) -> list[Workload]:
        """The live workloads that are runs of this cron job."""
        return [self._workloads[workload_id] for workload_id in self._runs.get(cron_job_id, ())]

    def put_cron_job(self, cron_job: CronJob) -> None:
        self._cron_jobs[cron_job.id] = cron_job

    def remove_cron_job(self, cron_job_id: str) -> None:
        self._cron_jobs.pop(cron_job_id, None)

    def _reassign(self, before: Workload, spec: Spec) -> None:
        """Count a waiting workload under its new owner and tenant. It goes to the queue again by `_plan_for`."""
        self._count(before.spec, -1)
        self._count(spec, 1)
        self._count_waiting(before.spec, -1)
        self._count_waiting(spec, 1)
        self.snapshot.dequeue(before.id)

    def _count(self, spec: Spec, step: int) -> None:
        for key in count_keys(spec):
            self._counts[key] += step
            if not self._counts[key]:
                del self._counts[key]

    def _count_waiting(self, spec: Spec, step: int) -> None:
        if step:
            counts = self._waiting[spec.tenant]
            counts[spec.owner, spec.environment] += step
            if not counts[spec.owner, spec.environment]:
                del counts[spec.owner, spec.environment]

    def waiting(self, tenant: str) -> Mapping[tuple[str, str], int]:
        """The number of held and queued workloads of a tenant, by owner and environment."""
        return self._waiting.get(tenant, {})

    def count(self, key: CountKey) -> int:
        return self._counts[key]

    def _plan_for(self, workload: Workload) -> None:
        snapshot, attempt = self.snapshot, workload.attempt
        waits = workload.state is State.QUEUED
        if waits and workload.id not in snapshot.queue:
            snapshot.enqueue(queued_request_of(workload))
        elif not waits and workload.id in snapshot.queue:
            snapshot.dequeue(workload.id)
        if workload.state.holds_allocation and attempt is not None:
            snapshot.allocate(self._allocated(workload))
        elif workload.id in snapshot.allocated:
            ended = attempt.ended_at if attempt is not None else None
            snapshot.release(workload.id, workload.since if ended is None else ended)
            self.evicted_for.pop(workload.id, None)

    def _allocated(self, workload: Workload) -> AllocatedRequest:
        attempt, spec, stop = workload.attempt, workload.spec, workload.stop
        assert attempt is not None  # guaranteed by the callers
        ends_at = workload.deadline
        if stop is not None:
            grace_ends = stop.at + spec.grace_s
            ends_at = grace_ends if ends_at is None else min(ends_at, grace_ends)
        return AllocatedRequest(
            allocation=attempt.allocation,
            workload_id=workload.id,
            name=spec.name or spec.kind.value,
            owner=spec.owner,
            kind=spec.kind,
            ends_at=ends_at,
            tenant=spec.tenant,
            environment=spec.environment,
            priority=spec.priority,
            preemptible=spec.preemptible,
            gang=gang_of(spec),
            ending=stop is not None,
            evicted_for=self.evicted_for.get(workload.id, ""),
        )

    def put_nodes(self, nodes: Sequence[Node]) -> None:
        changed = [node for node in nodes if _offer(node) != _offer(self._nodes.get(node.key))]
        self._nodes.update((node.key, node) for node in nodes)
        self.snapshot.put(changed)

    def remove_node(self, key: NodeKey) -> None:
        """Remove a node for good. No allocation may exist on it."""
        if self._nodes.pop(key, None) is not None:
            self.snapshot.remove(key)
            self.changed.set()

    def set_node_pools(self, policies: Sequence[NodePoolPolicy]) -> None:
        self.node_pools = tuple(policies)
        self.changed.set()

    def set_rules(self, rules: Rules) -> None:
        self.snapshot.set_rules(rules)
        self.changed.set()

    def in_state(self, *states: State) -> list[Workload]:
        """Live workloads in these states, in no defined order."""
        return [self._workloads[workload_id] for state in states for workload_id in self._by_state[state]]

    def counts(self) -> dict[State, int]:
        return {state: len(members) for state, members in self._by_state.items() if members}

    def dependents_of(self, workload_id: str) -> list[str]:
        return list(self._dependents.get(workload_id, ()))

    def queue_length(self) -> int:
        return len(self.snapshot.queue)

    def position(self, workload_id: str, now: float) -> int | None:
        """Position in the queue from 1; None if not queued. Taken from the last plan while the queue is unchanged."""
        slot = self.snapshot.queue.slot(workload_id)
        if slot < 0:
            return None
        last = self.snapshot.queue.last
        order = last if last is not None else self.snapshot.order(now)
        return order.place(slot) + 1

    def queued(self, workload_id: str) -> QueuedRequest | None:
        return self.snapshot.queue.get(workload_id)

    def allocated(self) -> list[AllocatedRequest]:
        return list(self.snapshot.allocated.values())

    def load(self, workloads: Iterable[Workload], nodes: Iterable[Node]) -> None:
        self.put_nodes(list(nodes))
        for workload in workloads:
            self._put(workload)

    def remember(self, past: Iterable[PastAllocation], lately: Iterable[Workload]) -> None:
        """Apply former allocations and recent workloads, oldest first. They feed fair share, typical requests and run
        time estimates.
        """
        for hold in past:
            self.snapshot.remember(hold)
        for one in lately:
            self.snapshot.arrived(one.spec.request)
            if one.state.is_terminal and one.attempt is not None and one.attempt.ended_at is not None:
                took = one.attempt.ended_at - one.attempt.allocation.at
                self.snapshot.durations.ended(one.spec.kind, one.spec.environment, one.spec.owner, took)


def _charged(spec: Spec) -> tuple[str, str]:
    return spec.owner, spec.tenant


def _waits(workload: Workload) -> bool:
    return workload.state in (State.HELD, State.QUEUED)


def queued_request_of(workload: Workload) -> QueuedRequest:
    return request_from_spec(workload.spec, workload.id, workload.submitted_at, workload.attempts + 1)


def request_from_spec(spec: Spec, workload_id: str, submitted_at: float, attempt: int = 1) -> QueuedRequest:
    return QueuedRequest(
        workload_id=workload_id,
        # A user with a full disk needs a session to delete files.
        request=replace(spec.request, on_full_disk=True) if spec.kind is Kind.SESSION else spec.request,
        priority=spec.priority,
        submitted_at=submitted_at,
        time_limit_s=spec.time_limit_s,
        owner=spec.owner,
        tenant=spec.tenant,
        kind=spec.kind,
        environment=spec.environment,
        preemptible=spec.preemptible,
        gang=gang_of(spec),
        gang_size=max(1, spec.array_size) if gang_of(spec) else 1,
        near=data_of(spec),
        attempt=attempt,
    )


def data_of(spec: Spec) -> tuple[str, ...]:
    """The volumes that must be at its site."""
    return tuple(sorted({volume.name for volume in spec.volumes} | ({spec.near} if spec.near else set())))


def gang_of(spec: Spec) -> str | None:
    return spec.array_id if spec.gang else None


def _offer(node: Node | None) -> tuple[object, ...] | None:
    """The fields of a node that the scheduler uses; other fields of a report change all the time."""
    if node is None:
        return None
    report = node.report
    return (node.state, node.reasons, node.site, report.cpus_milli, report.memory_mib, report.devices, report.labels)
