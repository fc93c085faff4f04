"""`placement`: GPU allocation by placement policy on a public trace and changed lists, with published figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.placement.inflation import LEVELS
from benchmarks.placement.lists import generated, published
from benchmarks.placement.openb import folder_of
from benchmarks.placement.policies import POLICIES
from benchmarks.placement.trials import Gap, Results, Row, SteadyRow, Task, measure
from benchmarks.report import as_json
from commonage.domain.errors import InvalidInput
from commonage.replay.policies import maker_of
from commonage.scheduler.policies.registry import DEFAULT

F = TypeVar("F", bound=Callable[..., Any])

ALL = "all"
BASELINE = "fgd"
COMPARED = f"best-fit,{BASELINE},{DEFAULT}"
QUICK_LISTS = ("default", "bound-33")
QUICK_NODES = 100
QUICK_LOAD = 90
SHOWN_GAPS = 5
MAX_SEEDS = 1000
MAX_LOAD = 200
WIDTH_OF_A_PIPE = 160


def _seeds(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    """`42-51`, `42,45`, `1-3,7` as numbers, each once."""
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.BadParameter(f"{part.strip()!r} is not a seed; write numbers like 42, 42-51 or 1-3,7")
        seeds = range(int(first), int(last or first) + 1)
        if not seeds or len(found) + len(seeds) > MAX_SEEDS:
            raise click.BadParameter(
                f"{part.strip()!r} is empty, or exceeds {MAX_SEEDS} seeds; write for example 42-51"
            )
        found.update(dict.fromkeys(seeds))
    return list(found)


def _lists(text: str, folder: Path) -> list[str]:
    groups = {"published": published(folder), "generated": generated(folder)}
    known = [*groups["published"], *groups["generated"]]
    names: dict[str, None] = {}
    for name in (name.strip() for name in text.split(",")):
        if name not in (*known, *groups, ALL):
            raise click.BadParameter(
                f"unknown list {name!r}; lists: {', '.join(known)}, or {', '.join(groups)} or {ALL}",
                param_hint="--list",
            )
        names.update(dict.fromkeys(known if name == ALL else groups.get(name, [name])))
    return list(names)


def _loads(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    """`90,100` as numbers; none for an empty text."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and 1 <= int(part) <= MAX_LOAD for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of loads; write per cent, 1 to {MAX_LOAD}, like 90,100")
    return list(dict.fromkeys(int(part) for part in parts))


def _policies(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    if text.strip() == ALL:
        return list(POLICIES)
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    try:
        for name in names:
            maker_of(name, POLICIES)
    except InvalidInput as error:
        raise click.BadParameter(error.message) from None
    return names


def _folder(_context: click.Context, _parameter: click.Parameter, path: Path) -> Path:
    try:
        return folder_of(path)
    except InvalidInput as error:
        raise click.BadParameter(str(error)) from None


traces_option = click.option(
    "--traces",
    type=click.Path(path_type=Path),
    required=True,
    callback=_folder,
    is_eager=True,
    metavar="DIR",
    help="Folder of the openb trace: its node list and its lists of workloads.",
)


def seeds_option(default: str) -> Callable[[F], F]:
    """--seeds."""
    return click.option(
        "--seeds", default=default, show_default=True, callback=_seeds, metavar="42-51", help="One trial for each seed."
    )


@click.command
@traces_option
@click.option(
    "--list",
    "lists",
    default="default",
    show_default=True,
    metavar="NAME,…|published|generated|all",
    help="Which lists: those of the trace, or those made from them.",
)
@seeds_option("42-51")
@click.option(
    "--policy",
    "policies",
    default=COMPARED,
    show_default=True,
    callback=_policies,
    metavar="NAME,…|all",
    help=f"Which policies: {', '.join(POLICIES)}, or module:name.",
)
@click.option(
    "--load",
    "loads",
    default="",
    callback=_loads,
    metavar="90,100",
    help="Also run each list with departures, at these loads in per cent of all GPUs.",
)
@click.option("--quick", is_flag=True, help=f"A sample for CI: {QUICK_NODES} nodes, one seed, a load of {QUICK_LOAD}%.")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes to share the work.")
@as_json
def placement(  # noqa: PLR0913, PLR0917  one for each option
    traces: Path,
    lists: str,
    seeds: list[int],
    policies: list[str],
    loads: list[int],
    quick: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """GPU allocation by placement policy, on the public trace "openb" and on lists made from it.

    A list is shuffled by the seed and filled up to 130% of the GPUs. Workloads arrive one at a time, none departs, and
    requests that do not fit are dropped (the experiment of "Beware of Fragmentation", USENIX ATC 2023). With --load,
    workloads also depart, and wait for a place.

    \b
    Example:
      python -m benchmarks placement --traces ~/openb --policy fgd,best-fit --seeds 42-44
      python -m benchmarks placement --traces ~/openb --list published --policy all --jobs 2 --json
      python -m benchmarks placement --traces ~/openb --list bound-33,cpu-heavy --load 90,100
    """
    chosen = _lists(lists, traces)
    nodes = 0
    if quick:
        usable = {*published(traces), *generated(traces)}
        chosen = [name for name in QUICK_LISTS if name in usable]
        seeds, loads, nodes = seeds[:1], [QUICK_LOAD], QUICK_NODES
    tasks = [
        Task(traces, name, policy, seed, nodes, load)
        for load in (0, *loads)
        for name in chosen
        for policy in policies
        for seed in seeds
    ]
    try:
        results = _measured(tasks, jobs)
    except InvalidInput as error:
        raise click.UsageError(str(error)) from None
    rows, steady, gaps = results.rows(), results.steady_rows(), results.gaps(BASELINE)
    if as_json:
        found = {
            "rows": [row.as_json() for row in rows],
            "departures": [row.as_json() for row in steady],
            "gaps": [gap.as_json() for gap in gaps],
        }
        click.echo(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_OF_A_PIPE)
    _show(console, rows, len(seeds))
    _show_gaps(console, gaps)
    if steady:
        _show_steady(console, steady)


def _measured(tasks: Sequence[Task], jobs: int) -> Results:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("trials", total=len(tasks))

        def done(task: Task) -> None:
            progress.update(bar, advance=1, description=f"{task.list}, {task.policy}, seed {task.seed}")

        return measure(tasks, jobs, done)


def _show(console: Console, rows: Sequence[Row], seeds: int) -> None:
    table = Table(box=None, header_style="bold")
    several = len({row.list for row in rows}) > 1
    if several:
        table.add_column("list")
    table.add_column("policy")
    levels = [f"{level}%" for level in reversed(LEVELS)]
    for title in (f"at {levels[0]}", "published", *levels[1:], "deviation", "fragmented", "failed", "per second"):
        table.add_column(title, justify="right")
    for row in rows:
        first, *others = (f"{row.allocation[level]:.2f}" for level in reversed(LEVELS))
        cells = (
            first,
            "" if row.published_130 is None else f"{row.published_130:.2f}",
            *others,
            f"{row.allocation_130_std:.2f}",
            f"{row.fragmented_130:.2f}",
            f"{row.failed:.0f}",
            f"{row.per_second:,.0f}",
        )
        name = f"{row.policy} (default)" if row.default else row.policy
        table.add_row(*([row.list] if several else []), name, *cells)
    console.print(table)
    console.print(
        f"GPUs in use, in per cent of all, when this part of them was requested; mean and deviation over "
        f"{seeds} seed{'s' if seeds > 1 else ''}. Fragmented: idle, but not usable by typical workloads."
    )


def _show_gaps(console: Console, gaps: Sequence[Gap]) -> None:
    """The lowest gaps of each policy."""
    for policy in dict.fromkeys(gap.policy for gap in gaps):
        own = [gap for gap in gaps if gap.policy == policy]
        lowest = [f"{gap.points:+.2f} ± {gap.error:.2f} {gap.list} at {gap.level}%" for gap in own[:SHOWN_GAPS]]
        console.print(f"{policy} minus {BASELINE}, mean {fmean(gap.points for gap in own):+.2f}: {'; '.join(lowest)}")


def _show_steady(console: Console, rows: Sequence[SteadyRow]) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("list", "load", "policy"):
        table.add_column(title)
    for title in ("in use", "wasted", "GPU-hours wasted", "mean wait, min"):
        table.add_column(title, justify="right")
    for row in rows:
        one = row.figures
        cells = (f"{one.allocation:.2f}", f"{one.wasted:.2f}", f"{one.wasted_gpu_hours:.0f}", f"{one.wait_min:.2f}")
        table.add_row(row.list, f"{row.load}%", row.policy, *cells)
    console.print(table)
    console.print(
        "With departures, on a sample of the nodes: GPUs in use in per cent; GPU-hours that were idle while waiting "
        "workloads requested them, in per cent of all and in total; workloads run for an hour on average."
    )
