"""Pure answers about a machine's state: by whose wish it takes no work, and what is worth writing down. For `fleet`."""

from __future__ import annotations

from dataclasses import replace

from commonage.domain.fleet import Node, NodeState


def drained_by(known: Node | None) -> str:
    """Why a machine that is known takes no work by an admin's wish; empty if nobody wished it."""
    if known is None or not known.drain:
        return ""
    return known.reason if known.state is NodeState.DRAINING else "drained by an admin"


def drained(node: Node, why: str) -> Node:
    """The machine with the wish to drain it, or without one. One that is lost stays lost, whatever is wished."""
    if node.state is NodeState.LOST:
        return replace(node, drain=bool(why))
    faults = "; ".join(node.report.faults)
    state = NodeState.DRAINING if why or faults else NodeState.READY
    return replace(node, drain=bool(why), state=state, reason=why or faults)


def essence(node: Node) -> tuple[object, ...]:
    """What of a node is worth writing down when it changes."""
    report = node.report
    devices = [replace(one, notices=()) for one in report.devices]
    offered = (report.cpus_milli, report.memory_mib, report.labels)
    return (node.site, node.engine, node.state, node.drain, node.reason, node.leave_by, *offered, devices)
