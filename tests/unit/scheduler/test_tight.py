"""A node with a nearly full disk takes sessions only."""

from __future__ import annotations

from dataclasses import replace

from commonage.control.state.live_state import request_from_spec
from commonage.domain.nodes import Node
from commonage.domain.reasons.nodes import DiskNearlyFull
from commonage.domain.reasons.waiting import InsufficientDisk
from commonage.domain.workloads import Kind
from commonage.scheduler.explain.explain import explain
from commonage.scheduler.plan import plan
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories
from commonage.testing.factories import NOW

FULL = DiskNearlyFull(folders=("/data",), free_mib=3, min_mib=256)


def disk_pressure(node: Node) -> Node:
    return replace(node, report=replace(node.report, disk_pressure=FULL))


def snapshot(*nodes: Node) -> Snapshot:
    made = Snapshot(nodes)
    for number, kind in enumerate((Kind.JOB, Kind.SESSION, Kind.SERVICE)):
        spec = factories.spec(kind=kind)
        made.enqueue(request_from_spec(spec, f"{kind}-{number}", NOW + number))
    return made


def started(made: Snapshot) -> dict[str, str]:
    return {workload_id.partition("-")[0]: allocation.node for workload_id, allocation in plan(made, NOW).starts}


def test_only_sessions_start_on_a_full_disk() -> None:
    assert started(snapshot(disk_pressure(factories.node("full")))) == {"session": "full"}
    both = started(snapshot(disk_pressure(factories.node("full")), factories.node("roomy")))
    assert (both["job"], both["service"]) == ("roomy", "roomy")
    assert "session" in both


def test_wait_reason_names_the_full_disk() -> None:
    made = snapshot(disk_pressure(factories.node("full")))
    job = request_from_spec(factories.spec(kind=Kind.JOB), "another", NOW)
    assert explain(made, job, NOW).reasons == (InsufficientDisk(node="full", total=1, cause=FULL),)
    session = request_from_spec(factories.spec(kind=Kind.SESSION), "another", NOW)
    assert explain(made, session, NOW).startable_now
