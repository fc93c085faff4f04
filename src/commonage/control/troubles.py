"""What a workload's owner should know of its machine while it runs, in words. Pure; called by `look`."""

from __future__ import annotations

from commonage.domain.fleet import Node, NodeState
from commonage.domain.quantities import format_duration
from commonage.domain.workloads import Kind, Workload


def trouble(workload: Workload, node: Node | None, now: float) -> str:
    """What is wrong with the machine that it holds a lease on, and what that means for it; empty if nothing is."""
    if not workload.state.holds_lease or workload.stop is not None or node is None:
        return ""
    silent = node.state is NodeState.LOST or (node.state is NodeState.FAULTY and not node.report.faults)
    if silent:
        since = format_duration(now - node.seen_at)
        if node.report.undecided:
            return f"its machine {node.name} does not answer since {since}: {node.report.undecided}"
        return f"its machine {node.name} does not answer since {since}; {_once_lost(workload)}"
    if node.report.faults:
        return f"its machine {node.name} is faulty, and an admin has to repair it; {_once_lost(workload)}"
    if node.drain and node.leave_by is not None:
        left = format_duration(node.leave_by - now)
        return f"its machine {node.name} is drained by {node.drained_by} and must be empty in {left}"
    return ""


def _once_lost(workload: Workload) -> str:
    spec = workload.spec
    if spec.kind is Kind.SESSION:
        return f"if it is lost, the session {'is started again elsewhere' if spec.requeue else 'ends'}"
    return f"if it is lost, the {spec.kind} {'queues again' if spec.requeue else 'is lost, too'}"
