"""Problems of a node that the owner of a running workload should know. Pure; called by the queries."""

from __future__ import annotations

from commonage.domain.nodes import Node, NodeState
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import Fate, NodeHasFault, NodeMustBeEmpty, NodeNotResponding, NodeUndecided
from commonage.domain.workloads import Kind, Workload


def node_problem(workload: Workload, node: Node | None, now: float) -> Reason | None:
    if not workload.state.holds_allocation or workload.stop is not None or node is None:
        return None
    silent = node.state is NodeState.LOST or (node.state is NodeState.FAULTY and not node.report.faults)
    if silent:
        silent_s = now - node.observed_at
        if node.report.awaits_admin is not None:
            return NodeUndecided(node=node.name, cause=node.report.awaits_admin, silent_s=silent_s)
        return NodeNotResponding(node=node.name, fate=_once_lost(workload), silent_s=silent_s)
    if node.report.faults:
        return NodeHasFault(node=node.name, fate=_once_lost(workload))
    if node.drain and node.leave_by is not None:
        return NodeMustBeEmpty(node=node.name, by=node.drained_by, left_s=node.leave_by - now)
    return None


def _once_lost(workload: Workload) -> Fate:
    spec = workload.spec
    if spec.kind is Kind.SESSION:
        return Fate.SESSION_RESTARTS if spec.requeue else Fate.SESSION_ENDS
    return Fate.REQUEUED if spec.requeue else Fate.ENDS
