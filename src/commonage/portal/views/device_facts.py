"""The known facts of a GPU, as label and words for the nodes page. Unknown facts are left out. Used by
`device_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from commonage.control.node_pool import DeviceView
from commonage.domain.nodes import Device
from commonage.domain.quantities import format_memory
from commonage.ports.devices import DeviceSample

Fact = tuple[str, str]


def facts_of(view: DeviceView, labels: Mapping[str, str]) -> tuple[Fact, ...]:
    """`labels`: the display names of the node's GPUs, by UUID."""
    measured = _measured(view.sample) if view.sample is not None else ()
    return (*_what(view.device), *_where(view.device, labels), *measured)


def _what(device: Device) -> Iterator[Fact]:
    if device.mig_profile:
        yield "MIG", f"{device.mig_profile} of {format_memory(device.parent_memory_mib)}"
    if device.slots:
        yield "Slots", f"shared in {device.slots} equal parts"
    if device.driver and not device.simulated:
        yield "Driver", device.driver
    if device.cuda:
        yield "CUDA", device.cuda
    if device.compute_capability:
        yield "Compute capability", device.compute_capability


def _where(device: Device, labels: Mapping[str, str]) -> Iterator[Fact]:
    if device.pci:
        yield "PCI", device.pci
    if device.numa is not None:
        yield "NUMA node", str(device.numa)
    if device.peers:
        yield "NVLink", ", ".join(f"{links} to GPU {labels.get(uuid, uuid)}" for uuid, links in device.peers)


def _measured(sample: DeviceSample) -> Iterator[Fact]:
    if sample.power_w is not None:
        limit = "" if sample.power_limit_w is None else f" of {sample.power_limit_w:.0f}"
        yield "Power", f"{sample.power_w:.0f}{limit} W"
    if sample.temperature_c is not None:
        yield "Temperature", f"{sample.temperature_c:.0f} °C"
    if sample.sm_clock_mhz is not None:
        yield "SM clock", f"{sample.sm_clock_mhz} MHz"
    if sample.memory_clock_mhz is not None:
        yield "Memory clock", f"{sample.memory_clock_mhz} MHz"
    if sample.throttle:
        yield "Slowed by", ", ".join(sample.throttle)
    if sample.ecc_corrected is not None or sample.ecc_uncorrected is not None:
        yield "Memory errors", f"{sample.ecc_corrected or 0} corrected, {sample.ecc_uncorrected or 0} not"
    remapped = (sample.remapped_corrected or 0) + (sample.remapped_uncorrected or 0)
    if remapped:
        yield "Rows replaced", str(remapped)
    if sample.xid is not None:
        yield "Last Xid", str(sample.xid)
