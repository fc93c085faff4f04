"""The fit table agrees with the grid after all changes; members of a gang get different nodes, or none starts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import REQUESTS, clusters

from commonage.domain.nodes import Node, NodeState
from commonage.domain.requests import Request
from commonage.domain.tenants import Rules
from commonage.scheduler.fit.fit_table import FitTable, cheapest_node, choose_nodes
from commonage.scheduler.model.grid import Grid, missing_labels
from commonage.scheduler.model.shapes import Bools, Floats, Ints, QueuedRequest, Shape
from commonage.scheduler.plan import plan
from commonage.scheduler.queue.fair_share import Capacity
from commonage.scheduler.queue.quota import amounts_of
from commonage.scheduler.snapshot import Snapshot
from commonage.testing import factories

OF_SOME_NODES = REQUESTS.map(lambda request: replace(request, labels=(("disk", "hdd|nvme"), ("node", "node-0|node-2"))))
SLOWLY = settings(max_examples=50, deadline=None)


@SLOWLY
@given(clusters(), st.lists(REQUESTS | OF_SOME_NODES, min_size=1, max_size=6), st.data())
def test_fit_table_agrees_with_the_grid_after_changes(
    nodes: list[Node], requests: list[Request], data: st.DataObject
) -> None:
    grid = Grid(nodes[:-1])
    fits = FitTable(grid)
    for number in range(4):
        for request_class, request in enumerate(requests[: number + 2]):
            fits.put(request_class, data.draw(st.sampled_from([request, *requests])))
        what = data.draw(st.sampled_from(["take", "put", "new"]))
        if what == "take" and grid.nodes:
            node = data.draw(st.sampled_from(grid.nodes))
            grid.take(factories.allocation(f"a-{number}", node=node.name, cpus_milli=500))
        elif what == "put" and grid.nodes:
            node = data.draw(st.sampled_from(grid.nodes))
            labels = data.draw(st.sampled_from([(), (("disk", "nvme"),), (("zone", "a"),)]))
            state = data.draw(st.sampled_from(NodeState))
            grid.put([replace(node, state=state, report=replace(node.report, labels=labels))])
        else:
            grid.put(nodes[-1:])
        fits.refresh()
        everywhere = np.arange(len(grid.nodes))
        for request_class, shape in enumerate(fits.shapes):
            if shape is not None:
                assert shape is grid.shape(shape.request)
                carry = [not missing_labels(node, shape.request.labels) for node in grid.nodes]
                assert grid.has_labels(shape, everywhere).tolist() == carry
                assert (fits.now[request_class] == grid.fits(shape, everywhere)).all()
                assert (fits.empty[request_class] == grid.fits_empty(shape, everywhere)).all()
                assert fits.count[request_class] == grid.fits(shape, everywhere).sum()


@SLOWLY
@given(clusters(), st.lists(REQUESTS, min_size=1, max_size=6))
def test_shares_equal_those_of_the_amounts(nodes: list[Node], requests: list[Request]) -> None:
    grid = Grid(nodes)
    fits, cluster = FitTable(grid), Capacity.of(grid)
    for request_class, request in enumerate(requests):
        fits.put(request_class, request)
    fits.refresh()
    shares = fits.shares(cluster)
    for request_class, request in enumerate(requests):
        assert min(1.0, shares[request_class]) == cluster.share(amounts_of(grid.shape(request)))


def test_only_a_changed_node_is_matched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [factories.node(f"n{number}", 1) for number in range(20)]
    grid = Grid(nodes)
    fits = FitTable(grid)
    for request_class in range(50):
        wanted = (("node", f"n{request_class % 20}|x{request_class}"), ("zone", "a|b"))
        fits.put(request_class, replace(factories.request(), labels=wanted))
    fits.refresh()
    assert not fits.now.any()
    matched, compared = list[list[int]](), list[list[int]]()
    has_labels, compare = grid.has_labels, fits._compare

    def counted_labels(shape: Shape, some: Ints) -> Bools:
        matched.append(some.tolist())
        return has_labels(shape, some)

    def counted(request_classes: Ints, some: Ints, empty: bool) -> Bools:
        compared.append(some.tolist())
        return compare(request_classes, some, empty)

    monkeypatch.setattr(grid, "has_labels", counted_labels)
    monkeypatch.setattr(fits, "_compare", counted)
    grid.put([replace(nodes[5], state=NodeState.DRAINING)])
    fits.refresh()
    assert (matched, compared) == ([], [[5], [5]])
    compared.clear()
    grid.put([replace(nodes[6], report=replace(nodes[6].report, labels=(("zone", "b"),)))])
    fits.refresh()
    assert (matched, compared) == ([[6]] * 50, [[6], [6]])
    assert np.argwhere(fits.now).tolist() == [[6, 6], [26, 6], [46, 6]]


def test_large_tables_are_compared_in_steps() -> None:
    grid = Grid([factories.node(f"n{number}", 2, cpus_milli=1000 * number) for number in range(600)])
    fits = FitTable(grid)
    for request_class in range(1000):
        fits.put(request_class, factories.request(1000 * request_class, gpus="1"))
    fits.refresh()
    assert fits.count[:1000].tolist() == [600 - request_class for request_class in range(600)] + [0] * 400


# --- the choice of nodes ---------------------------------------------------------------------------------

INF = np.inf


def row(*values: float) -> Floats:
    return np.array(values, np.float64)


def at(*numbers: int, nodes: int) -> Bools:
    """[nodes]: True for these."""
    return np.isin(np.arange(nodes), numbers)


def test_members_get_the_cheapest_nodes_or_none() -> None:
    costs = row(5, 1, INF, 3)
    assert choose_nodes(costs, 2, at(nodes=4)) == (1, 3)
    assert choose_nodes(costs, 3, at(nodes=4)) == (1, 3, 0)
    assert choose_nodes(costs, 4, at(nodes=4)) is None
    assert costs.tolist() == [5, 1, INF, 3]


def test_cheapest_node_prefers_the_environment_only_in_near_ties() -> None:
    costs = row(10.0, 5.0, 5.04, INF, 5.2)
    assert cheapest_node(costs, at(2, 3, nodes=5)) == 2
    assert cheapest_node(costs, at(4, nodes=5)) == 1, "too expensive"
    assert cheapest_node(costs, at(3, nodes=5)) == 1, "may not start there"
    assert cheapest_node(costs, np.ones(5, np.bool_)) == 1


def test_near_ties_prefer_nodes_with_the_environment() -> None:
    assert choose_nodes(row(1, 1.001, 9), 2, at(1, nodes=3)) == (1, 0)


@given(st.lists(st.sampled_from([1.0, 2.0, INF]), min_size=1, max_size=6), st.integers(1, 6))
def test_all_members_get_different_nodes_or_none_start(costs: list[float], count: int) -> None:
    found = choose_nodes(row(*costs), count, at(nodes=len(costs)))
    free = [cost for cost in costs if cost < INF]
    assert (found is None) == (len(free) < count)
    if found is not None:
        assert len(set(found)) == count
        assert sorted(costs[number] for number in found) == sorted(free)[:count]


def gang(count: int, size: int) -> Snapshot:
    snapshot = Snapshot([factories.node(f"n{number}", 2, site="a") for number in range(3)], Rules())
    for number in range(count):
        request = factories.request(gpus="1")
        snapshot.enqueue(QueuedRequest(f"w{number}", request, 0, 0.0, gang="g", gang_size=size))
    return snapshot


def test_gang_starts_on_different_nodes() -> None:
    assert sorted(allocation.node for _, allocation in plan(gang(3, 3), 1.0).starts) == ["n0", "n1", "n2"]


def test_incomplete_or_too_large_gang_does_not_start() -> None:
    assert plan(gang(2, 3), 1.0).starts == ()
    assert plan(gang(4, 4), 1.0).starts == ()
