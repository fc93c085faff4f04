"""What a workload used, and what to ask for instead, as lines to read. Used by run, attach, explain and profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.usage_reports import UsageReportOut
    from commonage.wire.workloads import SubmitIn, WorkloadOut


def used(workload: WorkloadOut) -> str | None:
    """What it used of its GPUs; None without GPUs, or where nothing was measured."""
    usage_report = workload.usage_report
    return usage_report.summary if usage_report is not None and usage_report.devices else None


def hint(client: Client, ask: SubmitIn) -> str | None:
    """A word to who asks for much more VRAM than the last runs of the same command needed; None if there is none.

    A server that refuses the ask says so when it is submitted, not here.
    """
    if ask.gpus is None:
        return None
    try:
        suggestion = client.dry_run(ask).suggestion
    except ApiError:
        return None
    if suggestion is None or not suggestion.too_much or suggestion.simulated:
        return None
    return f"{suggestion.summary} (--gpus {suggestion.gpus}), and starts sooner"


def request_line(usage_report: UsageReportOut) -> str:
    """The options of the request to make, from what was measured."""
    options = []
    if usage_report.would_do_mib is not None and usage_report.devices == 1:
        whole = usage_report.would_do_mib >= usage_report.vram_mib
        options.append(f"--gpus {'1' if whole else amount(usage_report.would_do_mib)}")
    elif usage_report.would_do_mib is not None:
        options.append(f"--gpus {usage_report.devices}")
    if usage_report.memory_would_do_mib is not None:
        options.append(f"--mem {amount(usage_report.memory_would_do_mib)}")
    return " ".join([*options, f"--cpus {cores(usage_report.cpu_peak_milli)}"])


def amount(mib: int) -> str:
    """As it is typed: `6GiB`, `5.5GiB`, `768MiB`."""
    return f"{mib / 1024:g}GiB" if mib >= 1024 and mib % 512 == 0 else f"{mib}MiB"


def cores(peak_milli: int) -> str:
    """Cores for a peak, rounded up to halves; an eighth of a core is forgiven."""
    return f"{max(500, -(-(peak_milli - 125) // 500) * 500) / 1000:g}"
