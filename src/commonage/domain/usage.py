"""Resource usage by owner, tenant or workload: computed from attempts and their allocations."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from commonage.domain.codec import MAX_NUMBER
from commonage.domain.requests import GpuRequest, format_duration, format_memory
from commonage.domain.statuses import LastUse
from commonage.domain.tenants import Amounts


@dataclass(frozen=True, slots=True)
class Usage:
    """Held resources times hours, of one owner, tenant or workload. Shares count as held, used or not.

    `gpu_gib_h`: GiB of VRAM times hours. `gpu_h`: fractions of GPUs times hours.
    """

    subject: str
    workloads: int
    gpu_gib_h: float
    gpu_h: float
    cpu_h: float
    memory_gib_h: float


@dataclass(frozen=True, slots=True)
class PastAllocation:
    attempt_id: str
    tenant: str
    owner: str
    amounts: Amounts
    began_at: float
    ended_at: float


DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """Allocations of one owner's deleted workloads on one day (UTC; `day` is the number of days since 1970).

    `workloads` counts those with an allocation on that day, or both before and after it. `began` counts those whose
    first day it is. So the count for a period is `workloads` of its first day plus `began` of the others. The other
    figures are amounts times seconds.
    """

    day: int
    tenant: str
    owner: str
    environment: str
    workloads: int = 0
    began: int = 0
    gpu_mib_s: float = 0.0
    gpu_milli_s: float = 0.0
    cpus_milli_s: float = 0.0
    memory_mib_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HeldByAttempt:
    """The resources of one ended attempt, and from when to when it held them."""

    workload_id: str
    tenant: str
    owner: str
    environment: str
    gpu_mib: int
    gpu_milli: int
    cpus_milli: int
    memory_mib: int
    began_at: float
    ended_at: float


def daily_usage(attempts: Iterable[HeldByAttempt]) -> list[DailyUsage]:
    """The usage of whole workloads by day; `attempts` has all attempts of each of them."""
    days: dict[tuple[int, str, str, str], DailyUsage] = {}
    spans: dict[tuple[str, str, str, str], tuple[int, int]] = {}
    for one in attempts:
        if not one.began_at < one.ended_at:
            continue
        payer = (one.tenant, one.owner, one.environment)
        first, last = math.floor(one.began_at / DAY_S), math.ceil(one.ended_at / DAY_S) - 1
        before = spans.get((one.workload_id, *payer), (first, last))
        spans[one.workload_id, *payer] = min(first, before[0]), max(last, before[1])
        for day in range(first, last + 1):
            seconds = min(one.ended_at, (day + 1) * DAY_S) - max(one.began_at, day * DAY_S)
            there = days.get((day, *payer)) or DailyUsage(day, *payer)
            days[day, *payer] = replace(
                there,
                gpu_mib_s=there.gpu_mib_s + one.gpu_mib * seconds,
                gpu_milli_s=there.gpu_milli_s + one.gpu_milli * seconds,
                cpus_milli_s=there.cpus_milli_s + one.cpus_milli * seconds,
                memory_mib_s=there.memory_mib_s + one.memory_mib * seconds,
            )
    for (_, *payer_of), (first, last) in spans.items():
        tenant, owner, environment = payer_of
        for day in range(first, last + 1):
            there = days.get((day, tenant, owner, environment)) or DailyUsage(day, tenant, owner, environment)
            days[day, tenant, owner, environment] = replace(
                there, workloads=there.workloads + 1, began=there.began + (day == first)
            )
    return list(days.values())


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Allocated GPU time of ended attempts: thousandths of GPUs times seconds, on devices of one model."""

    tenant: str
    owner: str
    environment: str
    model: str
    gpu_milli_s: float


@dataclass(frozen=True, slots=True)
class Prices:
    """Price of each unit, in the installation's own currency; the default is zero."""

    gpu_gib_h: float = 0.0
    cpu_h: float = 0.0
    memory_gib_h: float = 0.0
    currency: str = ""

    def cost(self, usage: Usage) -> float:
        return usage.gpu_gib_h * self.gpu_gib_h + usage.cpu_h * self.cpu_h + usage.memory_gib_h * self.memory_gib_h


MARGIN_PART = 0.1
MIN_MARGIN_MIB = 256
_STEPS = ((2 * 1024, 256), (8 * 1024, 512))  # (MiB, step): below this size a request is rounded up to this step
_COARSEST_MIB = 1024


@dataclass(frozen=True, slots=True)
class UsageFigures:
    """Sums and peaks of measurements. Every sum has its own seconds, in which its figure was known.

    `vram_peak_mib` is the most on any one GPU, `vram_mib_s` the sum over all GPUs times seconds. The driver counts the
    CUDA context as memory of a process, so it is part of both. `gpu_busy_s` is utilisation times seconds, where 1 is
    all of its GPUs; `gpu_idle_s` are those of `gpu_s` in which it computed nothing. `energy_j` is its part of the GPU's
    energy. `first_gpu_s` are the seconds from running to the first use of a GPU, None before that.
    """

    measured_s: float = 0.0
    cpu_s: float = 0.0
    cpu_peak_milli: int = 0
    memory_peak_mib: int = 0
    memory_mib_s: float = 0.0
    vram_s: float = 0.0
    vram_peak_mib: int = 0
    vram_mib_s: float = 0.0
    gpu_s: float = 0.0
    gpu_busy_s: float = 0.0
    gpu_idle_s: float = 0.0
    energy_s: float = 0.0
    energy_j: float = 0.0
    first_gpu_s: float | None = None
    over_share_s: float = 0.0

    def __add__(self, other: UsageFigures) -> UsageFigures:
        """The total of two attempts: sums added, the higher peak, the first known first use."""
        totals = {}
        for name in (field.name for field in fields(self) if field.name != "first_gpu_s"):
            mine, others = getattr(self, name), getattr(other, name)
            totals[name] = max(mine, others) if "_peak_" in name else mine + others
        return UsageFigures(**totals, first_gpu_s=other.first_gpu_s if self.first_gpu_s is None else self.first_gpu_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement of an attempt, and the seconds that it stands for. None: unknown.

    `cpu_s` are all CPU seconds until now, `cpu_milli` the cores since the previous measurement. `vram_mib` is the sum
    over its GPUs, `vram_max_mib` the most on one GPU. `gpu` is the mean utilisation of its GPUs. `running_s`: so far.
    """

    span_s: float
    running_s: float
    cpu_s: float | None = None
    cpu_milli: int | None = None
    memory_mib: int | None = None
    vram_mib: int | None = None
    vram_max_mib: int = 0
    gpu: float | None = None
    energy_j: float | None = None
    over_share: bool = False


IDLE_BELOW = 0.01


def with_measurement(figures: UsageFigures, measured: Measured) -> UsageFigures:
    """The figures after one more measurement. An unknown value adds nothing, neither to the sum nor to its seconds."""
    span = measured.span_s
    vram_s, gpu_s, energy_s = (
        span if each is not None else 0.0 for each in (measured.vram_mib, measured.gpu, measured.energy_j)
    )
    uses_gpu = bool(measured.vram_mib) or (measured.gpu or 0.0) >= IDLE_BELOW
    return UsageFigures(
        measured_s=figures.measured_s + span,
        cpu_s=max(figures.cpu_s, measured.cpu_s or 0.0),
        cpu_peak_milli=max(figures.cpu_peak_milli, measured.cpu_milli or 0),
        memory_peak_mib=max(figures.memory_peak_mib, measured.memory_mib or 0),
        memory_mib_s=figures.memory_mib_s + (measured.memory_mib or 0) * span,
        vram_s=figures.vram_s + vram_s,
        vram_peak_mib=max(figures.vram_peak_mib, measured.vram_max_mib),
        vram_mib_s=figures.vram_mib_s + (measured.vram_mib or 0) * vram_s,
        gpu_s=figures.gpu_s + gpu_s,
        gpu_busy_s=figures.gpu_busy_s + (measured.gpu or 0.0) * gpu_s,
        gpu_idle_s=figures.gpu_idle_s + (gpu_s if (measured.gpu or 0.0) < IDLE_BELOW else 0.0),
        energy_s=figures.energy_s + energy_s,
        energy_j=figures.energy_j + (measured.energy_j or 0.0),
        first_gpu_s=measured.running_s if figures.first_gpu_s is None and uses_gpu else figures.first_gpu_s,
        over_share_s=figures.over_share_s + (span if measured.over_share else 0.0),
    )


def cpu_milli_of(cpu_s: float, over_s: float) -> int:
    """Thousandths of a CPU in use over this time. A site may report any `cpu_s`."""
    return round(min(1000 * max(0.0, cpu_s) / over_s, MAX_NUMBER))


def completed(figures: UsageFigures, used: LastUse, ran_s: float) -> UsageFigures:
    """The figures after the end. An attempt that ended before the first measurement has only the kernel's figures.

    If there were measurements, their memory peak stays: the kernel's peak includes cached files, which it may drop.
    """
    cpu_s = max(figures.cpu_s, used.cpu_s)
    if figures.measured_s:
        return replace(figures, cpu_s=cpu_s)
    cpu_milli = cpu_milli_of(cpu_s, ran_s) if ran_s else 0
    memory = used.memory_peak_mib
    return UsageFigures(ran_s, cpu_s, cpu_milli, memory_peak_mib=memory, memory_mib_s=memory * ran_s)


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The usage report of one attempt (or, summed, of all attempts of a workload): requested and used resources.

    `command_hash` identifies repetitions of the same work by the same owner: see `hash_command`. `devices` is the
    number of GPUs on which it held a share, `vram_mib` its share on one of them (the largest), `device_mib` the memory
    of that GPU, `gpu_milli` the sum of its shares in thousandths of a GPU. `ended_at` is None while it still runs: then
    these are the figures so far. `gpu_h` are GPUs times hours held, used or not. `simulated`: no GPU was real.
    """

    attempt_id: str
    workload_id: str
    owner: str
    command_hash: str
    began_at: float
    ended_at: float | None
    cpus_milli: int
    memory_mib: int
    devices: int = 0
    vram_mib: int = 0
    device_mib: int = 0
    gpu_milli: int = 0
    whole: bool = False
    simulated: bool = False
    gpu_h: float = 0.0
    figures: UsageFigures = UsageFigures()

    @property
    def vram_peak_mib(self) -> int | None:
        """The most VRAM on any one GPU; None where it was never measured."""
        return self.figures.vram_peak_mib if self.figures.vram_s else None

    @property
    def vram_mean_mib(self) -> int | None:
        return round(self.figures.vram_mib_s / self.figures.vram_s) if self.figures.vram_s else None

    @property
    def gpu_utilisation(self) -> float | None:
        """The mean utilisation of its GPUs over the measured time, where 1 is all of them."""
        return self.figures.gpu_busy_s / self.figures.gpu_s if self.figures.gpu_s else None

    @property
    def idle_share(self) -> float | None:
        return self.figures.gpu_idle_s / self.figures.gpu_s if self.figures.gpu_s else None

    @property
    def energy_wh(self) -> float | None:
        return self.figures.energy_j / 3600 if self.figures.energy_s else None

    @property
    def sufficient_vram_mib(self) -> int | None:
        """The VRAM that would have sufficed on each GPU; None if it was not measured or it never used a GPU."""
        peak = self.vram_peak_mib
        return request_for_peak(peak, self.device_mib) if peak else None

    @property
    def sufficient_memory_mib(self) -> int | None:
        return request_for_peak(self.figures.memory_peak_mib) if self.figures.memory_peak_mib else None


def request_for_peak(peak_mib: int, max_mib: int = 0) -> int:
    """The amount to request for a peak of `peak_mib`: a tenth more, at least 256 MiB more, rounded up to a usual size.

    At most `max_mib`, the whole GPU, if that is given.
    """
    wanted = peak_mib + max(MIN_MARGIN_MIB, math.ceil(peak_mib * MARGIN_PART))
    step = next((step for below, step in _STEPS if wanted <= below), _COARSEST_MIB)
    rounded = -(-wanted // step) * step
    return min(rounded, max_mib) if max_mib else rounded


def hash_command(environment: str, command: Sequence[str]) -> str:
    key = "\0".join((environment, *command)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(key).hexdigest()[:32]


def sum_of(usage_reports: Iterable[UsageReport]) -> UsageReport | None:
    """The sum over the attempts of a workload, oldest first: requested, and ended, as in the last. None for none."""
    total: UsageReport | None = None
    for each in usage_reports:
        if total is None:
            total = each
            continue
        figures, gpu_h = total.figures + each.figures, total.gpu_h + each.gpu_h
        total = replace(each, began_at=total.began_at, figures=figures, gpu_h=gpu_h)
    return total


MUCH_MORE = 1.5  # times the sufficient amount
MUCH_MORE_MIB = 1024
_CPU_STEP_MILLI = 500


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The suggested request. `gpus` is in users' syntax, None if nothing is known of a GPU (or it never used one).

    `peak_mib` is the most VRAM that its last `runs` used, `workload_id` that run. `too_much`: far more was requested.
    """

    workload_id: str
    runs: int
    gpus: str | None
    vram_mib: int | None
    peak_mib: int | None
    memory_mib: int | None
    cpus_milli: int | None
    too_much: bool
    simulated: bool
    summary: str


def suggestion_of(usage_reports: Sequence[UsageReport], asked: GpuRequest | None) -> Suggestion | None:
    """The suggestion from usage reports of the same work, newest first. None if nothing was measured."""
    real = [each for each in usage_reports if not each.simulated]
    chosen = real or usage_reports
    on_devices = [each for each in chosen if each.devices == 1 and each.vram_peak_mib]
    if not chosen or not (on_devices or any(each.figures.memory_peak_mib for each in chosen)):
        return None
    most = max(on_devices, key=lambda each: each.vram_peak_mib or 0, default=None)
    vram = most.sufficient_vram_mib if most is not None else None
    wanted = asked.memory_on(most.device_mib) if most is not None and asked is not None and asked.whole < 2 else 0
    memory = max((each.figures.memory_peak_mib for each in chosen), default=0)
    cores = max((each.figures.cpu_peak_milli for each in chosen), default=0)
    return Suggestion(
        workload_id=(most or chosen[0]).workload_id,
        runs=len(chosen),
        gpus=_of_model(asked, memory_text(vram)) if vram is not None else None,
        vram_mib=vram,
        peak_mib=most.vram_peak_mib if most is not None else None,
        memory_mib=request_for_peak(memory) if memory else None,
        cpus_milli=cores_enough_for(cores) if cores else None,
        too_much=vram is not None and wanted >= vram * MUCH_MORE and wanted - vram >= MUCH_MORE_MIB,
        simulated=(most or chosen[0]).simulated,
        summary=_summary(most, len(chosen), wanted),
    )


def _of_model(asked: GpuRequest | None, amount: str) -> str:
    return f"{asked.model}:{amount}" if asked is not None and asked.model else amount


def _summary(most: UsageReport | None, runs: int, wanted_mib: int) -> str:
    if most is None or most.sufficient_vram_mib is None or most.vram_peak_mib is None:
        return ""
    last = "last time it used" if runs == 1 else f"the last {runs} runs of it used"
    simulated = " (simulated, so it means nothing)" if most.simulated else ""
    peak = f"{last} at most {format_memory(most.vram_peak_mib)} of VRAM{simulated}: "
    if wanted_mib and wanted_mib < most.vram_peak_mib:
        return f"{peak}{format_memory(wanted_mib)} may be too little, {format_memory(most.sufficient_vram_mib)} will do"
    return f"{peak}{format_memory(most.sufficient_vram_mib)} will do"


def cores_enough_for(peak_milli: int) -> int:
    """Cores to request, in thousandths, for a peak: rounded up to halves, with a tolerance of an eighth."""
    return max(_CPU_STEP_MILLI, -(-(peak_milli - 125) // _CPU_STEP_MILLI) * _CPU_STEP_MILLI)


def memory_text(mib: int) -> str:
    """An amount in users' syntax, exact: `6GiB`, `5.5GiB`, `768MiB`."""
    return f"{mib / 1024:g}GiB" if mib >= 1024 and mib % 512 == 0 else f"{mib}MiB"


def usage_report_in_words(usage_report: UsageReport) -> str:
    """One line: requested, used and sufficient resources, and the cost in hours and energy."""
    parts = [_vram(usage_report)] if usage_report.devices else []
    parts += [_memory(usage_report)] if not usage_report.devices else []
    if usage_report.devices:
        parts.append(f"{_figure(usage_report.gpu_h)} GPU-hours")
    if usage_report.energy_wh is not None and usage_report.devices:
        parts.append(f"{_figure(usage_report.energy_wh)} Wh")
    if usage_report.idle_share is not None:
        parts.append(f"idle {usage_report.idle_share:.0%} of the time")
    if usage_report.figures.over_share_s:
        parts.append(f"over its share for {format_duration(usage_report.figures.over_share_s)}")
    return f"{'; '.join(parts)}{' (simulated GPU)' if usage_report.simulated else ''}"


def _vram(usage_report: UsageReport) -> str:
    each = f" on each of {usage_report.devices} GPUs" if usage_report.devices > 1 else ""
    requested = f"requested {format_memory(usage_report.vram_mib)} of GPU memory{each}"
    peak, enough = usage_report.vram_peak_mib, usage_report.sufficient_vram_mib
    if peak is None:
        too_short = usage_report.ended_at is not None and not usage_report.figures.measured_s
        reason = " (the workload ended before the first measurement)" if too_short else ""
        return f"{requested}; use was not measured{reason}"
    if enough is None:
        return f"{requested}, used none"
    used = f"{requested}, peak {format_memory(peak)}"
    return f"{used}, {format_memory(enough)} would be enough" if enough < usage_report.vram_mib else used


def _memory(usage_report: UsageReport) -> str:
    peak, enough = usage_report.figures.memory_peak_mib, usage_report.sufficient_memory_mib
    used = f"requested {format_memory(usage_report.memory_mib)} of memory, peak {format_memory(peak)}"
    return f"{used}, {format_memory(enough)} would be enough" if enough and enough < usage_report.memory_mib else used


def _figure(value: float) -> str:
    """Two significant digits, without powers of ten."""
    if value < 0.01:
        return "less than 0.01"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
