"""A node whose disk is nearly full: sessions start there, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from commonage.control.state.live_state import ask_for
from commonage.domain.nodes import Node
from commonage.domain.reasons.waiting import InsufficientDisk
from commonage.domain.workloads import Kind
from commonage.scheduler.explain.explain import explain
from commonage.scheduler.plan import plan
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories
from commonage.testing.factories import NOW

WORDS = "only 3 MiB are free on the disk of /data, where 256 MiB are needed"


def tight(node: Node) -> Node:
    return replace(node, report=replace(node.report, tight=WORDS))


def snapshot(*nodes: Node) -> Snapshot:
    made = Snapshot(nodes)
    for number, kind in enumerate((Kind.JOB, Kind.SESSION, Kind.SERVICE)):
        spec = factories.spec(kind=kind)
        made.enqueue(ask_for(spec, f"{kind}-{number}", NOW + number))
    return made


def started(made: Snapshot) -> dict[str, str]:
    return {workload_id.partition("-")[0]: allocation.node for workload_id, allocation in plan(made, NOW).starts}


def test_only_sessions_start_where_the_disk_is_full() -> None:
    assert started(snapshot(tight(factories.node("full")))) == {"session": "full"}
    both = started(snapshot(tight(factories.node("full")), factories.node("roomy")))
    assert (both["job"], both["service"]) == ("roomy", "roomy")
    assert "session" in both


def test_who_waits_reads_why() -> None:
    made = snapshot(tight(factories.node("full")))
    job = ask_for(factories.spec(kind=Kind.JOB), "another", NOW)
    assert explain(made, job, NOW).reasons == (InsufficientDisk(node="full", total=1, detail=WORDS),)
    session = ask_for(factories.spec(kind=Kind.SESSION), "another", NOW)
    assert explain(made, session, NOW).startable_now
