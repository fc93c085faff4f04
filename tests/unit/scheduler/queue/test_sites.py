"""Several sites: workloads start at any free site, and are shown in the queue of one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.nodes import Node
from commonage.domain.sites import Site, SitePolicy
from commonage.domain.tenants import Rules
from commonage.scheduler.explain.explain import explain
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Bools, QueuedRequest
from commonage.scheduler.plan import plan
from commonage.scheduler.queue.sites import Sites
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories


def cluster(*sites: str) -> list[Node]:
    return [factories.node(f"n{number}", 1, site=site) for number, site in enumerate(sites)]


def bools(*values: int) -> Bools:
    return np.array(values, np.bool_)


def where(sites: Sites, workload: str, may: Bools, could: Bools, count: int = 1) -> tuple[str | None, bool]:
    """The site of a workload, and whether it starts there."""
    nodes = sites.choose(may, count)
    if nodes.any():
        (site,) = {sites._grid.nodes[node].site for node in np.flatnonzero(nodes)}
        return site, True
    return sites.queue_site(workload, could, count), False


ALL = bools(1, 1, 1)
NONE = bools(0, 0, 0)


def test_first_free_site_in_the_order_of_the_rules_is_chosen() -> None:
    sites = Sites(Grid(cluster("a", "b", "c")), Rules(sites=(Site("c"), Site("b"))))
    assert sites.names == ["c", "b", "a"]
    assert where(sites, "w", ALL, ALL) == ("c", True)
    assert where(sites, "w", bools(1, 1, 0), ALL) == ("b", True)


def test_cheapest_or_least_used_free_site_is_chosen_by_rule() -> None:
    grid = Grid(cluster("a", "b"))
    share = factories.share(grid.nodes[0].report.devices[0], memory_mib=1024)
    grid.take(factories.allocation(site="a", node="n0", shares=[share]))
    least = Sites(grid, Rules(site_policy=SitePolicy.LEAST_USED))
    assert where(least, "w", bools(1, 1), bools(1, 1)) == ("b", True)
    cheap = Sites(
        grid,
        Rules(sites=(Site("b", price_per_gpu_h=2.0), Site("a", price_per_gpu_h=1.5)), site_policy=SitePolicy.CHEAPEST),
    )
    assert where(cheap, "w", bools(1, 1), bools(1, 1)) == ("a", True)


def test_waiting_workload_is_shown_at_the_least_recently_chosen_site_and_stays() -> None:
    sites = Sites(Grid(cluster("a", "b", "c")), Rules())
    assert [where(sites, f"w{number}", NONE, ALL)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert where(sites, "w1", NONE, ALL) == ("b", False)


def test_waiting_workload_starts_at_another_site_that_is_free_earlier() -> None:
    sites = Sites(Grid(cluster("a", "b", "c")), Rules())
    assert where(sites, "w", NONE, ALL) == ("a", False)
    assert where(sites, "w", bools(0, 0, 1), ALL) == ("c", True)
    sites.started("c")
    sites.forget("w")
    assert where(sites, "v", NONE, ALL) == ("b", False)


def test_waiting_workload_is_shown_only_where_it_could_run() -> None:
    sites = Sites(Grid(cluster("a", "b", "c")), Rules())
    assert where(sites, "w", NONE, bools(0, 1, 0)) == ("b", False)
    assert where(sites, "w", NONE, bools(1, 0, 0)) == ("a", False)
    assert where(sites, "w", NONE, NONE) == (None, False)


def test_gang_runs_at_one_site() -> None:
    sites = Sites(Grid(cluster("a", "b", "b")), Rules())
    assert where(sites, "w", ALL, ALL, count=2) == ("b", True)
    assert where(sites, "w", bools(1, 1, 0), ALL, count=2) == ("b", False)
    assert where(sites, "w", ALL, ALL, count=3) == (None, False)


def test_site_label_matches_any_of_several_sites() -> None:
    grid = Grid(cluster("a", "b", "c"))
    shape = grid.shape(replace(factories.request(), labels=(("site", "a|c"),)))
    assert grid.fits(shape, np.arange(3)).tolist() == [True, False, True]


def test_new_sites_are_known() -> None:
    grid = Grid(cluster("a"))
    sites = Sites(grid, Rules())
    grid.put(cluster("a", "b"))
    assert where(sites, "w", bools(0, 1), bools(1, 1)) == ("b", True)


NODES = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), min_size=1, max_size=6)


@given(NODES, st.integers(1, 2), st.lists(st.booleans(), max_size=3), st.sampled_from(list(SitePolicy)))
def test_workload_that_could_start_at_a_site_never_waits_at_another(
    nodes: list[tuple[str, bool, bool]], count: int, before: list[bool], policy: SitePolicy
) -> None:
    of = [site for site, _, _ in nodes]
    sites = Sites(Grid(cluster(*of)), Rules(site_policy=policy))
    could = bools(*(fits for _, _, fits in nodes))
    may = could & bools(*(free for _, free, _ in nodes))
    for _ in before:
        sites.queue_site("w", could, count)
    site, starts = where(sites, "w", may, could, count)
    free = {site for site in of if sum(m for m, name in zip(may, of, strict=True) if name == site) >= count}
    able = {site for site in of if sum(c for c, name in zip(could, of, strict=True) if name == site) >= count}
    assert (site is None) == (not able)
    assert starts == bool(free)
    assert site is None or site in (free or able)
    assert np.count_nonzero(sites.choose(may, count)) in ({0} if not free else range(count, len(nodes) + 1))


def test_plan_uses_the_free_site_and_explanation_names_the_queue_site() -> None:
    snapshot = Snapshot(cluster("a", "b"), Rules(sites=(Site("b"), Site("a"))))
    for number in range(3):
        snapshot.enqueue(QueuedRequest(f"w{number}", factories.request(gpus="1"), 0, float(number)))
    outcome = plan(snapshot, 10.0)
    assert [allocation.node for _, allocation in outcome.starts] == ["n1", "n0"]
    for workload_id, allocated in outcome.started.items():
        snapshot.dequeue(workload_id)
        snapshot.allocate(allocated)
    queued = snapshot.queue.get("w2")
    assert queued is not None
    explanation = explain(snapshot, queued, 11.0)
    assert (explanation.position, explanation.site) == (1, "b")
