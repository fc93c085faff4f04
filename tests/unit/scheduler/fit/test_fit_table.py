"""The fit table agrees with the grid after all changes."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.clusters import REQUESTS, clusters

from commonage.domain.nodes import Node, NodeState
from commonage.domain.requests import Request
from commonage.scheduler.fit.fit_table import FitTable
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.queue.fair_share import Capacity
from commonage.scheduler.queue.quota import amounts_of
from commonage.testing import factories

SLOWLY = settings(max_examples=50, deadline=None)


@SLOWLY
@given(clusters(), st.lists(REQUESTS, min_size=1, max_size=6), st.data())
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
            grid.put([replace(node, state=data.draw(st.sampled_from(NodeState)))])
        else:
            grid.put(nodes[-1:])
        fits.refresh()
        everywhere = np.arange(len(grid.nodes))
        for request_class, shape in enumerate(fits.shapes):
            if shape is not None:
                assert shape is grid.shape(shape.request)
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


def test_large_tables_are_compared_in_steps() -> None:
    grid = Grid([factories.node(f"n{number}", 2, cpus_milli=1000 * number) for number in range(600)])
    fits = FitTable(grid)
    for request_class in range(1000):
        fits.put(request_class, factories.request(1000 * request_class, gpus="1"))
    fits.refresh()
    assert fits.count[:1000].tolist() == [600 - request_class for request_class in range(600)] + [0] * 400
