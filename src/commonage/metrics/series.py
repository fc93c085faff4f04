"""The table of all series of /metrics, and the families that `collect` fills. Only series in the table are exposed.

docs/reference/metrics.md is generated from the table. A label has few values, or names a node or GPU. It never names a
user, workload or path, because the number of series would grow with the workloads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import Metric

MIB = 1024 * 1024

Kind = Literal["gauge", "counter", "histogram"]

_NODE = ("site", "node")
_DEVICE = ("site", "node", "device", "uuid", "model", "simulated")
# Labels of NVIDIA's DCGM Exporter, for dashboards made for it.
_DCGM = ("gpu", "UUID", "device", "modelName", "Hostname", "simulated")


@dataclass(frozen=True, slots=True)
class Series:
    """One family. A counter's name ends in `_total`, any other name in its base unit, if it has one."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


SERIES: tuple[Series, ...] = (
    Series("commonage_build_info", "gauge", "Always 1. The label is the version that runs.", ("version",)),
    # --- workloads
    Series("commonage_workloads", "gauge", "Workloads that have not ended, by state and kind.", ("state", "kind")),
    Series("commonage_workloads_ended_total", "counter", "Ended workloads of all time, by final state.", ("state",)),
    Series("commonage_queue_length", "gauge", "Workloads in the queue."),
    Series("commonage_queue_oldest_seconds", "gauge", "Age of the oldest queued workload; 0 if none is queued."),
    Series("commonage_active_users", "gauge", "Users with a workload that has not ended."),
    Series("commonage_environments", "gauge", "Environments of the catalogue, by state.", ("state",)),
    # --- nodes: lost nodes are counted, and have no other series
    Series("commonage_nodes", "gauge", "Nodes, by state.", ("state",)),
    Series("commonage_node_cpu_cores", "gauge", "CPU cores of a node.", _NODE),
    Series("commonage_node_allocated_cpu_cores", "gauge", "CPU cores of a node that are allocated.", _NODE),
    Series("commonage_node_memory_bytes", "gauge", "Memory of a node.", _NODE),
    Series("commonage_node_allocated_memory_bytes", "gauge", "Memory of a node that is allocated.", _NODE),
    Series("commonage_node_free_disk_bytes", "gauge", "Free disk space for workspaces; absent if unknown.", _NODE),
    Series("commonage_node_used_cpu_cores", "gauge", "Busy CPU cores of a node, measured.", _NODE),
    Series("commonage_node_used_memory_bytes", "gauge", "Memory in use on a node, measured.", _NODE),
    Series("commonage_node_disk_bytes", "gauge", "Size of the fullest disk of a node.", _NODE),
    Series("commonage_node_used_disk_bytes", "gauge", "Used space on the fullest disk of a node.", _NODE),
    Series("commonage_node_disk_read_bytes_per_second", "gauge", "Reads from the disks of a node.", _NODE),
    Series("commonage_node_disk_written_bytes_per_second", "gauge", "Writes to the disks of a node.", _NODE),
    Series("commonage_node_network_received_bytes_per_second", "gauge", "Network traffic to a node.", _NODE),
    Series("commonage_node_network_sent_bytes_per_second", "gauge", "Network traffic from a node.", _NODE),
    Series("commonage_node_temperature_celsius", "gauge", "Temperature of the processor of a node.", _NODE),
    Series("commonage_node_load", "gauge", "Load average of a node, one minute.", _NODE),
    Series("commonage_node_workloads", "gauge", "Workloads with an allocation on a node.", _NODE),
    # --- GPUs
    Series("commonage_device_memory_bytes", "gauge", "VRAM of a GPU.", _DEVICE),
    Series("commonage_device_allocated_memory_bytes", "gauge", "VRAM of a GPU that is allocated.", _DEVICE),
    Series("commonage_device_used_memory_bytes", "gauge", "VRAM of a GPU in use, measured.", _DEVICE),
    Series(
        "commonage_device_allocated_compute_ratio", "gauge", "Part of the compute of a GPU that is allocated.", _DEVICE
    ),
    Series(
        "commonage_device_utilisation_ratio",
        "gauge",
        "Part of the last sample period in which a GPU ran kernels.",
        _DEVICE,
    ),
    Series("commonage_device_power_watts", "gauge", "Power draw of a GPU.", _DEVICE),
    Series("commonage_device_power_limit_watts", "gauge", "Power limit of a GPU.", _DEVICE),
    Series("commonage_device_energy_joules_total", "counter", "Energy used by a GPU since driver load.", _DEVICE),
    Series("commonage_device_temperature_celsius", "gauge", "Temperature of a GPU.", _DEVICE),
    Series("commonage_device_clock_hertz", "gauge", "Clock of a GPU. `domain` is sm or memory.", (*_DEVICE, "domain")),
    Series(
        "commonage_device_throttled_info",
        "gauge",
        "1 for each reason why the clocks of a GPU are reduced.",
        (*_DEVICE, "reason"),
    ),
    Series(
        "commonage_device_memory_errors_total",
        "counter",
        "ECC errors in the memory of a GPU since driver load.",
        (*_DEVICE, "corrected"),
    ),
    Series("commonage_device_faults", "gauge", "Faults that keep a GPU from new workloads; 0 if healthy.", _DEVICE),
    Series(
        "commonage_device_unattributed_memory_bytes",
        "gauge",
        "VRAM of a GPU in use by processes outside all workloads.",
        _DEVICE,
    ),
    Series(
        "commonage_workloads_used_gpu_memory_bytes", "gauge", "VRAM in use by workloads, measured.", ("tenant", "kind")
    ),
    Series("commonage_over_share_workloads", "gauge", "Workloads that use more VRAM than their share."),
    Series("commonage_sessions", "gauge", "Running sessions that are `active`, `idle` or `unknown`.", ("activity",)),
    Series(
        "commonage_idle_sessions_total",
        "counter",
        "Sessions that were `warned`, stopped (`idle`) or lost their GPU (`gpu-release`) because they were idle.",
        ("action",),
    ),
    Series(
        "commonage_watchdog_workloads_total",
        "counter",
        "Workloads `warned` or `stopped` for VRAM use above their share.",
        ("action",),
    ),
    Series("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", _DCGM),
    Series("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", _DCGM),
    Series("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", _DCGM),
    Series("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", _DCGM),
    Series("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gauge", "Enforced power limit (in W).", _DCGM),
    Series(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gauge", "Total energy consumption since driver load (in mJ).", _DCGM
    ),
    Series("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", _DCGM),
    Series("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", _DCGM),
    Series("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", _DCGM),
    Series("DCGM_FI_DEV_XID_ERRORS", "gauge", "Number of the last Xid error.", _DCGM),
    Series("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "gauge", "Corrected ECC errors since driver load.", _DCGM),
    Series("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "gauge", "Uncorrectable ECC errors since driver load.", _DCGM),
    Series("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "gauge", "Rows remapped for correctable errors.", _DCGM),
    Series("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "gauge", "Rows remapped for uncorrectable errors.", _DCGM),
    # --- the control plane itself
    Series("commonage_loop_age_seconds", "gauge", "Time since the last iteration of a loop ended.", ("loop",)),
    Series("commonage_loop_up", "gauge", "0 while an iteration of a loop takes too long, else 1.", ("loop",)),
    Series(
        "commonage_loop_errors_total", "counter", "Iterations of a loop that ended with an unexpected error.", ("loop",)
    ),
    Series("commonage_schedule_pass_seconds", "gauge", "Duration of the last pass of the schedule loop."),
    Series(
        "commonage_store_up", "gauge", "1 while the database answers. At 0, changes wait and submissions are refused."
    ),
    Series("commonage_writer_commits_total", "counter", "Commits to the database."),
    Series("commonage_writer_commit_seconds_total", "counter", "Total duration of commits to the database."),
    Series(
        "commonage_writer_changes_total",
        "counter",
        "Changes committed to the database. A commit can hold many changes.",
    ),
    Series("commonage_writer_waiting_changes", "gauge", "Changes that wait for a commit."),
    Series(
        "commonage_http_requests_total",
        "counter",
        "HTTP requests. `area` is api, portal or other; `status` is a class such as 2xx.",
        ("area", "method", "status"),
    ),
    Series("commonage_http_request_seconds", "histogram", "Time until the response begins, by area.", ("area",)),
)

BY_NAME = {series.name: series for series in SERIES}


class Families:
    """Metric families by name, each created with its first value."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def put(self, name: str, value: float | None, *labels: str) -> None:
        """Set a series of the table; labels in the table's order. A value of None is left out."""
        if value is None:
            return
        series = BY_NAME[name]
        family = self._families.get(name)
        if family is None:
            # prometheus_client takes a counter without its suffix, and adds it.
            plain = name.removesuffix("_total")
            family = self._families[name] = Metric(plain, series.help, series.kind)
        family.add_sample(name, dict(zip(series.labels, labels, strict=True)), value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())
