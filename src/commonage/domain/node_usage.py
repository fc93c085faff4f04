"""Measured use of a node, as opposed to allocations: current levels, and rates from the kernel's counters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIN_SPAN_S = 0.5  # over less time, the kernel's counts are too coarse for a rate
MAX_SPAN_S = 300.0  # over more time, the mean says nothing about now


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """The present use of a node by everything on it, workloads or not. None: unknown. Memory and disk in MiB.

    The disk is the fullest one with data of the platform; reads and writes are those of all physical disks. The network
    is that of all physical interfaces. `temperature_c` is the hottest sensor of the processor. `load`: one minute.
    """

    cpu_cores: float | None = None
    memory_mib: int | None = None
    disk_used_mib: int | None = None
    disk_total_mib: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None
    network_received_bytes_per_s: float | None = None
    network_sent_bytes_per_s: float | None = None
    temperature_c: float | None = None
    load: float | None = None


@dataclass(frozen=True, slots=True)
class NodeCounters:
    """Counters that only rise, by CPU, disk or interface; `at` is monotonic. CPU in busy seconds, the rest in bytes."""

    at: float
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    disk_read: Mapping[str, float] = field(default_factory=dict)
    disk_written: Mapping[str, float] = field(default_factory=dict)
    network_received: Mapping[str, float] = field(default_factory=dict)
    network_sent: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rates:
    """The fields of `NodeUsage` that need two readings."""

    cpu_cores: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None
    network_received_bytes_per_s: float | None = None
    network_sent_bytes_per_s: float | None = None


def rates_between(before: NodeCounters, now: NodeCounters) -> Rates:
    """Rates of all counters that are in both readings. A counter that went back was reset, and is left out this
    time.
    """
    span = now.at - before.at
    if not MIN_SPAN_S <= span <= MAX_SPAN_S:
        return Rates()
    return Rates(
        _rate(before.cpu_s, now.cpu_s, span),
        _rate(before.disk_read, now.disk_read, span),
        _rate(before.disk_written, now.disk_written, span),
        _rate(before.network_received, now.network_received, span),
        _rate(before.network_sent, now.network_sent, span),
    )


def _rate(before: Mapping[str, float], now: Mapping[str, float], span_s: float) -> float | None:
    steps = [value - before[name] for name, value in now.items() if name in before]
    risen = [step for step in steps if step >= 0]
    return sum(risen) / span_s if risen else None
