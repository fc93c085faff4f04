"""Turns usage reports into a sentence and into the request to make next time. Pure; used by API, portal and control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonage.domain.requests import GpuRequest, format_duration, format_memory
from commonage.domain.usage_reports import UsageReport, request_for_peak

MUCH_MORE = 1.5  # times the sufficient amount
MUCH_MORE_MIB = 1024
_CPU_STEP_MILLI = 500


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The suggested request. `gpus` is in users' syntax, None if nothing is known of a GPU (or it never used one).

    `peak_mib` is the most VRAM that its last `runs` used, `workload_id` the one that used it. `too_much`: the request
    is much more than that.
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
    """The amount, prefixed with the requested model, if there was one."""
    return f"{asked.model}:{amount}" if asked is not None and asked.model else amount


def _summary(most: UsageReport | None, runs: int, wanted_mib: int) -> str:
    if most is None or most.sufficient_vram_mib is None or most.vram_peak_mib is None:
        return ""
    last = "last time it used" if runs == 1 else f"the last {runs} runs of it used"
    simulated = " (simulated, so it means nothing)" if most.simulated else ""
    said = f"{last} at most {format_memory(most.vram_peak_mib)} of VRAM{simulated}: "
    if wanted_mib and wanted_mib < most.vram_peak_mib:
        return f"{said}{format_memory(wanted_mib)} may be too little, {format_memory(most.sufficient_vram_mib)} will do"
    return f"{said}{format_memory(most.sufficient_vram_mib)} will do"


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
    asked = f"asked {format_memory(usage_report.vram_mib)} of VRAM{each}"
    peak, enough = usage_report.vram_peak_mib, usage_report.sufficient_vram_mib
    if peak is None:
        return f"{asked}, used: not measured"
    if enough is None:
        return f"{asked}, used none"
    used = f"{asked}, peak {format_memory(peak)}"
    return f"{used}, {format_memory(enough)} would have done" if enough < usage_report.vram_mib else used


def _memory(usage_report: UsageReport) -> str:
    peak, enough = usage_report.figures.memory_peak_mib, usage_report.sufficient_memory_mib
    used = f"asked {format_memory(usage_report.memory_mib)} of memory, peak {format_memory(peak)}"
    return f"{used}, {format_memory(enough)} would have done" if enough and enough < usage_report.memory_mib else used


def _figure(value: float) -> str:
    """Two significant digits, without powers of ten."""
    if value < 0.01:
        return "less than 0.01"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
