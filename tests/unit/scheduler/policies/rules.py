"""Helpers for tests of policies, and the rules that every placement policy keeps: ours, and baselines of benchmarks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.scheduler.clusters import GIB

from commonage.domain.nodes import Node
from commonage.domain.requests import Request, parse_gpus
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Shape
from commonage.scheduler.policies import Policy
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import POLICIES, Maker
from commonage.testing import factories

TYPICAL = WorkloadMix.of([Request(1000, 0, parse_gpus(gpus)) for gpus in ("0.5", "0.5", "1", "2", "0.25")])


def stop(gpus: str | None = None, cpus: int = 1000) -> Request:
    return Request(cpus, GIB, parse_gpus(gpus))


def make(policy: str | Maker, *nodes: Node, mix: WorkloadMix = TYPICAL) -> tuple[Grid, Policy]:
    """A grid of these nodes, and one of the product's policies by its name, or another by what makes it."""
    grid = Grid(nodes)
    maker = POLICIES[policy] if isinstance(policy, str) else policy
    return grid, maker(grid, mix, 7)


def choose(grid: Grid, policy: Policy, shape: Shape) -> tuple[int, list[int]] | None:
    """The node and GPUs, None where there is no place."""
    policy.arrived(shape)
    costs = policy.costs(shape)
    node = int(np.argmin(costs))
    return None if np.isinf(costs[node]) else (node, list(policy.devices(shape, node)))


def put(grid: Grid, policy: Policy, request: Request, *, at: tuple[int, list[int]] | None = None) -> tuple:
    """Place it where the policy chooses, or at the given place. Returns (node, GPUs)."""
    shape = grid.shape(request)
    node, devices = at or choose(grid, policy, shape) or pytest.fail(f"no place for {request}")
    grid.take(grid.allocation(shape, node, devices, f"allocated-{grid.changes}", 0.0))
    return node, devices


def node(name: str, devices: int, cpus: int = 32_000) -> Node:
    return factories.node(name, devices, cpus_milli=cpus, memory_mib=256 * GIB)


def check_placements(maker: Maker, cluster: list[Node], asked: list[Request]) -> None:
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


def check_new_nodes_are_used(maker: Maker) -> None:
    """Add a node with a GPU model that the grid did not have when the policy was made."""
    grid, policy = make(maker, factories.node("a", 1, cpus_milli=1000))
    assert put(grid, policy, stop("1")) == (0, [0])
    assert choose(grid, policy, grid.shape(stop("1"))) is None
    device = factories.device(0, uuid="H100-0", model="H100", memory_mib=80 * GIB)
    grid.put([factories.node("b", [device], cpus_milli=2000)])
    assert put(grid, policy, stop("1")) == (1, [0])
