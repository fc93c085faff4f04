"""From the domain to the wire: a GPU, what it measures, and what is wrong with it. Called by `encode`."""

from __future__ import annotations

from commonage.api import encode_usage_reports
from commonage.control.node_pool import DeviceView
from commonage.control.usage.attribution import unattributed
from commonage.messages.notes import unattributed as unattributed_in_words
from commonage.ports.devices import DeviceSample
from commonage.wire.devices import DeviceOut, MeasuredOut, PeerOut, UnavailableOut


def device(view: DeviceView) -> DeviceOut:
    """A GPU."""
    device = view.device
    unattributed_processes = unattributed_in_words(unattributed(device, view.unattributed)) if view.unattributed else ""
    return DeviceOut(
        uuid=device.uuid,
        index=device.index,
        label=device.label,
        model=device.model,
        memory_mib=device.memory_mib,
        free_mib=view.free_mib,
        free_compute_milli=view.free_compute_milli,
        used_mib=view.used_mib,
        utilisation=view.utilisation,
        simulated=device.simulated,
        isolation=device.isolation.value,
        unavailable=[UnavailableOut(isolation=level.value, why=why) for level, why in device.unavailable],
        faults=list(device.faults),
        notices=[*device.notices, *([unattributed_processes] if unattributed_processes else [])],
        unattributed=[encode_usage_reports.unattributed_process(one) for one in view.unattributed],
        driver=device.driver,
        cuda=device.cuda,
        compute_capability=device.compute_capability,
        pci=device.pci,
        numa=device.numa,
        slots=device.slots,
        mig_profile=device.mig_profile,
        parent_uuid=device.parent_uuid,
        peers=[PeerOut(uuid=uuid, links=links) for uuid, links in device.peers],
        measured=measured(view.sample) if view.sample else None,
    )


def measured(sample: DeviceSample) -> MeasuredOut:
    """The last sample of it."""
    return MeasuredOut(
        power_w=sample.power_w,
        power_limit_w=sample.power_limit_w,
        energy_j=sample.energy_j,
        temperature_c=sample.temperature_c,
        sm_clock_mhz=sample.sm_clock_mhz,
        memory_clock_mhz=sample.memory_clock_mhz,
        throttle=list(sample.throttle),
        ecc_corrected=sample.ecc_corrected,
        ecc_uncorrected=sample.ecc_uncorrected,
        remapped_corrected=sample.remapped_corrected,
        remapped_uncorrected=sample.remapped_uncorrected,
        xid=sample.xid,
    )
