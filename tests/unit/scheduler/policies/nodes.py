"""Small clusters, and how a policy is asked about them, for the tests of the policies."""

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
    """Place it where the policy wants it, or there; (node, GPUs)."""
    shape = grid.shape(request)
    node, devices = at or choose(grid, policy, shape) or pytest.fail(f"no place for {request}")
    grid.take(grid.allocation(shape, node, devices, f"held-{len(grid.changed)}", 0.0))
    return node, devices


def node(name: str, devices: int, cpus: int = 32_000) -> Node:
    return factories.node(name, devices, cpus_milli=cpus, memory_mib=256 * GIB)
