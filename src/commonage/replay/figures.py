"""Computes the figures of a replay: waits, utilisation, fairness. Called by `commonage replay` and its chart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from commonage.replay.records import Record

SHORTEST_S = 60.0
"""Shorter workloads count as a minute in the slowdown: a wait of one second for one second of work is harmless."""


@dataclass(frozen=True, slots=True)
class ReplayedWorkload:
    """`started_at` is of the first attempt, `ended_at` of the last; None if it never started or ended."""

    record: Record
    started_at: float | None
    ended_at: float | None
    preempted: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """Use from `at` on, in thousandths of GPUs and cores, and the number of queued workloads."""

    at: float
    gpu_milli: int
    cpus_milli: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """All nodes together, in thousandths of GPUs and cores."""

    gpu_milli: int
    cpus_milli: int


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """The waits of a tenant in seconds, and its GPU-hours."""

    tenant: str
    workloads: int
    wait_p50_s: float
    wait_p95_s: float
    gpu_h: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run. `fairness` is Jain's index of the owners' mean slowdown, 1 if equal."""

    workloads: int
    unfinished: int
    wait_p50_s: float
    wait_p95_s: float
    wait_mean_s: float
    gpu_utilisation: float
    cpu_utilisation: float
    preemptions: int
    fairness: float
    makespan_s: float
    tenants: tuple[TenantFigures, ...]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def figures(ran: Sequence[ReplayedWorkload], samples: Sequence[Sample], capacity: Capacity) -> Figures:
    waits = waits_of(ran)
    first = min(workload.record.submitted_at for workload in ran)
    last = max((workload.ended_at for workload in ran if workload.ended_at is not None), default=first)
    span = max(1.0, last - first)
    gpu_s, cpu_s = allocated_seconds(samples, last)
    return Figures(
        workloads=len(ran),
        unfinished=sum(workload.ended_at is None for workload in ran),
        wait_p50_s=percentile(waits, 50),
        wait_p95_s=percentile(waits, 95),
        wait_mean_s=round(float(np.mean(waits)), 1) if waits else 0.0,
        gpu_utilisation=round(gpu_s / (capacity.gpu_milli * span), 4) if capacity.gpu_milli else 0.0,
        cpu_utilisation=round(cpu_s / (capacity.cpus_milli * span), 4) if capacity.cpus_milli else 0.0,
        preemptions=sum(workload.preempted for workload in ran),
        fairness=round(jain(_slowdowns(ran)), 4),
        makespan_s=round(span, 1),
        tenants=tuple(_of_tenant(tenant, some) for tenant, some in sorted(_by_tenant(ran).items())),
    )


def waits_of(ran: Iterable[ReplayedWorkload]) -> list[float]:
    """Seconds from submission to the first start, of workloads that started."""
    return [workload.started_at - workload.record.submitted_at for workload in ran if workload.started_at is not None]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of the values do not exceed; 0 for no values."""
    return round(float(np.percentile(values, percent, method="inverted_cdf")), 1) if values else 0.0


def jain(values: Sequence[float]) -> float:
    """(sum x)^2 / (n sum x^2), from 1/n to 1 (R. Jain, D. Chiu, W. Hawe, 1984). 1 for no values."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def allocated_seconds(samples: Sequence[Sample], deadline: float) -> tuple[float, float]:
    """(thousandths of GPUs times seconds in use, the same for cores), until `until`."""
    gpu = cpu = 0.0
    for number, sample in enumerate(samples):
        end = samples[number + 1].at if number + 1 < len(samples) else deadline
        length = max(0.0, min(end, deadline) - sample.at)
        gpu += sample.gpu_milli * length
        cpu += sample.cpus_milli * length
    return gpu, cpu


def _slowdowns(ran: Iterable[ReplayedWorkload]) -> list[float]:
    by_owner: dict[str, list[float]] = defaultdict(list)
    for workload in ran:
        if workload.ended_at is not None:
            length = max(SHORTEST_S, workload.record.duration_s)
            by_owner[workload.record.owner].append(
                max(length, workload.ended_at - workload.record.submitted_at) / length
            )
    return [float(np.mean(some)) for some in by_owner.values()]


def _by_tenant(ran: Iterable[ReplayedWorkload]) -> dict[str, list[ReplayedWorkload]]:
    workloads: dict[str, list[ReplayedWorkload]] = defaultdict(list)
    for workload in ran:
        workloads[workload.record.tenant].append(workload)
    return workloads


def _of_tenant(tenant: str, ran: Sequence[ReplayedWorkload]) -> TenantFigures:
    waits = waits_of(ran)
    devices_s = sum(
        workload.record.duration_s * _devices(workload.record) for workload in ran if workload.ended_at is not None
    )
    return TenantFigures(tenant, len(ran), percentile(waits, 50), percentile(waits, 95), round(devices_s / 3600, 1))


def _devices(record: Record) -> float:
    gpu = record.request.gpu
    return 0.0 if gpu is None else gpu.whole or gpu.fraction_milli / 1000
