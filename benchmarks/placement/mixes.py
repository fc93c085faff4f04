"""`mixes`: the default policy and `fgd` on randomly changed lists of a trace, for which neither was tuned."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import click

from benchmarks.placement.inflation import prepare, run
from benchmarks.placement.openb import lists_in, read_list, read_nodes
from benchmarks.placement.placement import seeds_option, traces_option
from benchmarks.placement.policies import POLICIES
from benchmarks.report import BenchmarkError, Figure, as_json, progress, show
from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Node
from commonage.domain.requests import GpuRequest, Request
from commonage.replay.policies import maker_of
from commonage.scheduler.policies.registry import DEFAULT, Maker

BASELINE = "fgd"
SMALL_CLUSTER = 200
"""Up to this number of nodes, a mix gets four times as many seeds."""

Workloads = list[Request]


def _policy(_context: click.Context, _parameter: click.Parameter, name: str) -> tuple[str, Maker]:
    try:
        return name, maker_of(name, POLICIES)
    except InvalidInput as error:
        raise click.BadParameter(error.message) from None


@click.command
@traces_option
@seeds_option("1-2")
@click.option("--only", default="", metavar="TEXT", help="Only mixes with this text in their name.")
@click.option(
    "--policy",
    default=DEFAULT,
    show_default=True,
    callback=_policy,
    metavar="NAME",
    help=f"The policy to compare with {BASELINE}; also module:name.",
)
@as_json
def mixes(traces: Path, seeds: list[int], only: str, policy: tuple[str, Maker], as_json: bool) -> None:
    """GPU allocation of a policy at 130%, with fgd as the baseline, on changed lists of the trace.

    \b
    Example:
      python -m benchmarks mixes --traces ~/openb --only shares
    """
    name_of_policy, maker = policy
    figures: list[Figure] = []
    gains: list[tuple[float, str]] = []
    try:
        for name, nodes, mix in _mixes(traces, read_nodes(traces)):
            if only not in name:
                continue
            progress(name)
            tried = seeds if len(nodes) > SMALL_CLUSTER else range(seeds[0], seeds[0] + 4 * len(seeds))
            trials = [(prepare(nodes, mix, seed), seed) for seed in tried]
            baseline, ours = (
                fmean(run(trial, make, seed).allocation_130 for trial, seed in trials)
                for make in (POLICIES[BASELINE], maker)
            )
            gains.append((ours - baseline, name))
            figures.append(Figure(name, ours, "%", f"{ours - baseline:+.2f} points; {len(trials)} seeds", baseline))
    except InvalidInput as error:
        raise BenchmarkError(error.message) from None
    if not gains:
        raise click.UsageError(f"No mix has {only!r} in its name. Omit --only to run all.")
    lowest = ", ".join(f"{name} {gain:+.2f}" for gain, name in sorted(gains)[:5])
    figures.append(Figure("mean gain", fmean(gain for gain, _ in gains), "points", f"the lowest: {lowest}"))
    click.echo(show(f"GPU allocation at 130%, {name_of_policy} and {BASELINE}", figures, as_json=as_json))


def _shares(mix: Workloads, chance: random.Random) -> Workloads:
    """Replace each size of share by another, 5% to 99% of a GPU."""
    sizes = sorted({one.gpu.fraction_milli for one in mix if one.gpu and one.gpu.fraction_milli})
    other = {size: 10 * chance.randint(5, 99) for size in sizes}
    return [_with_gpu(one, lambda gpu: replace(gpu, fraction_milli=other[gpu.fraction_milli])) for one in mix]


def _slots(mix: Workloads, parts: int) -> Workloads:
    """Round all shares to multiples of an equal part of a GPU."""

    def rounded(gpu: GpuRequest) -> GpuRequest:
        taken = max(1, round(gpu.fraction_milli * parts / 1000))
        if taken >= parts:
            return replace(gpu, whole=1, fraction_milli=0)
        return replace(gpu, fraction_milli=1000 * taken // parts)

    return [_with_gpu(one, rounded) for one in mix]


def _cpus(mix: Workloads, chance: random.Random) -> Workloads:
    """Multiply each number of CPUs by a random factor, mostly between 0.5 and 2."""
    factor: dict[int, float] = {}
    return [
        replace(one, cpus_milli=int(one.cpus_milli * factor.setdefault(one.cpus_milli, chance.lognormvariate(0, 0.5))))
        for one in mix
    ]


def _popularity(mix: Workloads, chance: random.Random) -> Workloads:
    """Draw the same requests with random popularity."""
    weight: dict[tuple[int, GpuRequest | None], float] = {}
    weights = [weight.setdefault((one.cpus_milli, one.gpu), chance.expovariate(1)) for one in mix]
    return chance.choices(mix, weights, k=len(mix))


def _all_three(mix: Workloads, chance: random.Random) -> Workloads:
    """Change shares, CPUs and popularity."""
    return _popularity(_cpus(_shares(mix, chance), chance), chance)


def _with_gpu(one: Request, change: Callable[[GpuRequest], GpuRequest]) -> Request:
    """The request, with its share of a GPU changed if it has one."""
    return replace(one, gpu=change(one.gpu)) if one.gpu and one.gpu.fraction_milli else one


def _mixes(folder: Path, nodes: Sequence[Node]) -> Iterator[tuple[str, Sequence[Node], Workloads]]:
    """(name, nodes, requests) of each mix."""
    lists = {name: read_list(folder, name) for name in lists_in(folder)}
    default = lists["default"]
    yield from ((name, nodes, mix) for name, mix in lists.items())
    for change in (_shares, _cpus, _popularity, _all_three):
        for number, (name, mix) in enumerate(lists.items()):
            yield f"{change.__name__[1:]} of {name}", nodes, change(mix, random.Random(number))
    yield from ((f"{parts} slots a GPU", nodes, _slots(default, parts)) for parts in (2, 3, 4, 7, 10))
    yield "three times as many without GPU", nodes, default + [one for one in default if one.gpu is None] * 2
    yield "shares alone", nodes, [one for one in default if one.gpu and one.gpu.fraction_milli]
    yield "whole GPUs alone", nodes, [one for one in default if not (one.gpu and one.gpu.fraction_milli)]
    yield "a quarter of the cpus", nodes, [replace(one, cpus_milli=one.cpus_milli // 4) for one in default]
    yield "half as many cpus again", nodes, [replace(one, cpus_milli=one.cpus_milli * 3 // 2) for one in default]
    yield "three times the memory", nodes, [replace(one, memory_mib=one.memory_mib * 3) for one in default]
    for many in (20, 50, 200):
        some = random.Random(many).sample(list(nodes), many)
        yield f"{many} of the nodes", some, default
        yield f"{many} of the nodes, other shares", some, _shares(default, random.Random(many))
