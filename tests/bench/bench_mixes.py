"""The default placement policy beside `fgd` on mixes that nobody tuned for: lists of a trace, changed at random.

    python tests/bench/bench_mixes.py --traces DIR [--seeds 1-2] [--only share] [--policy expected-waste]

Prints for each mix the GPUs in use at 130% (per cent) with both, and what lies between.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from commonage.domain.fleet import Node
from commonage.domain.requests import GpuRequest, Request
from commonage.placement.policies.registry import DEFAULT, POLICIES
from commonage.replay.inflation import prepare, run
from commonage.replay.openb import folder_of, lists_in, read_list, read_nodes

Mix = list[Request]


def shares(mix: Mix, chance: random.Random) -> Mix:
    """Each size of share becomes another, 5% to 99% of a card."""
    sizes = sorted({one.gpu.fraction_milli for one in mix if one.gpu and one.gpu.fraction_milli})
    other = {size: 10 * chance.randint(5, 99) for size in sizes}
    return [with_gpu(one, lambda gpu: replace(gpu, fraction_milli=other[gpu.fraction_milli])) for one in mix]


def slots(mix: Mix, parts: int) -> Mix:
    """All shares are so many equal parts of a card."""

    def rounded(gpu: GpuRequest) -> GpuRequest:
        taken = max(1, round(gpu.fraction_milli * parts / 1000))
        if taken >= parts:
            return replace(gpu, whole=1, fraction_milli=0)
        return replace(gpu, fraction_milli=1000 * taken // parts)

    return [with_gpu(one, rounded) for one in mix]


def cpus(mix: Mix, chance: random.Random) -> Mix:
    """Each number of cpus is multiplied by another factor, mostly between a half and two."""
    factor: dict[int, float] = {}
    return [
        replace(one, cpus_milli=int(one.cpus_milli * factor.setdefault(one.cpus_milli, chance.lognormvariate(0, 0.5))))
        for one in mix
    ]


def popularity(mix: Mix, chance: random.Random) -> Mix:
    """The same requests, each as popular as chance will have it."""
    weight: dict[tuple[int, GpuRequest | None], float] = {}
    weights = [weight.setdefault((one.cpus_milli, one.gpu), chance.expovariate(1)) for one in mix]
    return chance.choices(mix, weights, k=len(mix))


def all_three(mix: Mix, chance: random.Random) -> Mix:
    """Other shares, other cpus, other popularity."""
    return popularity(cpus(shares(mix, chance), chance), chance)


def with_gpu(one: Request, change: Callable[[GpuRequest], GpuRequest]) -> Request:
    """The request, its share of a card changed if it asks for one."""
    return replace(one, gpu=change(one.gpu)) if one.gpu and one.gpu.fraction_milli else one


def mixes(folder: Path, nodes: Sequence[Node]) -> Iterator[tuple[str, Sequence[Node], Mix]]:
    """Each mix by name, with the machines that it is for."""
    lists = {name: read_list(folder, name) for name in lists_in(folder)}
    default = lists["default"]
    yield from ((name, nodes, mix) for name, mix in lists.items())
    for change in (shares, cpus, popularity, all_three):
        for number, (name, mix) in enumerate(lists.items()):
            yield f"{change.__name__} of {name}", nodes, change(mix, random.Random(number))
    yield from ((f"{parts} slots a card", nodes, slots(default, parts)) for parts in (2, 3, 4, 7, 10))
    yield "three times as many without GPU", nodes, default + [one for one in default if one.gpu is None] * 2
    yield "shares alone", nodes, [one for one in default if one.gpu and one.gpu.fraction_milli]
    yield "whole cards alone", nodes, [one for one in default if not (one.gpu and one.gpu.fraction_milli)]
    yield "a quarter of the cpus", nodes, [replace(one, cpus_milli=one.cpus_milli // 4) for one in default]
    yield "half as many cpus again", nodes, [replace(one, cpus_milli=one.cpus_milli * 3 // 2) for one in default]
    yield "three times the memory", nodes, [replace(one, memory_mib=one.memory_mib * 3) for one in default]
    for many in (20, 50, 200):
        some = random.Random(many).sample(list(nodes), many)
        yield f"{many} of the machines", some, default
        yield f"{many} of the machines, other shares", some, shares(default, random.Random(many))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="the folder of the openb trace")
    parser.add_argument("--seeds", default="1-2", help="from-to; small fleets get four times as many")
    parser.add_argument("--only", default="", help="mixes with this in their name")
    parser.add_argument("--policy", default=DEFAULT, choices=POLICIES)
    asked = parser.parse_args()
    first, last = (int(seed) for seed in asked.seeds.split("-"))
    folder = folder_of(asked.traces)
    gains: list[tuple[float, str]] = []
    for name, nodes, mix in mixes(folder, read_nodes(folder)):
        if asked.only not in name:
            continue
        seeds = range(first, last + 1 if len(nodes) > 200 else first + 4 * (last + 1 - first))
        trials = [(prepare(nodes, mix, seed), seed) for seed in seeds]
        fgd, ours = (
            fmean(run(trial, POLICIES[policy], seed).allocation_130 for trial, seed in trials)
            for policy in ("fgd", asked.policy)
        )
        gains.append((ours - fgd, name))
        print(f"{name:36}  fgd {fgd:6.2f}   {asked.policy} {ours:6.2f}   {ours - fgd:+5.2f}", flush=True)
    lowest = ", ".join(f"{name} {gain:+.2f}" for gain, name in sorted(gains)[:5])
    print(f"mean {fmean(gain for gain, _ in gains):+.2f}; lowest: {lowest}")


if __name__ == "__main__":
    main()
