"""Many sites: whoever could start anywhere starts; whoever cannot stands somewhere, and goes where first it can."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.fleet import Node
from commonage.domain.tenants import Rules, Tenant
from commonage.placement.grid import Grid
from commonage.placement.shapes import Bools
from commonage.placement.sites import SitePolicy, Sites
from commonage.testing import factories


def fleet(*sites: str) -> list[Node]:
    return [factories.node(f"n{number}", 1, site=site) for number, site in enumerate(sites)]


def bools(*values: int) -> Bools:
    return np.array(values, np.bool_)


def where(sites: Sites, workload: str, may: Bools, could: Bools, count: int = 1) -> tuple[str, bool]:
    route = sites.route(workload, may, could, count)
    assert route is not None
    assert route.starts == bool(route.nodes.any())
    return route.site, route.starts


ALL = bools(1, 1, 1)
NONE = bools(0, 0, 0)


def test_the_first_in_the_order_of_the_rules_that_is_free_takes_it() -> None:
    sites = Sites(Grid(fleet("a", "b", "c")), Rules(sites=(("c", 1.0), ("b", 1.0))))
    assert sites.names == ["c", "b", "a"]
    assert where(sites, "w", ALL, ALL) == ("c", True)
    assert where(sites, "w", bools(1, 1, 0), ALL) == ("b", True)


def test_the_cheapest_or_the_least_used_of_those_that_are_free_where_the_rules_say_so() -> None:
    grid = Grid(fleet("a", "b"))
    share = factories.share(grid.nodes[0].report.devices[0], memory_mib=1024)
    grid.take(factories.lease(node="n0", shares=[share]))
    least = Sites(grid, Rules(site_policy=SitePolicy.LEAST_USED))
    assert where(least, "w", bools(1, 1), bools(1, 1)) == ("b", True)
    cheap = Sites(grid, Rules(sites=(("b", 2.0), ("a", 1.5)), site_policy=SitePolicy.CHEAPEST))
    assert where(cheap, "w", bools(1, 1), bools(1, 1)) == ("a", True)


def test_those_who_wait_stand_where_longest_nobody_was_sent_and_stay_there() -> None:
    sites = Sites(Grid(fleet("a", "b", "c")), Rules())
    assert [where(sites, f"w{number}", NONE, ALL)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert where(sites, "w1", NONE, ALL) == ("b", False)


def test_one_that_stands_at_a_site_starts_at_another_that_is_free_before() -> None:
    sites = Sites(Grid(fleet("a", "b", "c")), Rules())
    assert where(sites, "w", NONE, ALL) == ("a", False)
    assert where(sites, "w", bools(0, 0, 1), ALL) == ("c", True)
    sites.started("w", "c")
    assert where(sites, "v", NONE, bools(1, 0, 1)) == ("a", False)


def test_it_stands_only_where_it_could_ever_run() -> None:
    sites = Sites(Grid(fleet("a", "b", "c")), Rules())
    assert where(sites, "w", NONE, bools(0, 1, 0)) == ("b", False)
    assert where(sites, "w", NONE, bools(1, 0, 0)) == ("a", False)
    assert sites.route("w", NONE, NONE) is None


def test_a_gang_is_at_one_site() -> None:
    sites = Sites(Grid(fleet("a", "b", "b")), Rules())
    assert where(sites, "w", ALL, ALL, count=2) == ("b", True)
    assert where(sites, "w", bools(1, 1, 0), ALL, count=2) == ("b", False)
    assert sites.route("w", ALL, ALL, 3) is None


def test_a_tenant_has_the_sites_it_may_use() -> None:
    sites = Sites(Grid(fleet("a", "b", "c")), Rules())
    allowed = sites.of(Tenant("bio", sites=("a", "c")))
    assert allowed is not None
    assert allowed.tolist() == [True, False, True]
    assert sites.of(Tenant("bio")) is None


def test_sites_that_come_are_known() -> None:
    grid = Grid(fleet("a"))
    sites = Sites(grid, Rules())
    grid.put(fleet("a", "b"))
    assert where(sites, "w", bools(0, 1), bools(1, 1)) == ("b", True)


NODES = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), min_size=1, max_size=6)


@given(NODES, st.integers(1, 2), st.lists(st.booleans(), max_size=3), st.sampled_from(list(SitePolicy)))
def test_what_could_start_somewhere_is_never_kept_waiting_elsewhere(
    nodes: list[tuple[str, bool, bool]], count: int, before: list[bool], policy: SitePolicy
) -> None:
    of = [site for site, _, _ in nodes]
    sites = Sites(Grid(fleet(*of)), Rules(site_policy=policy))
    could = bools(*(fits for _, _, fits in nodes))
    may = could & bools(*(free for _, free, _ in nodes))
    for _ in before:
        sites.route("w", np.zeros(len(nodes), np.bool_), could, count)
    route = sites.route("w", may, could, count)
    free = {site for site in of if sum(m for m, name in zip(may, of, strict=True) if name == site) >= count}
    able = {site for site in of if sum(c for c, name in zip(could, of, strict=True) if name == site) >= count}
    assert (route is None) == (not able)
    if route is not None:
        assert route.starts == bool(free)
        assert route.site in (free or able)
        assert all(may[node] and of[node] == route.site for node in np.flatnonzero(route.nodes))
