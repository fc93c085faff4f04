"""The trials of the benchmark `placement`, and their result rows.

One trial is one list, policy and seed, in one process; several processes share the trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from benchmarks.placement.inflation import Outcome, prepare, run
from benchmarks.placement.openb import read_list, read_nodes
from benchmarks.placement.policies import POLICIES
from benchmarks.placement.published import published_130
from commonage.domain.nodes import Node
from commonage.domain.requests import Request
from commonage.replay.policies import maker_of
from commonage.scheduler.policies.registry import DEFAULT


@dataclass(frozen=True, slots=True)
class Row:
    """A policy on a list, over all seeds. Per cent of all GPUs, `allocation_130_std` over seeds (of the population)."""

    list: str
    policy: str
    default: bool
    allocation_100: float
    allocation_130: float
    allocation_130_std: float
    fragmented_130: float
    failed: float
    per_second: float
    published_130: float | None

    def as_json(self) -> dict[str, Any]:
        """Plain values, rounded to significant digits."""
        return {
            "list": self.list,
            "policy": self.policy,
            "default": self.default,
            "allocation_100": round(self.allocation_100, 3),
            "allocation_130": round(self.allocation_130, 3),
            "allocation_130_std": round(self.allocation_130_std, 3),
            "fragmented_130": round(self.fragmented_130, 3),
            "failed": round(self.failed, 1),
            "per_second": round(self.per_second),
            "published_130": self.published_130,
        }


@dataclass(frozen=True, slots=True)
class Task:
    """One trial: a list of the folder, a policy by its name or `module:name`, a seed."""

    folder: Path
    list: str
    policy: str
    seed: int


def measure(tasks: Sequence[Task], jobs: int, done: Callable[[Task], None]) -> list[Row]:
    """Run all trials in `jobs` processes. Returns a row for each list and policy, in the order of the tasks.

    `done` is called after each trial. Raises InvalidInput for an invalid folder.
    """
    outcomes: dict[tuple[str, str], list[Outcome]] = {(task.list, task.policy): [] for task in tasks}
    for task, outcome in _played(tasks, jobs):
        outcomes[task.list, task.policy].append(outcome)
        done(task)
    return [row_of(workloads, policy, found) for (workloads, policy), found in outcomes.items()]


def row_of(workloads: str, policy: str, outcomes: Sequence[Outcome]) -> Row:
    """The row of a policy on a list, from the outcomes of all seeds."""
    return Row(
        list=workloads,
        policy=policy,
        default=policy == DEFAULT,
        allocation_100=fmean(one.allocation_100 for one in outcomes),
        allocation_130=fmean(one.allocation_130 for one in outcomes),
        allocation_130_std=pstdev(one.allocation_130 for one in outcomes),
        fragmented_130=fmean(one.fragmented_130 for one in outcomes),
        failed=fmean(one.failed for one in outcomes),
        per_second=fmean(one.per_second for one in outcomes),
        published_130=published_130(workloads, policy),
    )


def _played(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Outcome]]:
    if jobs == 1:
        yield from ((task, play(task)) for task in tasks)
        return
    # Spawned, not forked: the progress bar runs a thread.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(play, task): task for task in tasks}
        for future in as_completed(running):
            yield running[future], future.result()


def play(task: Task) -> Outcome:
    """One trial."""
    trial = prepare(_nodes(task.folder), _workloads(task.folder, task.list), task.seed)
    return run(trial, maker_of(task.policy, POLICIES), task.seed)


@cache
def _nodes(folder: Path) -> list[Node]:
    return read_nodes(folder)


@cache
def _workloads(folder: Path, name: str) -> list[Request]:
    return read_list(folder, name)
