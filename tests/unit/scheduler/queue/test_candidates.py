"""Candidate sites by tenant, volumes and request. No workload runs, or is promised a start, elsewhere."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.nodes import Node, NodeState
from commonage.domain.sites import EVERYWHERE, Site, SitePolicy, SiteSet, only
from commonage.domain.tenants import Reservation, Rules, Tenant
from commonage.scheduler.explain.explain import explain
from commonage.scheduler.model.shapes import QueuedRequest
from commonage.scheduler.plan import plan
from commonage.scheduler.queue.candidates import CandidateSites
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

NAMES, TENANTS, VOLUMES = "abc", ("x", "y", "z"), ("v", "w")
SETS = st.builds(
    lambda names, inverted: SiteSet(tuple(sorted(names)), inverted=inverted),
    st.sets(st.sampled_from(NAMES)),
    st.booleans(),
)


@given(SETS, SETS, st.sampled_from("abcd"))
def test_intersection_has_the_sites_of_both(first: SiteSet, second: SiteSet, site: str) -> None:
    assert (site in first & second) == (site in first and site in second)


def test_no_names_are_all_sites() -> None:
    assert only(()) == EVERYWHERE
    assert "anything" in EVERYWHERE
    assert only(("b", "a", "b")) == SiteSet(("a", "b"))


def test_sites_of_other_tenants_are_excluded() -> None:
    rules = Rules(
        tenants=(Tenant("x"), Tenant("y", sites=("a", "b"))), sites=(Site("a", tenants=("y",)), Site("b"), Site("c"))
    )
    assert [site for site in "abc" if site in rules.sites_of("x")] == ["b", "c"]
    assert [site for site in "abc" if site in rules.sites_of("y")] == ["a", "b"]
    assert "later" in rules.sites_of("not declared")


RULES = st.builds(
    lambda of_tenants, of_sites, of_volumes, policies, order: Rules(
        tenants=tuple(
            Tenant(name, sites=tuple(sites), site_policy=policy)
            for name, sites, policy in zip(TENANTS, of_tenants, policies, strict=False)
        ),
        sites=tuple(Site(name, tenants=tuple(of_sites[name]), price_per_gpu_h=len(of_sites[name])) for name in order),
        volume_sites=tuple(zip(VOLUMES, map(tuple, of_volumes), strict=True)),
    ),
    st.lists(st.lists(st.sampled_from(NAMES), max_size=2, unique=True), min_size=2, max_size=2),
    st.fixed_dictionaries({name: st.lists(st.sampled_from(TENANTS), max_size=2, unique=True) for name in NAMES}),
    st.lists(st.lists(st.sampled_from(NAMES), max_size=2, unique=True), min_size=2, max_size=2),
    st.lists(st.sampled_from([None, *SitePolicy]), min_size=2, max_size=2),
    st.permutations(NAMES),
)
ASKED = st.tuples(
    st.sampled_from(TENANTS), st.sampled_from([(), ("v",), ("v", "w")]), st.sampled_from([None, "a", "b|c"])
)


def queued(number: int, tenant: str, near: tuple[str, ...], site: str | None, gang: str | None = None) -> QueuedRequest:
    request = replace(factories.request(gpus="1"), labels=(("site", site),) if site else ())
    return QueuedRequest(
        f"w{number}", request, 0, float(number), 60, owner="o", tenant=tenant, near=near, gang=gang,
        gang_size=1 if gang is None else 2,
    )  # fmt: skip


def permitted(rules: Rules, tenant: str, near: tuple[str, ...], asked: str | None, site: str) -> bool:
    """The rule written out, to compare with its implementation."""
    mine = rules.tenant(tenant).sites
    of_others = any(one.name == site and one.tenants and tenant not in one.tenants for one in rules.sites)
    have = dict(rules.volume_sites)
    at_volumes = all(not have.get(name) or site in have[name] for name in near)
    return (not mine or site in mine) and not of_others and at_volumes and (asked is None or site in asked.split("|"))


@given(
    RULES,
    RULES,
    st.lists(ASKED, min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=5),
)
def test_never_at_a_site_of_another_tenant_or_at_one_that_is_unreachable(
    before: Rules,
    rules: Rules,
    asked: list[tuple[str, tuple[str, ...], str | None]],
    at: list[tuple[str, bool]],
) -> None:
    nodes: list[Node] = [
        factories.node(f"n{number}", 1, site=site, state=NodeState.LOST if lost else NodeState.READY)
        for number, (site, lost) in enumerate(at)
    ]
    snapshot = Snapshot(nodes, before)
    for number, one in enumerate(asked):
        snapshot.enqueue(queued(number, *one))
    snapshot.set_rules(rules)  # what waits follows the rules in force
    outcome = plan(snapshot, 100.0)
    lost = {node.key for node in nodes if node.state is NodeState.LOST}
    placed = {name: [allocated.allocation] for name, allocated in outcome.started.items()}
    placed |= {name: list(promise.allocations) for name, promise in outcome.promises.items()}
    for name, allocations in placed.items():
        for allocation in allocations:
            assert permitted(rules, *asked[int(name[1:])], allocation.site)
            assert allocation.node_key not in lost
    for number, one in enumerate(asked):
        explained = explain(snapshot, queued(number, *one), 100.0)
        for choice in explained.sites:
            assert choice.is_candidate == permitted(rules, *one, choice.site)
        if explained.startable_now:
            assert {node.site for node in nodes if node.key not in lost and permitted(rules, *one, node.site)}


@given(RULES, st.lists(st.sampled_from(NAMES), min_size=1, max_size=4), st.sampled_from(TENANTS))
def test_choice_follows_the_policy_of_the_tenant(rules: Rules, at: list[str], tenant: str) -> None:
    nodes = [factories.node(f"n{number}", 1, site=site) for number, site in enumerate(at)]
    snapshot = Snapshot(nodes, rules)
    snapshot.enqueue(queued(0, tenant, (), None))
    open_to_it = [site for site in snapshot.sites.names if permitted(rules, tenant, (), None, site)]
    starts = plan(snapshot, 100.0).starts
    assert bool(starts) == bool(open_to_it)
    if starts:
        policy = rules.tenant(tenant).site_policy or rules.site_policy
        price = {site.name: site.price_per_gpu_h for site in rules.sites}
        cheapest = min(open_to_it, key=lambda site: price[site])
        assert starts[0][1].site == (cheapest if policy is SitePolicy.CHEAPEST else open_to_it[0])


def test_a_waiting_request_follows_changed_rules() -> None:
    snapshot = Snapshot([factories.node("n", 1, site="a")], Rules(sites=(Site("a", tenants=("y",)),)))
    snapshot.enqueue(queued(0, "x", (), None))
    assert not plan(snapshot, 1.0).starts
    snapshot.set_rules(Rules())
    assert [allocation.site for _, allocation in plan(snapshot, 1.0).starts] == ["a"]


def test_a_new_site_of_another_tenant_is_closed() -> None:
    snapshot = Snapshot([], Rules(sites=(Site("a", tenants=("y",)),)))
    snapshot.enqueue(queued(0, "x", (), None))
    snapshot.put([factories.node("n", 1, site="a")])
    assert not plan(snapshot, 1.0).starts
    snapshot.put([factories.node("n", 1, site="b")])
    assert [allocation.site for _, allocation in plan(snapshot, 1.0).starts] == ["b"]


def test_a_reservation_is_kept_at_sites_of_its_tenant() -> None:
    rules = Rules(
        sites=(Site("a", tenants=("y",)), Site("b")),
        reservations=(Reservation("r", "x", 10.0, 1000.0, factories.request(gpus="1")),),
    )
    snapshot = Snapshot([factories.node(f"n{site}", 1, site=site) for site in "ab"], rules)
    snapshot.enqueue(queued(0, "y", (), "b"))
    snapshot.enqueue(queued(1, "y", (), "a"))
    assert [(name, allocation.site) for name, allocation in plan(snapshot, 5.0).starts] == [("w1", "a")]


def test_members_of_a_gang_are_promised_one_site() -> None:
    nodes = [factories.node(f"n{number}", 1, site=site) for number, site in enumerate("abb")]
    snapshot = Snapshot(nodes)
    for number, node in enumerate(nodes):
        snapshot.enqueue(replace(queued(number, "x", (), node.site), time_limit_s=100 * (number + 1)))
    for workload_id, allocated in plan(snapshot, 10.0).started.items():
        snapshot.dequeue(workload_id)
        snapshot.allocate(replace(allocated, ends_at=10.0 + 100 * (int(workload_id[1:]) + 1)))
    for number in (8, 9):
        snapshot.enqueue(queued(number, "x", (), None, gang="g"))
    (promise,) = plan(snapshot, 20.0).promises.values()
    assert {allocation.site for allocation in promise.allocations} == {"b"}
    assert promise.at == 310.0


def test_unknown_volumes_restrict_nothing() -> None:
    candidates = CandidateSites(Rules(volume_sites=(("v", ("a",)),)))
    assert candidates.of("x", (), ("gone",)) is None
    assert candidates.of("x", (), ("v", "gone")) == SiteSet(("a",))
