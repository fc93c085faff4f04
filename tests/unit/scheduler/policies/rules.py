"""What every placement policy must keep to: of the product's here, of the baselines in tests/benchmarks."""

from __future__ import annotations

import numpy as np
from tests.unit.scheduler.clusters import GIB
from tests.unit.scheduler.policies.nodes import choose, make, put, stop

from commonage.domain.nodes import Node
from commonage.domain.requests import Request
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import Maker
from commonage.testing import factories


def places_what_fits(maker: Maker, cluster: list[Node], asked: list[Request]) -> None:
    grid = Grid(cluster)
    policy = maker(grid, WorkloadMix.of(asked), 1)
    for number, request in enumerate(asked):
        shape = grid.shape(request)
        policy.arrived(shape)
        costs = policy.costs(shape).copy()
        assert (np.isfinite(costs) == grid.fits(shape, np.arange(len(cluster)))).all()
        assert (policy.costs(shape) == costs).all()
        if np.isfinite(costs).any():
            best = int(np.argmin(costs))
            devices = list(policy.devices(shape, best))
            assert len(set(devices)) == shape.devices
            assert all(grid.devices_fit(shape, np.array([best]))[0, devices])
            grid.take(grid.allocation(shape, best, devices, str(number), 0.0))
    assert (grid.free_milli >= 0).all() and (grid.free_mib >= 0).all() and (grid.cpus >= 0).all()


def sees_what_is_new(maker: Maker) -> None:
    """Nodes that come, and GPUs of a model that was not there when the policy was made."""
    grid, policy = make(maker, factories.node("a", 1, cpus_milli=1000))
    assert put(grid, policy, stop("1")) == (0, [0])
    assert choose(grid, policy, grid.shape(stop("1"))) is None
    device = factories.device(0, uuid="H100-0", model="H100", memory_mib=80 * GIB)
    grid.put([factories.node("b", [device], cpus_milli=2000)])
    assert put(grid, policy, stop("1")) == (1, [0])
