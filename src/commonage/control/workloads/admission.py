"""Refuses workloads at submission that can never start here, however long they wait. Called by `workloads`."""

from __future__ import annotations

import numpy as np

from commonage.control.state.live_state import LiveState
from commonage.domain.nodes import NodeState
from commonage.domain.reasons import Reason
from commonage.domain.reasons.refusals import TooFewNodes
from commonage.domain.requests import Request
from commonage.domain.tenants import Amounts
from commonage.domain.workloads import Spec
from commonage.scheduler.autoscaling import max_nodes_for
from commonage.scheduler.explain.explain import ever_fits
from commonage.scheduler.queue.quota import amounts_of


def unschedulable_request(live_state: LiveState, request: Request) -> Reason | None:
    """Give the reason why no node could ever run the request; None if a node, or one that can be added, could."""
    if max_nodes_for(live_state.node_pools, request):
        return None
    return ever_fits(live_state.snapshot.grid, request)


def never(live_state: LiveState, spec: Spec) -> Reason | None:
    """Give the reason why no node, node count or quota would ever let the workload start; None if it could start."""
    rented = max_nodes_for(live_state.node_pools, spec.request)
    return (
        unschedulable_request(live_state, spec.request)
        or _too_many_nodes(live_state, spec, rented)
        or _beyond_quota(live_state, spec)
    )


def _too_many_nodes(live_state: LiveState, spec: Spec, rented: int) -> Reason | None:
    """Compare the gang's size with the number of nodes. Each member needs its own; `rented` more nodes may be added."""
    grid = live_state.snapshot.grid
    known = np.flatnonzero([node.state is not NodeState.LOST for node in grid.nodes])
    if not spec.gang or not len(known):
        return None
    enough = int(np.count_nonzero(grid.could_fit(grid.shape(spec.request), known))) + rented
    if enough >= spec.array_size:
        return None
    return TooFewNodes(requested=spec.array_size, nodes=enough, request=str(spec.request))


def _beyond_quota(live_state: LiveState, spec: Spec) -> Reason | None:
    """Workloads in a reservation do not count towards the quota, so owners of a reservation may request more."""
    snapshot = live_state.snapshot
    if any(one.tenant == spec.tenant for one in snapshot.rules.reservations):
        return None
    amounts = amounts_of(snapshot.grid.shape(spec.request))
    together = spec.array_size if spec.gang else 1
    all_of_it = Amounts(
        amounts.cpus_milli * together,
        amounts.memory_mib * together,
        amounts.gpu_milli * together,
        amounts.vram_mib * together,
    )
    return snapshot.quotas.unsatisfiable_reason(spec.tenant, all_of_it)
