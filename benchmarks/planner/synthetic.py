"""A large synthetic cluster and a long queue, made from a seed. Called by passes.py.

Four GPU models, some hundred request classes, users in tenants, time limits from ten minutes to none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from commonage.domain.nodes import Allocation, Device, Node, NodeReport, NodeState
from commonage.domain.requests import Request, parse_gpus
from commonage.domain.workloads import Attempt, IdSequence, Kind, Spec, State, Workload, attempt_id

NOW = 1_700_000_000.0
DEVICES = 8
RUNNING, QUEUED = 10, 100  # per node
USERS, USERS_PER_TENANT, REQUEST_CLASSES = 200, 10, 300
MODELS = {"A100": 80, "H100": 80, "L40S": 48, "T4": 16}
GPUS = ("", "", "0.25", "0.5", "1", "1", "2", "4", "8", "A100:1", "H100:8", "T4:1", "10GiB", "40GiB")
SMALL = ("1", "0.5", "0.5", "", "0.25", "1")
LIMITS_S = (600, 1800, 3600, 7200, 14_400, 43_200, 86_400, None)


class SyntheticCluster:
    """Nodes and workloads; deterministic for a seed."""

    def __init__(self, nodes: int, seed: int = 1, users: int = USERS) -> None:
        self._users, self._tenants = users, max(1, users // USERS_PER_TENANT)
        self._random = random.Random(seed)
        self._ids = IdSequence()
        self.nodes = [_node(number) for number in range(nodes)]
        self._requests = [self._request(GPUS) for _ in range(REQUEST_CLASSES)]

    def _request(self, gpus: tuple[str, ...]) -> Request:
        cpus, memory = self._random.choice([1, 2, 4, 8, 16, 32]), self._random.choice([2, 4, 8, 16, 32, 64, 128])
        return Request(cpus * 1000, memory * 1024, parse_gpus(self._random.choice(gpus)))

    def queued(self, at: float) -> Workload:
        """A queued workload, submitted at `at`."""
        return self._workload(self._random.choice(self._requests), at)

    def small_workloads(self) -> Iterator[Workload]:
        """Small workloads that fill the cluster."""
        for _ in range(RUNNING * len(self.nodes)):
            yield self._workload(Request(4000, 8192, parse_gpus(self._random.choice(SMALL))), NOW - 100_000)

    def _workload(self, request: Request, at: float) -> Workload:
        user = self._random.randrange(self._users)
        spec = Spec(
            kind=Kind.JOB,
            name="job",
            owner=f"user-{user}",
            tenant=f"tenant-{user % self._tenants}",
            environment=f"environment-{self._random.randrange(10)}",
            command=("true",),
            request=request,
            time_limit_s=self._random.choice(LIMITS_S),
        )
        return Workload(self._ids.next(at, self._random.randrange(1 << 19)), spec, State.QUEUED, at, at)

    def running(self, workload: Workload, allocation: Allocation, at: float) -> Workload:
        """The workload running since `at`."""
        allocation = replace(allocation, at=at)
        attempt = Attempt(attempt_id(workload.id, 1), workload.id, 1, State.RUNNING, allocation, started_at=at)
        return replace(workload, state=State.RUNNING, since=at, attempt=attempt)

    def recent_time(self) -> float:
        """A time within the ten minutes before NOW."""
        return NOW - 600 * self._random.random()

    def choose(self, workloads: list[Workload]) -> Workload:
        """A random workload."""
        return self._random.choice(workloads)


def ended(workload: Workload, at: float) -> Workload:
    """The workload, succeeded at `at`."""
    attempt = workload.attempt
    assert attempt is not None  # it ran
    over = replace(attempt, state=State.SUCCEEDED, ended_at=at)
    return replace(workload, state=State.SUCCEEDED, since=at, attempt=over)


def _node(number: int) -> Node:
    name, model = f"node-{number:05}", list(MODELS)[number % len(MODELS)]
    devices = [
        Device(f"{name}/{device}", device, model, MODELS[model] * 1024, numa=device // 4) for device in range(DEVICES)
    ]
    report = NodeReport(name, 128_000, 1024 * 1024, tuple(devices))
    return Node(name, "bench", "bench", NodeState.READY, report, NOW)
