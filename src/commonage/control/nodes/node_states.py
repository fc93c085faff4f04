"""Pure functions on a node's state: derives it from the report and the drain state, and selects what to store.

Called by `node_pool`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from commonage.domain.events import Event, EventKind
from commonage.domain.nodes import Node, NodeState
from commonage.domain.principals import Principal
from commonage.domain.reasons.notes import NodeUndecided
from commonage.domain.workloads import Workload
from commonage.scheduler.model.queued_requests import Held


def judged(node: Node) -> Node:
    """The node with the state and reason that follow from its report and its drain state."""
    report, faults = node.report, "; ".join(node.report.faults)
    if report.gone:
        return replace(node, state=NodeState.LOST, reason=faults)
    if node.drain:
        why = (f"drained by {node.drained_by}", *report.faults)
        return replace(node, state=NodeState.DRAINING, reason="; ".join(why))
    if faults:
        return replace(node, state=NodeState.FAULTY, reason=faults)
    return replace(node, state=NodeState.READY, reason=report.tight)


def reason_for(node: Node, who: Principal) -> str:
    """Why the node is in its state: for admins the reported text, for others without texts of daemons."""
    if who.is_admin or not node.report.faults:
        return node.reason
    if node.state is NodeState.DRAINING:
        return f"drained by {node.drained_by}"
    if node.state is NodeState.FAULTY:
        return "an admin has to repair it; it takes no new work"
    return "it does not answer"


def drained(node: Node, by: str, leave_by: float | None = None) -> Node:
    """The node as drained by this principal (empty: not drained). A lost node stays lost."""
    wished = replace(node, drained_by=by, leave_by=leave_by)
    return wished if node.state is NodeState.LOST else judged(wished)


def essence(node: Node) -> tuple[object, ...]:
    """The fields of a node that must be written when they change."""
    report = node.report
    devices = [replace(one, notices=()) for one in report.devices]
    offered = (report.cpus_milli, report.memory_mib, report.labels)
    return (node.site, node.engine, node.state, node.drained_by, node.reason, node.leave_by, *offered, devices)


def undecided(
    before: Node | None, node: Node, held: Iterable[Held], workload: Callable[[str], Workload | None], now: float
) -> list[Event]:
    """Events about a node whose workloads need an admin's decision: one for admins, and one for each workload with an
    allocation on it. `workload` returns a live workload by its id.
    """
    why = node.report.undecided
    if not why or (before is not None and before.report.undecided):
        return []
    allocations = [one for one in held if one.allocation.node == node.name]
    there = [(one, found) for one in allocations if (found := workload(one.workload_id)) is not None]
    undecided_ = NodeUndecided(node=node.name, detail=why)
    told = [
        Event(EventKind.WARNING, now, undecided_, found.id, one.allocation.attempt_id, found.spec.owner, found.spec.tenant,  # noqa: E501
              found.state)
        for one, found in there
    ]  # fmt: skip
    return [Event(EventKind.NODE, now, replace(undecided_, workloads=len(there))), *told] if told else []
