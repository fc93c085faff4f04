"""The explanation of every site: why not there, and when there is room."""

from __future__ import annotations

from dataclasses import replace

from commonage.domain.explanations import SiteChoice
from commonage.domain.nodes import Node, NodeState
from commonage.domain.reasons import waiting
from commonage.domain.reasons.nodes import SiteUnreachable
from commonage.domain.sites import Site
from commonage.domain.tenants import Rules
from commonage.scheduler.explain.explain import explain
from commonage.scheduler.model.shapes import AllocatedRequest, QueuedRequest
from commonage.scheduler.plan import plan
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

NOW = 1000.0


def queued(name: str = "w", *, site: str = "", limit_s: int | None = None, near: tuple[str, ...] = ()) -> QueuedRequest:
    labels = (("site", site),) if site else ()
    request = replace(factories.request(gpus="1"), labels=labels)
    return QueuedRequest(name, request, 0, NOW, limit_s, owner="o", tenant="x", near=near)


def busy(nodes: list[Node], rules: Rules | None = None, limits: dict[str, int] | None = None) -> Snapshot:
    """All GPUs are allocated; those of the sites in `limits` end after these seconds."""
    snapshot = Snapshot(nodes, rules)
    for node in nodes:
        if node.state is NodeState.READY:
            name, limit_s = f"at-{node.site}-{node.name}", (limits or {}).get(node.site)
            share = factories.share(node.report.devices[0])
            allocation = factories.allocation(f"{name}-1", site=node.site, node=node.name, shares=[share], at=NOW)
            ends_at = None if limit_s is None else NOW + limit_s
            snapshot.allocate(AllocatedRequest(allocation, name, name, "o", "job", ends_at, "x"))
    return snapshot


def choices(snapshot: Snapshot, asked: QueuedRequest) -> dict[str, SiteChoice]:
    return {one.site: one for one in explain(snapshot, asked, NOW).sites}


def test_each_site_has_its_own_reason() -> None:
    lost = replace(
        factories.node("n", 1, site="cut"), state=NodeState.LOST, reasons=(SiteUnreachable(site="cut", since=5.0),)
    )
    nodes = [factories.node("n", 1, site=site) for site in ("full", "other", "far", "unasked")] + [lost]
    rules = Rules(
        sites=(Site("other", tenants=("y",)), Site("empty")),
        volume_sites=(("data", ("full", "cut", "empty", "unasked", "other")),),
    )
    found = choices(busy(nodes, rules), queued(near=("data",), site="full|cut|empty|other|far"))
    assert isinstance(found["full"].reason, waiting.InsufficientGpus)
    assert found["cut"].reason == SiteUnreachable(site="cut", since=5.0)
    assert found["empty"].reason == waiting.SiteWithoutNodes()
    assert found["other"].reason == waiting.SiteOfOtherTenants(tenant="x")
    assert found["far"].reason == waiting.VolumeNotAtSite(volume="data")
    assert found["unasked"].reason == waiting.SiteNotRequested()
    assert [one.site for one in found.values() if one.is_candidate] == ["cut", "full", "empty"]


def test_reasons_of_other_sites_do_not_explain_the_request() -> None:
    nodes = [factories.node("n", 1, site="mine"), factories.node("m", 1, site="theirs")]
    explained = explain(busy(nodes, Rules(sites=(Site("theirs", tenants=("y",)),))), queued(), NOW)
    assert [getattr(reason, "node", "") for reason in explained.reasons] == ["mine/n"]
    assert [getattr(reason, "total", 0) for reason in explained.reasons] == [1]
    assert {holder.node for holder in explained.holders} == {"mine/n"}


def test_a_request_without_a_candidate_site_says_so() -> None:
    snapshot = busy([factories.node("n", 1, site="theirs")], Rules(sites=(Site("theirs", tenants=("y",)),)))
    snapshot.enqueue(queued())
    assert explain(snapshot, queued(), NOW).reasons == (waiting.NoCandidateSite(tenant="x"),)


def test_room_at_each_site_follows_its_time_limits() -> None:
    nodes = [factories.node("n", 1, site=site) for site in "abc"]
    found = choices(busy(nodes, limits={"a": 300, "b": 100}), queued())
    assert {site: one.free_at for site, one in found.items()} == {"a": NOW + 300, "b": NOW + 100, "c": None}


def test_a_request_that_starts_now_shows_the_other_sites_too() -> None:
    snapshot = busy([factories.node("n", 1, site="a")])
    snapshot.put([factories.node("n", 1, site="b")])
    explained = explain(snapshot, queued(), NOW)
    assert explained.startable_now
    assert {one.site: one.reason.code for one in explained.sites} == {"a": "InsufficientGpus", "b": "SiteHasRoom"}


def test_one_site_needs_no_list() -> None:
    assert explain(busy([factories.node("n", 1)]), queued(), NOW).sites == ()


def test_a_queued_job_is_shown_where_it_is_free_first_and_moves() -> None:
    nodes = [factories.node("n", 1, site=site) for site in "ab"]
    snapshot = busy(nodes)
    snapshot.enqueue(queued())
    first = explain(snapshot, queued(), NOW).site
    assert first == "a"  # the least recently used
    (ends,) = [one for one in snapshot.allocated.values() if one.allocation.site == "b"]
    snapshot.release(ends.workload_id, NOW)
    snapshot.allocate(replace(ends, ends_at=NOW + 50))
    assert explain(snapshot, queued(), NOW).site == "b"  # its time limit makes it free first
    snapshot.release(ends.workload_id, NOW + 10)
    assert [allocation.site for _, allocation in plan(snapshot, NOW + 10).starts] == ["b"]


def test_considering_a_request_uses_no_site() -> None:
    nodes = [factories.node("n", 1, site=site) for site in "ab"]
    snapshot = busy(nodes)
    assert [explain(snapshot, queued(f"w{number}"), NOW).site for number in range(3)] == ["a", "a", "a"]
