"""Makes samples from measurements. Pure. Used by the sampling loop, and by site agents while their link is down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from commonage.control.usage.attribution import MeasurementRound, parts_of, shares_by_device, utilisation_of
from commonage.domain.nodes import Allocation, NodeKey, NodeReport
from commonage.domain.statuses import Measurement
from commonage.ports.metrics import NODE_USAGE, Sample


class AttemptSamples:
    """CPU and memory of attempts. CPU is a rate: the first measurement of an attempt gives none."""

    def __init__(self) -> None:
        self._cpu_before: dict[str, tuple[float, float]] = {}

    def of(self, measurements: Sequence[Measurement], now: float) -> list[Sample]:
        samples = []
        for one in measurements:
            subject, before = f"attempt:{one.attempt_id}", self._cpu_before.get(one.attempt_id)
            if before is not None and now > before[0]:
                cores = max(0.0, (one.cpu_s - before[1]) / (now - before[0]))
                samples.append(Sample("cpu_cores", subject, now, cores))
            samples.append(Sample("memory_mib", subject, now, one.memory_mib))
        self._cpu_before = {one.attempt_id: (now, one.cpu_s) for one in measurements}
        return samples


def of_devices(round_: MeasurementRound, now: float) -> list[Sample]:
    samples = []
    for device, one in round_.samples.items():
        figures = {
            "gpu_memory_mib": one.memory_used_mib,
            "gpu_utilisation": one.utilisation,
            "power_w": one.power_w,
            "temperature_c": one.temperature_c,
        }
        samples += [
            Sample(metric, f"device:{device}", now, value) for metric, value in figures.items() if value is not None
        ]
    return samples


def vram_of(round_: MeasurementRound) -> dict[str, int]:
    """VRAM of each attempt, in MiB; without those of which the driver reports none."""
    vram: dict[str, int] = defaultdict(int)
    for (attempt, _device), use in round_.uses.items():
        if use.memory_mib is not None:
            vram[attempt] += use.memory_mib
    return dict(vram)


def of_attempts_on_devices(round_: MeasurementRound, allocated: Iterable[Allocation], now: float) -> list[Sample]:
    holders = shares_by_device(allocated)
    busy: dict[str, list[float]] = defaultdict(list)
    for device in round_.samples:
        for attempt, part in parts_of(round_, device, holders.get(device, {})).items():
            used = utilisation_of(round_, device, attempt, part)
            if used is not None:
                busy[attempt].append(used)
    samples = [Sample("gpu_memory_mib", f"attempt:{one}", now, mib) for one, mib in vram_of(round_).items()]
    return samples + [
        Sample("gpu_utilisation", f"attempt:{one}", now, sum(each) / len(each)) for one, each in busy.items()
    ]


def of_node(key: NodeKey, report: NodeReport, now: float, *, is_measured: bool = True) -> list[Sample]:
    """`is_measured`: the usage in the report is present, not that of a node which is lost."""
    samples, subject = [], f"node:{key}"
    if report.disk_free_mib is not None:
        samples.append(Sample("disk_free_mib", subject, now, report.disk_free_mib))
    if report.usage is not None and is_measured:
        used = asdict(report.usage)
        samples += [Sample(name, subject, now, used[name]) for name in NODE_USAGE if used[name] is not None]
    return samples
