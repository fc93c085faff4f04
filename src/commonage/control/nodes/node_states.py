"""Pure functions for `nodes`: the state of a node, and the events that follow from a changed report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from commonage.control.access import Access
from commonage.control.state.feed import event_of
from commonage.control.state.live_state import MAX_LISTED
from commonage.domain.errors import InvalidInput, NotFound
from commonage.domain.nodes import Device, Node, NodeState
from commonage.domain.permissions import Permission
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import DrainedBy, NeedsRepair, NotReporting, SiteUnreachable
from commonage.domain.reasons.notes import GpuFault, GpuMissing, GpuRecovered, NodeUndecided
from commonage.domain.workloads import Event, EventKind, Workload
from commonage.scheduler.model.shapes import AllocatedRequest


def with_state(node: Node) -> Node:
    report = node.report
    if report.gone:
        return replace(node, state=NodeState.LOST, reasons=report.faults)
    if node.drain:
        return replace(node, state=NodeState.DRAINING, reasons=(DrainedBy(by=node.drained_by), *report.faults))
    if report.faults:
        return replace(node, state=NodeState.FAULTY, reasons=report.faults)
    return replace(node, state=NodeState.READY, reasons=() if report.disk_pressure is None else (report.disk_pressure,))


def reasons_for(node: Node, access: Access) -> tuple[Reason, ...]:
    """Why the node is in its state. Its faults may contain texts of daemons, so only operators and admins get them."""
    if access.may(Permission.SEE_PLATFORM) or not node.report.faults:
        return node.reasons
    if node.state is NodeState.DRAINING:
        return (DrainedBy(by=node.drained_by),)
    if isinstance(node.report.awaits_admin, SiteUnreachable):
        return (node.report.awaits_admin,)
    return (NeedsRepair() if node.state is NodeState.FAULTY else NotReporting(),)


def drained(node: Node, by: str, leave_by: float | None = None) -> Node:
    """The node as drained by this principal (empty: not drained). A lost node stays lost."""
    wished = replace(node, drained_by=by, leave_by=leave_by)
    return wished if node.state is NodeState.LOST else with_state(wished)


def stored_fields(node: Node) -> tuple[object, ...]:
    """The fields of a node that must be written when they change."""
    report = node.report
    devices = [replace(one, notices=()) for one in report.devices]
    offered = (report.cpus_milli, report.memory_mib, report.labels)
    return (node.site, node.engine, node.state, node.drained_by, node.reasons, node.leave_by, *offered, devices)


def events_awaiting_admin(
    before: Node | None,
    node: Node,
    allocated: Iterable[AllocatedRequest],
    workload: Callable[[str], Workload | None],
    now: float,
) -> list[Event]:
    """Events about a node whose workloads need an admin's decision: one for admins, and one for each workload with an
    allocation on it. `workload` returns a live workload by its id.
    """
    why = node.report.awaits_admin
    if why is None or (before is not None and before.report.awaits_admin is not None):
        return []
    on_node = [workload(one.workload_id) for one in allocated if one.allocation.node_key == node.key]
    reason = NodeUndecided(node=node.key.label, cause=why)
    warnings = [event_of(one, EventKind.WARNING, now, reason) for one in on_node if one is not None]
    return [Event(EventKind.NODE, now, replace(reason, workloads=len(warnings))), *warnings] if warnings else []


Alarm = GpuFault | GpuRecovered | GpuMissing


def alarms(
    before: Node | None,
    node: Node,
    allocated: Iterable[AllocatedRequest],
    workload: Callable[[str], Workload | None],
    now: float,
) -> list[Event]:
    """Events for each GPU of `node` that failed, recovered or disappeared: one for admins, and one for each workload
    with a share of it. `workload` returns a live workload by its id.
    """
    old = {device.uuid: device for device in before.report.devices} if before is not None else {}
    new = {device.uuid: device for device in node.report.devices}
    found: dict[str, Alarm] = {}
    for uuid, device in new.items():
        was_at_fault = uuid in old and bool(old[uuid].faults)
        if device.faults and not was_at_fault:
            found[uuid] = GpuFault(node=node.key.label, gpu=device.label, model=device.model, faults=device.faults)
        elif was_at_fault and not device.faults:
            found[uuid] = GpuRecovered(node=node.key.label, gpu=device.label, model=device.model)
    for uuid, device in old.items():
        if uuid not in new:
            found[uuid] = GpuMissing(node=node.key.label, gpu=device.label, model=device.model)
    events = [Event(EventKind.NODE, now, alarm) for alarm in found.values()]
    for one in allocated:
        holder = workload(one.workload_id)
        shares = one.allocation.shares if one.allocation.site == node.site else ()
        for uuid in dict.fromkeys(share.device_uuid for share in shares):
            if holder is not None and uuid in found:
                events.append(event_of(holder, EventKind.WARNING, now, replace(found[uuid], is_held=True)))
    return events


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


def node_named(name: str, nodes: Collection[Node]) -> Node:
    """The node NAME or SITE/NAME among these. Raises NotFound, and InvalidInput if several sites have a node NAME."""
    site, _, own = name.rpartition("/")
    found = [node for node in nodes if node.name == own and site in ("", node.site)]
    if len(found) > 1:
        places = ", ".join(sorted(str(node.key) for node in found)[:MAX_LISTED])
        raise InvalidInput(f"the node {name[:60]!r} is ambiguous: {places}; write SITE/NAME", field="nodes")
    if not found:
        known = ", ".join(key.label for key in sorted(node.key for node in nodes)[:MAX_LISTED]) or "none"
        raise NotFound(f"there is no node {name[:120]!r}; there are: {known}", code="node-not-found")
    return found[0]
