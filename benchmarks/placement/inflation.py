"""The inflation experiment that compares placement policies: workloads arrive at a cluster, and none departs.

As in "Beware of Fragmentation" (USENIX ATC 2023): a list of workloads is shuffled and filled up with draws from it,
until 130% of the GPUs are requested. Workloads arrive one at a time; those that do not fit are dropped. Called by the
benchmark `placement`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter

import numpy as np

from benchmarks.placement.fragmentation import Fragmentation
from benchmarks.placement.gorandom import GoRandom
from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Node
from commonage.domain.requests import Request
from commonage.scheduler.model.grid import Grid
from commonage.scheduler.model.shapes import Bools
from commonage.scheduler.policies import Policy
from commonage.scheduler.policies.mix import WorkloadMix
from commonage.scheduler.policies.registry import Maker

LOAD_PERCENT = 130
"""The final demand, in per cent of all GPUs."""
LEVELS = (60, 70, 80, 90, 100, 110, 120, 130)
"""The demand, in rounded per cent of all GPUs, at which allocation is measured."""
DRAWN_BETWEEN = 10
"""Random numbers that the published simulator draws between the workloads and the order of the nodes."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The workloads in order of arrival, and the nodes in the order that breaks ties."""

    nodes: Sequence[Node]
    arrivals: Sequence[Request]
    mix: WorkloadMix


@dataclass(frozen=True, slots=True)
class Outcome:
    """Allocation at each of LEVELS, and fragmentation, in per cent of all GPUs, mean over the arrivals at that demand;
    number of dropped requests; decisions per second of policy and grid, including dropped requests.
    """

    allocation: Mapping[int, float]
    fragmented_130: float
    failed: int
    per_second: float


def gpu_milli(request: Request) -> int:
    """Requested thousandths of GPUs. VRAM requests count as 0: the traces have none."""
    gpu = request.gpu
    return 0 if gpu is None else gpu.whole * 1000 or gpu.fraction_milli


def prepare(nodes: Sequence[Node], workloads: Sequence[Request], seed: int) -> Trial:
    """The trial of one seed: exactly that of the published experiment.

    Raises InvalidInput if no workload requests a GPU, or no node has one.
    """
    chance = GoRandom(seed)
    chance.int63()  # the simulator draws one number for its log
    capacity = 1000 * sum(len(node.report.devices) for node in nodes)
    if not capacity or not any(gpu_milli(request) for request in workloads):
        raise InvalidInput("nothing to measure: no node has a GPU, or no workload requests one", field="list")
    arrivals = list(workloads)
    chance.shuffle(arrivals)
    _fill(arrivals, workloads, capacity * LOAD_PERCENT // 100, chance)
    for _ in range(DRAWN_BETWEEN):
        chance.int63()
    rank = chance.permutation(len(nodes))
    ordered = [nodes[index] for index in np.argsort(rank)]
    return Trial(ordered, arrivals, WorkloadMix.of(workloads))


def _fill(arrivals: list[Request], workloads: Sequence[Request], enough: int, chance: GoRandom) -> None:
    """Drop or add random workloads until they request `enough`."""
    asked = sum(gpu_milli(request) for request in arrivals)
    if asked == enough:
        return
    while asked > enough:
        asked -= gpu_milli(arrivals.pop(chance.below(len(arrivals))))
        if asked <= enough:
            return
    while True:
        drawn = workloads[chance.below(len(workloads))]
        # As published: of several GPUs only one must fit.
        if asked + min(gpu_milli(drawn), 1000) > enough:
            return
        asked += gpu_milli(drawn)
        arrivals.append(drawn)


def run(trial: Trial, make: Maker, seed: int) -> Outcome:
    """Run the trial. `seed` is for random decisions of the policy."""
    grid = Grid(trial.nodes)
    policy = make(grid, trial.mix, seed)
    measure = Fragmentation(grid, trial.mix)
    capacity = 1000 * sum(len(node.report.devices) for node in trial.nodes)
    counts = {level: _counting(trial.arrivals, capacity, level) for level in LEVELS}
    allocation: dict[int, list[float]] = {level: [] for level in LEVELS}
    fragmented: list[float] = []
    used = failed = 0
    seconds = 0.0
    for number, request in enumerate(trial.arrivals):
        began = perf_counter()
        placed = _place(grid, policy, request, str(number))
        seconds += perf_counter() - began
        used += gpu_milli(request) if placed else 0
        failed += not placed
        for level in LEVELS:
            if counts[level][number]:
                allocation[level].append(used / capacity * 100)
        if counts[LOAD_PERCENT][number]:
            fragmented.append(float(measure.by_node().sum()) / capacity * 100)
    return Outcome(
        allocation={level: fmean(allocation[level]) for level in LEVELS},
        fragmented_130=fmean(fragmented),
        failed=failed,
        per_second=len(trial.arrivals) / seconds,
    )


def _counting(arrivals: Sequence[Request], capacity: int, level: int) -> Bools:
    """[arrivals]: the arrivals at which `level` per cent of the GPUs were requested, rounded.

    On small clusters one arrival may jump over a level: then the nearest arrivals count.
    """
    percent = np.rint(np.cumsum([gpu_milli(request) for request in arrivals]) / capacity * 100)
    away = np.abs(percent - level)
    nearest: Bools = percent == percent[away.argmin()]
    return nearest


def _place(grid: Grid, policy: Policy, request: Request, name: str) -> bool:
    """Place the request; returns whether it fitted."""
    shape = grid.shape(request)
    policy.arrived(shape)
    costs = policy.costs(shape)
    node = int(costs.argmin())
    if costs[node] == np.inf:
        return False
    grid.take(grid.allocation(shape, node, policy.devices(shape, node), name, 0.0))
    return True
