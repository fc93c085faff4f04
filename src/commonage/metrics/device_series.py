"""The series of one GPU: Commonage's in base units, and those of NVIDIA's DCGM Exporter under its names and units.

Called by `collect`. Source: the collectors that DCGM Exporter ships (default-counters.csv). Its counters are gauges
here, because a counter's name must end in `_total`, and dashboards expect the original names.
"""

from __future__ import annotations

from commonage.control.queries.node_views import DeviceView
from commonage.metrics.series import MIB, Families
from commonage.ports.devices import DeviceSample

_NOTHING = DeviceSample("", None, None)


def put_device(node: str, view: DeviceView, families: Families) -> None:
    """All series of a GPU of this node; unknown values are left out."""
    _put_allocated(node, view, families)
    _put_measured(node, view, families)
    _put_dcgm(node, view, families)


def _labels(node: str, view: DeviceView) -> tuple[str, ...]:
    device = view.device
    return node, device.label, device.uuid, device.model, _truth(device.simulated)


def _put_allocated(node: str, view: DeviceView, families: Families) -> None:
    device, labels = view.device, _labels(node, view)
    families.put("commonage_device_memory_bytes", device.memory_mib * MIB, *labels)
    families.put("commonage_device_allocated_memory_bytes", (device.memory_mib - view.free_mib) * MIB, *labels)
    families.put("commonage_device_allocated_compute_ratio", (1000 - view.free_compute_milli) / 1000, *labels)
    families.put("commonage_device_faults", len(device.faults), *labels)
    unattributed_mib = sum(process.memory_mib or 0 for process in view.unattributed)
    families.put("commonage_device_unattributed_memory_bytes", unattributed_mib * MIB, *labels)


def _put_measured(node: str, view: DeviceView, families: Families) -> None:
    labels, sample = _labels(node, view), view.sample or _NOTHING
    used = None if view.used_mib is None else view.used_mib * MIB
    families.put("commonage_device_used_memory_bytes", used, *labels)
    families.put("commonage_device_utilisation_ratio", view.utilisation, *labels)
    families.put("commonage_device_power_watts", sample.power_w, *labels)
    families.put("commonage_device_power_limit_watts", sample.power_limit_w, *labels)
    families.put("commonage_device_energy_joules_total", sample.energy_j, *labels)
    families.put("commonage_device_temperature_celsius", sample.temperature_c, *labels)
    for domain, mhz in (("sm", sample.sm_clock_mhz), ("memory", sample.memory_clock_mhz)):
        families.put("commonage_device_clock_hertz", None if mhz is None else mhz * 1_000_000, *labels, domain)
    for reason in sample.throttle:
        families.put("commonage_device_throttled_info", 1, *labels, reason)
    for corrected, count in (("true", sample.ecc_corrected), ("false", sample.ecc_uncorrected)):
        families.put("commonage_device_memory_errors_total", count, *labels, corrected)


def _put_dcgm(node: str, view: DeviceView, families: Families) -> None:
    device, used, sample = view.device, view.used_mib, view.sample or _NOTHING
    label = device.label
    labels = (label, device.uuid, f"nvidia{label.partition(':')[0]}", device.model, node, _truth(device.simulated))
    values = {
        "FB_USED": used,
        "FB_FREE": None if used is None else max(0, device.memory_mib - used),
        "GPU_UTIL": None if view.utilisation is None else view.utilisation * 100,
        "POWER_USAGE": sample.power_w,
        "ENFORCED_POWER_LIMIT": sample.power_limit_w,
        "TOTAL_ENERGY_CONSUMPTION": None if sample.energy_j is None else sample.energy_j * 1000,
        "GPU_TEMP": sample.temperature_c,
        "SM_CLOCK": sample.sm_clock_mhz,
        "MEM_CLOCK": sample.memory_clock_mhz,
        "XID_ERRORS": sample.xid,
        "ECC_SBE_VOL_TOTAL": sample.ecc_corrected,
        "ECC_DBE_VOL_TOTAL": sample.ecc_uncorrected,
        "CORRECTABLE_REMAPPED_ROWS": sample.remapped_corrected,
        "UNCORRECTABLE_REMAPPED_ROWS": sample.remapped_uncorrected,
    }
    for name, value in values.items():
        families.put(f"DCGM_FI_DEV_{name}", value, *labels)


def _truth(value: bool) -> str:
    return "true" if value else "false"
