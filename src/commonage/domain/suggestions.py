"""Turns usage reports into a sentence and into the request to make next time. Pure; used by API, portal and control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonage.domain.quantities import format_duration, format_memory
from commonage.domain.receipts import Receipt, enough_for
from commonage.domain.requests import GpuRequest

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


def suggestion_of(receipts: Sequence[Receipt], asked: GpuRequest | None) -> Suggestion | None:
    """The suggestion from usage reports of the same work, newest first. None if nothing was measured."""
    real = [each for each in receipts if not each.simulated]
    chosen = real or receipts
    on_devices = [each for each in chosen if each.devices == 1 and each.vram_peak_mib]
    if not chosen or not (on_devices or any(each.figures.memory_peak_mib for each in chosen)):
        return None
    most = max(on_devices, key=lambda each: each.vram_peak_mib or 0, default=None)
    vram = most.would_do_mib if most is not None else None
    wanted = asked.memory_on(most.device_mib) if most is not None and asked is not None and asked.whole < 2 else 0
    memory = max((each.figures.memory_peak_mib for each in chosen), default=0)
    cores = max((each.figures.cpu_peak_milli for each in chosen), default=0)
    return Suggestion(
        workload_id=(most or chosen[0]).workload_id,
        runs=len(chosen),
        gpus=_of_model(asked, memory_text(vram)) if vram is not None else None,
        vram_mib=vram,
        peak_mib=most.vram_peak_mib if most is not None else None,
        memory_mib=enough_for(memory) if memory else None,
        cpus_milli=cores_enough_for(cores) if cores else None,
        too_much=vram is not None and wanted >= vram * MUCH_MORE and wanted - vram >= MUCH_MORE_MIB,
        simulated=(most or chosen[0]).simulated,
        summary=_summary(most, len(chosen), wanted),
    )


def _of_model(asked: GpuRequest | None, amount: str) -> str:
    """The amount, prefixed with the requested model, if there was one."""
    return f"{asked.model}:{amount}" if asked is not None and asked.model else amount


def _summary(most: Receipt | None, runs: int, wanted_mib: int) -> str:
    if most is None or most.would_do_mib is None or most.vram_peak_mib is None:
        return ""
    last = "last time it used" if runs == 1 else f"the last {runs} runs of it used"
    simulated = " (simulated, so it means nothing)" if most.simulated else ""
    said = f"{last} at most {format_memory(most.vram_peak_mib)} of VRAM{simulated}: "
    if wanted_mib and wanted_mib < most.vram_peak_mib:
        return f"{said}{format_memory(wanted_mib)} may be too little, {format_memory(most.would_do_mib)} will do"
    return f"{said}{format_memory(most.would_do_mib)} will do"


def cores_enough_for(peak_milli: int) -> int:
    """Cores to request, in thousandths, for a peak: rounded up to halves, with a tolerance of an eighth."""
    return max(_CPU_STEP_MILLI, -(-(peak_milli - 125) // _CPU_STEP_MILLI) * _CPU_STEP_MILLI)


def memory_text(mib: int) -> str:
    """An amount in users' syntax, exact: `6GiB`, `5.5GiB`, `768MiB`."""
    return f"{mib / 1024:g}GiB" if mib >= 1024 and mib % 512 == 0 else f"{mib}MiB"


def receipt_in_words(receipt: Receipt) -> str:
    """One line: requested, used and sufficient resources, and the cost in hours and energy."""
    parts = [_vram(receipt)] if receipt.devices else []
    parts += [_memory(receipt)] if not receipt.devices else []
    if receipt.devices:
        parts.append(f"{_figure(receipt.gpu_h)} GPU-hours")
    if receipt.energy_wh is not None and receipt.devices:
        parts.append(f"{_figure(receipt.energy_wh)} Wh")
    if receipt.idle_share is not None:
        parts.append(f"idle {receipt.idle_share:.0%} of the time")
    if receipt.figures.over_share_s:
        parts.append(f"over its share for {format_duration(receipt.figures.over_share_s)}")
    return f"{'; '.join(parts)}{' (simulated GPU)' if receipt.simulated else ''}"


def _vram(receipt: Receipt) -> str:
    each = f" on each of {receipt.devices} GPUs" if receipt.devices > 1 else ""
    asked = f"asked {format_memory(receipt.vram_mib)} of VRAM{each}"
    peak, enough = receipt.vram_peak_mib, receipt.would_do_mib
    if peak is None:
        return f"{asked}, used: not measured"
    if enough is None:
        return f"{asked}, used none"
    used = f"{asked}, peak {format_memory(peak)}"
    return f"{used}, {format_memory(enough)} would have done" if enough < receipt.vram_mib else used


def _memory(receipt: Receipt) -> str:
    peak, enough = receipt.figures.memory_peak_mib, receipt.memory_would_do_mib
    used = f"asked {format_memory(receipt.memory_mib)} of memory, peak {format_memory(peak)}"
    return f"{used}, {format_memory(enough)} would have done" if enough and enough < receipt.memory_mib else used


def _figure(value: float) -> str:
    """Two significant digits, without powers of ten."""
    if value < 0.01:
        return "less than 0.01"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
