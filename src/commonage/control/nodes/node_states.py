"""Pure functions on a node's state: derives it from the report and the drain state, and selects what to store.

Called by `nodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from commonage.domain.nodes import Node, NodeState
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import DrainedBy, NeedsRepair, NotReporting
from commonage.domain.reasons.notes import NodeUndecided
from commonage.domain.workloads import Event, EventKind, Workload
from commonage.scheduler.model.shapes import AllocatedRequest


def with_state(node: Node) -> Node:
    """The node with the state and reason that follow from its report and its drain state."""
    report = node.report
    if report.gone:
        return replace(node, state=NodeState.LOST, reasons=report.faults)
    if node.drain:
        return replace(node, state=NodeState.DRAINING, reasons=(DrainedBy(by=node.drained_by), *report.faults))
    if report.faults:
        return replace(node, state=NodeState.FAULTY, reasons=report.faults)
    return replace(node, state=NodeState.READY, reasons=() if report.disk_pressure is None else (report.disk_pressure,))


def reasons_for(node: Node, who: Principal) -> tuple[Reason, ...]:
    """Why the node is in its state. Only admins get its faults, which may contain texts of daemons."""
    if who.is_admin or not node.report.faults:
        return node.reasons
    if node.state is NodeState.DRAINING:
        return (DrainedBy(by=node.drained_by),)
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


def undecided(
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
    allocations = [one for one in allocated if one.allocation.node == node.name]
    there = [(one, found) for one in allocations if (found := workload(one.workload_id)) is not None]
    event_reason = NodeUndecided(node=node.name, cause=why)
    told = [
        Event(EventKind.WARNING, now, event_reason, found.id, one.allocation.attempt_id, found.spec.owner,
        found.spec.tenant,
              found.state)
        for one, found in there
    ]  # fmt: skip
    return [Event(EventKind.NODE, now, replace(event_reason, workloads=len(there))), *told] if told else []
