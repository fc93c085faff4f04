"""The lists of workloads that the benchmark `placement` knows: those of the trace, and changed ones.

No policy was tuned for the changed lists. A changed list is the same in every run.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Final

from benchmarks.placement.openb import lists_in, read_list, read_nodes
from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Node
from commonage.domain.requests import GpuRequest, Request

Workloads = list[Request]
Change = Callable[[Workloads, random.Random], Workloads]

ORIGINAL: Final = "default"
BOUND: Final = "gpuspec10"
"""The list with workloads that are bound to GPU models."""
BOUND_PERCENT: Final = (5, 10, 20, 33, 50)
SLOTS: Final = (2, 3, 4, 7, 10)
SMALL: Final = (20, 50, 200)
"""Numbers of nodes of the small clusters."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster, and the workloads from which arrivals are drawn."""

    nodes: Sequence[Node]
    workloads: Sequence[Request]


def published(folder: Path) -> list[str]:
    """The lists of the trace."""
    return lists_in(folder)


def generated(folder: Path) -> list[str]:
    """The generated lists; empty if the trace lacks the lists from which they are made."""
    names = lists_in(folder)
    return list(_makers(folder)) if {ORIGINAL, BOUND} <= set(names) else []


@cache
def scenario(folder: Path, name: str, nodes: int = 0) -> Scenario:
    """A list by its name, on all nodes, or a random sample of `nodes`. Raises InvalidInput for an unknown list."""
    if name in lists_in(folder):
        found = Scenario(_nodes(folder), _list(folder, name))
    elif name in generated(folder):
        found = _makers(folder)[name]()
    else:
        known = ", ".join([*published(folder), *generated(folder)]) or "none"
        raise InvalidInput(f"{folder} has no list {name!r}; lists: {known}", field="list")
    return _smaller(found, nodes) if 0 < nodes < len(found.nodes) else found


def _smaller(found: Scenario, nodes: int) -> Scenario:
    """A sample of the nodes, sorted by name as all nodes are."""
    sample = random.Random(nodes).sample(list(found.nodes), min(nodes, len(found.nodes)))
    return Scenario(sorted(sample, key=lambda node: node.name), found.workloads)


@cache
def _nodes(folder: Path) -> list[Node]:
    return read_nodes(folder)


@cache
def _list(folder: Path, name: str) -> Workloads:
    return read_list(folder, name)


def _makers(folder: Path) -> dict[str, Callable[[], Scenario]]:
    made: dict[str, Callable[[], Scenario]] = {}

    def add(name: str, change: Change, of: str = ORIGINAL, seed: int = 0) -> None:
        made[name] = lambda: Scenario(_nodes(folder), change(_list(folder, of), random.Random(seed)))

    for percent in BOUND_PERCENT:
        add(f"bound-{percent}", partial(_bound, folder, percent), seed=percent)
        if percent >= 20:
            add(f"bound-{percent}-other-shares", partial(_bound_other_shares, folder, percent), seed=percent)
    add("multi-gpu", partial(_more_of, lambda one: bool(one.gpu and one.gpu.whole > 1), 0.5))
    add("shares-only", _shares_only)
    add("whole-only", _whole_only)
    add("no-gpu-heavy", partial(_more_of, lambda one: one.gpu is None, 0.33))
    add("cpu-heavy", partial(_scaled, 1.5, 1))
    add("cpu-light", partial(_scaled, 0.25, 1))
    add("memory-heavy", partial(_scaled, 1, 3))
    for parts in SLOTS:
        add(f"slots-{parts}", partial(_slots, parts))
    for number, of in enumerate(lists_in(folder)):
        for change in (_other_shares, _other_cpus, _other_popularity, _other_all):
            add(f"{change.__name__[1:].replace('_', '-')}-{of}", change, of, number)
    for nodes in SMALL:
        made[f"{nodes}-nodes"] = partial(_on, folder, nodes, _unchanged)
        made[f"{nodes}-nodes-other-shares"] = partial(_on, folder, nodes, _other_shares)
    return made


def _on(folder: Path, nodes: int, change: Change) -> Scenario:
    return _smaller(Scenario(_nodes(folder), change(_list(folder, ORIGINAL), random.Random(nodes))), nodes)


# --- changes ----------------------------------------------------------------------------------------------------------


def _unchanged(mix: Workloads, chance: random.Random) -> Workloads:
    return mix


def _bound(folder: Path, percent: int, mix: Workloads, chance: random.Random) -> Workloads:
    """Bind this part of the workloads with a GPU to models, with models as those of the same size in BOUND have."""
    models: dict[tuple[int, int], list[str]] = defaultdict(list)
    for one in _list(folder, BOUND):
        if one.gpu and one.gpu.model:
            models[one.gpu.whole, one.gpu.fraction_milli].append(one.gpu.model)
    # Sizes without a bound model there: requests of one GPU or less get the models, requests of several GPUs get none.
    any_model = [model for (whole, _), names in models.items() if whole <= 1 for model in names]
    able = [
        index
        for index, one in enumerate(mix)
        if one.gpu and (one.gpu.whole <= 1 or models[one.gpu.whole, one.gpu.fraction_milli])
    ]
    many = sum(one.gpu is not None for one in mix) * percent // 100
    changed = list(mix)
    for index in chance.sample(able, min(many, len(able))):
        gpu = mix[index].gpu
        assert gpu is not None
        model = chance.choice(models[gpu.whole, gpu.fraction_milli] or any_model)
        changed[index] = replace(mix[index], gpu=replace(gpu, model=model))
    return changed


def _bound_other_shares(folder: Path, percent: int, mix: Workloads, chance: random.Random) -> Workloads:
    return _other_shares(_bound(folder, percent, mix, chance), chance)


def _more_of(chosen: Callable[[Request], bool], part: float, mix: Workloads, chance: random.Random) -> Workloads:
    """Add copies of the chosen until they request this part of the GPUs; if they have none, are this part of all."""
    some = [one for one in mix if chosen(one)]

    def size(one: Request) -> int:
        return 0 if one.gpu is None else 1000 * one.gpu.whole or one.gpu.fraction_milli

    def count(one: Request) -> int:
        return 1

    weight = size if any(map(size, some)) else count
    have, others = sum(map(weight, some)), sum(map(weight, mix)) - sum(map(weight, some))
    wanted = others * part / (1 - part)
    added = []
    while have < wanted:
        added.append(chance.choice(some))
        have += weight(added[-1])
    return mix + added


def _shares_only(mix: Workloads, chance: random.Random) -> Workloads:
    return [one for one in mix if one.gpu and one.gpu.fraction_milli]


def _whole_only(mix: Workloads, chance: random.Random) -> Workloads:
    return [one for one in mix if not (one.gpu and one.gpu.fraction_milli)]


def _scaled(cpus: float, memory: float, mix: Workloads, chance: random.Random) -> Workloads:
    return [replace(one, cpus_milli=int(one.cpus_milli * cpus), memory_mib=int(one.memory_mib * memory)) for one in mix]


def _other_shares(mix: Workloads, chance: random.Random) -> Workloads:
    """Replace each size of share by another, 5% to 99% of a GPU."""
    sizes = sorted({one.gpu.fraction_milli for one in mix if one.gpu and one.gpu.fraction_milli})
    other = {size: 10 * chance.randint(5, 99) for size in sizes}
    return [_with_share(one, lambda gpu: replace(gpu, fraction_milli=other[gpu.fraction_milli])) for one in mix]


def _slots(parts: int, mix: Workloads, chance: random.Random) -> Workloads:
    """Round all shares to multiples of an equal part of a GPU."""

    def rounded(gpu: GpuRequest) -> GpuRequest:
        taken = max(1, round(gpu.fraction_milli * parts / 1000))
        if taken >= parts:
            return replace(gpu, whole=1, fraction_milli=0)
        return replace(gpu, fraction_milli=1000 * taken // parts)

    return [_with_share(one, rounded) for one in mix]


def _other_cpus(mix: Workloads, chance: random.Random) -> Workloads:
    """Multiply each number of CPUs by a random factor, mostly between 0.5 and 2."""
    factor: dict[int, float] = {}
    return [
        replace(one, cpus_milli=int(one.cpus_milli * factor.setdefault(one.cpus_milli, chance.lognormvariate(0, 0.5))))
        for one in mix
    ]


def _other_popularity(mix: Workloads, chance: random.Random) -> Workloads:
    """Draw the same requests with random popularity."""
    weight: dict[tuple[int, GpuRequest | None], float] = {}
    weights = [weight.setdefault((one.cpus_milli, one.gpu), chance.expovariate(1)) for one in mix]
    return chance.choices(mix, weights, k=len(mix))


def _other_all(mix: Workloads, chance: random.Random) -> Workloads:
    """Change shares, CPUs and popularity."""
    return _other_popularity(_other_cpus(_other_shares(mix, chance), chance), chance)


def _with_share(one: Request, change: Callable[[GpuRequest], GpuRequest]) -> Request:
    """The request, with its share of a GPU changed if it has one."""
    return replace(one, gpu=change(one.gpu)) if one.gpu and one.gpu.fraction_milli else one
