"""Events for a GPU that fails, recovers or disappears: one on the node for admins, and one for each workload with a
share of it. Pure; `nodes` calls it with the previous and the current report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from commonage.domain.errors import NotFound
from commonage.domain.nodes import Device, Node
from commonage.domain.reasons.notes import GpuFault, GpuMissing, GpuRecovered
from commonage.domain.workloads import Event, EventKind, Workload
from commonage.scheduler.model.shapes import AllocatedRequest

Alarm = GpuFault | GpuRecovered | GpuMissing


def alarms(
    before: Node | None,
    node: Node,
    allocated: Iterable[AllocatedRequest],
    workload: Callable[[str], Workload | None],
    now: float,
) -> list[Event]:
    """Return the events for changed GPUs of `node`. `workload` returns a live workload by its id."""
    old = {device.uuid: device for device in before.report.devices} if before is not None else {}
    new = {device.uuid: device for device in node.report.devices}
    told: dict[str, Alarm] = {}
    for uuid, device in new.items():
        was_at_fault = uuid in old and bool(old[uuid].faults)
        if device.faults and not was_at_fault:
            told[uuid] = GpuFault(node=node.name, gpu=device.label, model=device.model, faults=device.faults)
        elif was_at_fault and not device.faults:
            told[uuid] = GpuRecovered(node=node.name, gpu=device.label, model=device.model)
    for uuid, device in old.items():
        if uuid not in new:
            told[uuid] = GpuMissing(node=node.name, gpu=device.label, model=device.model)
    events = [Event(EventKind.NODE, now, one) for one in told.values()]
    return events + [event for one in allocated for event in _told(one, told, workload(one.workload_id), now)]


def _told(one: AllocatedRequest, told: dict[str, Alarm], workload: Workload | None, now: float) -> list[Event]:
    if workload is None:
        return []
    spec = workload.spec
    return [
        Event(
            EventKind.WARNING, now, replace(told[uuid], is_held=True), workload.id, one.allocation.attempt_id,
            spec.owner,
            spec.tenant, workload.state,
        )
        for uuid in dict.fromkeys(share.device_uuid for share in one.allocation.shares)
        if uuid in told
    ]  # fmt: skip


def named(device: Device) -> str:
    """Display name: `GPU 0 (NVIDIA A100)`."""
    return f"GPU {device.label} ({device.model})"


def device_of(node: Node, gpu: str) -> Device:
    """Find a GPU by its index, label, uuid or uuid prefix. Raises NotFound."""
    found = [device for device in node.report.devices if gpu in (device.uuid, device.label, str(device.index))]
    if not found and len(gpu) >= 4:
        found = [device for device in node.report.devices if device.uuid.startswith(gpu)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{device.label} ({device.uuid})" for device in node.report.devices) or "none"
    what = "could be any of several" if found else "is none"
    raise NotFound(f"GPU {gpu[:60]!r} {what} on {node.name}; there are: {there}", code="device-not-found")
