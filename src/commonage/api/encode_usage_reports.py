"""Usage reports, suggestions and unattributed processes, from the domain to the wire. Part of `encode`, which is long
enough.
"""

from __future__ import annotations

from commonage.control.usage.attribution import UnattributedProcess
from commonage.domain.suggestions import Suggestion, usage_report_in_words
from commonage.domain.usage_reports import UsageReport
from commonage.wire.usage_reports import SuggestionOut, UnattributedProcessOut, UsageReportOut


def usage_report(found: UsageReport) -> UsageReportOut:
    """What a workload used."""
    figures = found.figures
    return UsageReportOut(
        final=found.ended_at is not None,
        summary=usage_report_in_words(found),
        measured_s=figures.measured_s,
        cpus_milli=found.cpus_milli,
        cpu_peak_milli=figures.cpu_peak_milli,
        cpu_s=figures.cpu_s,
        memory_mib=found.memory_mib,
        memory_peak_mib=figures.memory_peak_mib,
        memory_would_do_mib=found.memory_would_do_mib,
        devices=found.devices,
        vram_mib=found.vram_mib,
        vram_peak_mib=found.vram_peak_mib,
        vram_mean_mib=found.vram_mean_mib,
        would_do_mib=found.would_do_mib,
        gpu_utilisation=found.gpu_utilisation,
        gpu_idle_share=found.idle_share,
        first_gpu_s=figures.first_gpu_s,
        gpu_h=found.gpu_h,
        energy_wh=found.energy_wh,
        over_share_s=figures.over_share_s,
        simulated=found.simulated,
    )


def suggestion(found: Suggestion) -> SuggestionOut:
    """What to ask for."""
    return SuggestionOut(
        summary=found.summary,
        gpus=found.gpus,
        vram_mib=found.vram_mib,
        peak_mib=found.peak_mib,
        memory_mib=found.memory_mib,
        cpus_milli=found.cpus_milli,
        too_much=found.too_much,
        runs=found.runs,
        workload_id=found.workload_id,
        simulated=found.simulated,
    )


def unattributed_process(found: UnattributedProcess) -> UnattributedProcessOut:
    """A process of no workload."""
    return UnattributedProcessOut(pid=found.pid, memory_mib=found.memory_mib, name=found.name)
