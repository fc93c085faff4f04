"""The table of all series of /metrics: name, type, labels, meaning. Only series in this table are exposed.

`collect` fills it, docs/reference/metrics.md is made from it. A label has one of few values, or names a node or
GPU. It never names a user, a workload or a path, because the number of series would grow with the workloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]

_DEVICE = ("node", "device", "uuid", "model", "simulated")
# Labels of NVIDIA's DCGM Exporter, so that dashboards made for it find what they look for.
_DCGM = ("gpu", "UUID", "device", "modelName", "Hostname", "simulated")


@dataclass(frozen=True, slots=True)
class Series:
    """One family. A counter's name ends in `_total`; the name of any other ends in its unit, if it has one."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


SERIES: tuple[Series, ...] = (
    Series("commonage_build_info", "gauge", "Always 1; the label says which version runs.", ("version",)),
    # --- workloads
    Series("commonage_workloads", "gauge", "Workloads that have not ended.", ("state", "kind")),
    Series("commonage_workloads_ended_total", "counter", "Workloads that have ended, ever.", ("state",)),
    Series("commonage_queue_length", "gauge", "Workloads that wait for a place."),
    Series("commonage_queue_oldest_seconds", "gauge", "How long the longest waiting of them waits; 0 for none."),
    Series("commonage_active_users", "gauge", "Users with a workload that has not ended."),
    Series("commonage_environments", "gauge", "Entries of the catalogue, by where they stand.", ("state",)),
    # --- nodes: lost ones are counted, and have no figures
    Series("commonage_nodes", "gauge", "Nodes.", ("state",)),
    Series("commonage_node_cpu_cores", "gauge", "Cores of a node.", ("node",)),
    Series("commonage_node_allocated_cpu_cores", "gauge", "Cores of it that workloads hold.", ("node",)),
    Series("commonage_node_memory_bytes", "gauge", "Memory of a node.", ("node",)),
    Series("commonage_node_allocated_memory_bytes", "gauge", "Memory of it that workloads hold.", ("node",)),
    Series("commonage_node_free_disk_bytes", "gauge", "Free space where work is kept, where it is known.", ("node",)),
    Series("commonage_node_workloads", "gauge", "Workloads that hold a part of a node.", ("node",)),
    # --- GPUs
    Series("commonage_device_memory_bytes", "gauge", "VRAM of a GPU.", _DEVICE),
    Series("commonage_device_allocated_memory_bytes", "gauge", "VRAM of it that workloads hold.", _DEVICE),
    Series("commonage_device_used_memory_bytes", "gauge", "VRAM in use, as measured.", _DEVICE),
    Series("commonage_device_allocated_compute_ratio", "gauge", "Part of its compute that workloads hold.", _DEVICE),
    Series("commonage_device_utilisation_ratio", "gauge", "Part of the last moments in which it computed.", _DEVICE),
    Series("commonage_device_power_watts", "gauge", "Power it draws.", _DEVICE),
    Series("commonage_device_power_limit_watts", "gauge", "The most it may draw.", _DEVICE),
    Series("commonage_device_energy_joules_total", "counter", "What it drew since its driver was loaded.", _DEVICE),
    Series("commonage_device_temperature_celsius", "gauge", "Its temperature.", _DEVICE),
    Series("commonage_device_clock_hertz", "gauge", "Its clocks. `domain` is sm or memory.", (*_DEVICE, "domain")),
    Series(
        "commonage_device_throttled_info", "gauge", "1 for each reason why its clocks are low.", (*_DEVICE, "reason")
    ),
    Series(
        "commonage_device_memory_errors_total",
        "counter",
        "ECC errors of its memory since its driver was loaded.",
        (*_DEVICE, "corrected"),
    ),
    Series("commonage_device_faults", "gauge", "Reasons why it takes no new work; 0 when it is healthy.", _DEVICE),
    Series(
        "commonage_device_unattributed_memory_bytes",
        "gauge",
        "VRAM of it held by processes that no workload started.",
        _DEVICE,
    ),
    Series(
        "commonage_workloads_used_gpu_memory_bytes",
        "gauge",
        "VRAM that workloads use, as measured.",
        ("tenant", "kind"),
    ),
    Series("commonage_over_share_workloads", "gauge", "Workloads that hold more VRAM of a GPU than their share of it."),
    Series(
        "commonage_watchdog_workloads_total",
        "counter",
        "Workloads that were `warned` or `stopped` for holding more VRAM than their share.",
        ("action",),
    ),
    Series("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", _DCGM),
    Series("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", _DCGM),
    Series("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", _DCGM),
    Series("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", _DCGM),
    Series("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gauge", "Power limit that holds (in W).", _DCGM),
    Series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gauge", "Energy drawn since the driver was loaded (in mJ).", _DCGM),
    Series("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", _DCGM),
    Series("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", _DCGM),
    Series("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", _DCGM),
    Series("DCGM_FI_DEV_XID_ERRORS", "gauge", "Number of the last Xid error.", _DCGM),
    Series("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "gauge", "Corrected ECC errors since the driver was loaded.", _DCGM),
    Series("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "gauge", "Uncorrectable ECC errors since the driver was loaded.", _DCGM),
    Series("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "gauge", "Rows remapped for correctable errors.", _DCGM),
    Series("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "gauge", "Rows remapped for uncorrectable errors.", _DCGM),
    # --- the control plane itself
    Series("commonage_loop_age_seconds", "gauge", "Time since the last turn of a loop ended.", ("loop",)),
    Series("commonage_loop_up", "gauge", "0 while a turn of a loop takes too long, else 1.", ("loop",)),
    Series("commonage_loop_errors_total", "counter", "Turns of a loop that an unexpected error ended.", ("loop",)),
    Series("commonage_schedule_pass_seconds", "gauge", "How long the last pass of the schedule loop took."),
    Series("commonage_store_up", "gauge", "1 while the database answers; at 0 changes wait and submits are refused."),
    Series("commonage_writer_commits_total", "counter", "Batches written to the database."),
    Series("commonage_writer_commit_seconds_total", "counter", "Time that writing them took."),
    Series("commonage_writer_changes_total", "counter", "Changes they held; many share a batch under load."),
    Series("commonage_writer_waiting_changes", "gauge", "Changes that wait to be written."),
    Series(
        "commonage_http_requests_total",
        "counter",
        "Requests answered. `area` is api, portal or other, `status` a class like 2xx.",
        ("area", "method", "status"),
    ),
    Series("commonage_http_request_seconds", "histogram", "Time until the answer began, by area.", ("area",)),
)

BY_NAME = {series.name: series for series in SERIES}
