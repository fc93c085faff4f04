"""The trials of the benchmark `placement`, and their result rows.

One trial is one list, policy and seed of one experiment, in one process; several processes share the trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

from benchmarks.placement.departures import NODES, Steady, run_steady
from benchmarks.placement.inflation import LEVELS, Outcome, prepare, run
from benchmarks.placement.lists import scenario
from benchmarks.placement.policies import POLICIES
from benchmarks.placement.published import published_130
from commonage.replay.policies import maker_of
from commonage.scheduler.policies.registry import DEFAULT


@dataclass(frozen=True, slots=True)
class Task:
    """One trial: a list, a policy by its name or `module:name`, a seed.

    `nodes`: the size of a random sample of the nodes, 0 for all. `load`: the load of the departure experiment in per
    cent, 0 for the inflation experiment.
    """

    folder: Path
    list: str
    policy: str
    seed: int
    nodes: int = 0
    load: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A policy on a list, over all seeds. Per cent of all GPUs, `allocation_130_std` over seeds (of the population)."""

    list: str
    policy: str
    default: bool
    allocation: Mapping[int, float]
    allocation_130_std: float
    fragmented_130: float
    failed: float
    per_second: float
    published_130: float | None

    def as_json(self) -> dict[str, Any]:
        """Rounded to the precision of the experiments."""
        return {
            "list": self.list,
            "policy": self.policy,
            "default": self.default,
            "allocation": {str(level): round(value, 3) for level, value in self.allocation.items()},
            "allocation_130_std": round(self.allocation_130_std, 3),
            "fragmented_130": round(self.fragmented_130, 3),
            "failed": round(self.failed, 1),
            "per_second": round(self.per_second),
            "published_130": self.published_130,
        }


@dataclass(frozen=True, slots=True)
class SteadyRow:
    """A policy on a list with departures, over all seeds."""

    list: str
    load: int
    policy: str
    figures: Steady

    def as_json(self) -> dict[str, Any]:
        return {
            "list": self.list,
            "load": self.load,
            "policy": self.policy,
            "allocation": round(self.figures.allocation, 3),
            "wasted": round(self.figures.wasted, 3),
            "wasted_gpu_hours": round(self.figures.wasted_gpu_hours, 1),
            "wait_min": round(self.figures.wait_min, 3),
        }


@dataclass(frozen=True, slots=True)
class Gap:
    """The allocation of a policy minus that of the baseline, at a level of a list: mean over the same seeds, and the
    standard error of the mean (0 for one seed).
    """

    list: str
    policy: str
    level: int
    points: float
    error: float

    def as_json(self) -> dict[str, Any]:
        return {
            "list": self.list,
            "policy": self.policy,
            "level": self.level,
            "points": round(self.points, 3),
            "error": round(self.error, 3),
        }


@dataclass(frozen=True, slots=True)
class Results:
    """The outcomes of all trials, as rows in the order of the tasks."""

    outcomes: Mapping[Task, Outcome | Steady]

    def rows(self) -> list[Row]:
        found: dict[tuple[str, str], list[Outcome]] = {}
        for task, outcome in self.outcomes.items():
            if isinstance(outcome, Outcome):
                found.setdefault((task.list, task.policy), []).append(outcome)
        return [row_of(workloads, policy, outcomes) for (workloads, policy), outcomes in found.items()]

    def steady_rows(self) -> list[SteadyRow]:
        found: dict[tuple[str, int, str], list[Steady]] = {}
        for task, outcome in self.outcomes.items():
            if isinstance(outcome, Steady):
                found.setdefault((task.list, task.load, task.policy), []).append(outcome)
        return [SteadyRow(*key, Steady.mean(outcomes)) for key, outcomes in found.items()]

    def gaps(self, baseline: str) -> list[Gap]:
        """The gap of every other policy at every level, the lowest first; none if the baseline did not run."""
        by_key = {(task.list, task.policy, task.seed): one for task, one in self.outcomes.items() if not task.load}
        points: dict[tuple[str, str, int], list[float]] = {}
        for (workloads, policy, seed), outcome in by_key.items():
            base = by_key.get((workloads, baseline, seed))
            if policy == baseline or not isinstance(outcome, Outcome) or not isinstance(base, Outcome):
                continue
            for level in LEVELS:
                gap = outcome.allocation[level] - base.allocation[level]
                points.setdefault((workloads, policy, level), []).append(gap)
        gaps = [
            Gap(*key, fmean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0)
            for key, values in points.items()
        ]
        return sorted(gaps, key=lambda gap: gap.points)


def measure(tasks: Sequence[Task], jobs: int, done: Callable[[Task], None]) -> Results:
    """Run all trials in `jobs` processes. `done` is called after each. Raises InvalidInput for an invalid folder."""
    outcomes: dict[Task, Outcome | Steady] = {}
    for task, outcome in _played(tasks, jobs):
        outcomes[task] = outcome
        done(task)
    return Results({task: outcomes[task] for task in tasks})


def row_of(workloads: str, policy: str, outcomes: Sequence[Outcome]) -> Row:
    """The row of a policy on a list, from the outcomes of all seeds."""
    return Row(
        list=workloads,
        policy=policy,
        default=policy == DEFAULT,
        allocation={level: fmean(one.allocation[level] for one in outcomes) for level in LEVELS},
        allocation_130_std=pstdev(one.allocation[130] for one in outcomes),
        fragmented_130=fmean(one.fragmented_130 for one in outcomes),
        failed=fmean(one.failed for one in outcomes),
        per_second=fmean(one.per_second for one in outcomes),
        published_130=published_130(workloads, policy),
    )


def _played(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Outcome | Steady]]:
    if jobs == 1:
        yield from ((task, play(task)) for task in tasks)
        return
    # Spawned, not forked: the progress bar runs a thread.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(play, task): task for task in tasks}
        for future in as_completed(running):
            yield running[future], future.result()


def play(task: Task) -> Outcome | Steady:
    """One trial."""
    make = maker_of(task.policy, POLICIES)
    if task.load:
        sample = min(task.nodes or NODES, NODES)
        return run_steady(scenario(task.folder, task.list, sample), make, task.seed, task.load)
    found = scenario(task.folder, task.list, task.nodes)
    return run(prepare(found.nodes, found.workloads, task.seed), make, task.seed)
