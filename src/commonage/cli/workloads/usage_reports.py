"""The usage report of a workload and the suggested request, as text. Used by run, attach, explain and profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.usage import UsageReportOut
    from commonage.wire.workloads import SubmitIn, WorkloadOut


def summary(workload: WorkloadOut) -> str | None:
    """The GPU usage of a workload; None without GPUs or measurements."""
    usage_report = workload.usage_report
    return usage_report.summary if usage_report is not None and usage_report.devices else None


def hint(client: Client, request: SubmitIn) -> str | None:
    """A hint if the request has much more VRAM than the last runs of the same command used, else None.

    A request that the server refuses gives no hint; the refusal is reported when it is submitted.
    """
    if request.gpus is None:
        return None
    try:
        suggestion = client.dry_run(request).suggestion
    except ApiError:
        return None
    if suggestion is None or not suggestion.too_much or suggestion.simulated:
        return None
    return f"{suggestion.summary} (--gpus {suggestion.gpus}), and starts sooner"


def request_line(usage_report: UsageReportOut) -> str:
    """The suggested request as options of `commonage run`."""
    options = []
    if usage_report.sufficient_vram_mib is not None and usage_report.devices == 1:
        whole = usage_report.sufficient_vram_mib >= usage_report.vram_mib
        options.append(f"--gpus {'1' if whole else amount(usage_report.sufficient_vram_mib)}")
    elif usage_report.sufficient_vram_mib is not None:
        options.append(f"--gpus {usage_report.devices}")
    if usage_report.sufficient_memory_mib is not None:
        options.append(f"--mem {amount(usage_report.sufficient_memory_mib)}")
    return " ".join([*options, f"--cpus {cores(usage_report.cpu_peak_milli)}"])


def amount(mib: int) -> str:
    """Memory as an option: `6GiB`, `5.5GiB`, `768MiB`."""
    return f"{mib / 1024:g}GiB" if mib >= 1024 and mib % 512 == 0 else f"{mib}MiB"


def cores(peak_milli: int) -> str:
    """Cores for a peak, less an eighth, rounded up to halves."""
    return f"{max(500, -(-(peak_milli - 125) // 500) * 500) / 1000:g}"
