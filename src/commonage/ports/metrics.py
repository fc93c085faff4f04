"""Measurements over time: one port, so that the core treats SQL roll-ups and a time-series database alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from commonage.domain.node_usage import NodeUsage

NODE_USAGE = tuple(one.name for one in fields(NodeUsage) if one.name != "disk_total_mib")
"""Metrics of a node, of the same names as the figures: that total hardly changes."""
MEASURED: Mapping[str, Sequence[str]] = {
    "attempt": ("cpu_cores", "memory_mib", "gpu_memory_mib", "gpu_utilisation"),
    "device": ("gpu_memory_mib", "gpu_utilisation", "power_w", "temperature_c"),
    "node": ("disk_free_mib", *NODE_USAGE),
}
"""The metrics that are measured where the subject is, by its type. All others are the control plane's."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value: `metric` of `subject` at `at`. Subjects: `attempt:ID`, `node:SITE/NAME`,
    `device:SITE/UUID`, `platform`.

    Metric names carry the unit: `cpu_cores`, `memory_mib`, `gpu_memory_mib`, `gpu_utilisation` (0..1), `power_w`,
    `queue_length`, `running`. Those of a node without `allocated_` in front are measured (`domain.node_usage`).
    """

    metric: str
    subject: str
    at: float
    value: float


@dataclass(frozen=True, slots=True)
class Point:
    """Mean, minimum and maximum of a metric in the bucket that starts at `at`."""

    at: float
    mean: float
    least: float
    most: float


class Metrics(Protocol):
    async def write(self, samples: Sequence[Sample]) -> None:
        """Write samples. A crash may lose those of the last seconds."""

    async def query(
        self, metric: str, subject: str, *, since: float, until: float, points: int = 200
    ) -> Sequence[Point]:
        """At most about `points` buckets within [since, until), oldest first, from the finest data still kept."""

    async def tidy(self, now: float) -> None:
        """Aggregate old data by minute, later by hour, and delete it at last, each after the time that the admin set.

        By default raw values are kept for a day, minutes for a month, hours for two years, those of attempts as long as
        workloads. Some databases do this by themselves.
        """
        return
