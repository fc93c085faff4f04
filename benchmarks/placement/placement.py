"""`placement`: GPU allocation by placement policy on a public trace, with published figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.placement.openb import folder_of, lists_in
from benchmarks.placement.policies import POLICIES
from benchmarks.placement.trials import Row, Task, measure
from benchmarks.report import as_json
from commonage.domain.errors import InvalidInput
from commonage.replay.policies import maker_of

F = TypeVar("F", bound=Callable[..., Any])

ALL = "all"
MAX_SEEDS = 1000
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


def _lists(text: str, known: Sequence[str]) -> list[str]:
    if text.strip() == ALL:
        return list(known)
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise click.BadParameter(f"unknown list {name!r}; lists: {', '.join(known)}, or {ALL}", param_hint="--list")
    return names


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
@click.option("--list", "lists", default="default", show_default=True, metavar="NAME,…|all", help="Which lists.")
@seeds_option("42-51")
@click.option(
    "--policy",
    "policies",
    default=ALL,
    show_default=True,
    callback=_policies,
    metavar="NAME,…|all",
    help=f"Which policies: {', '.join(POLICIES)}, or module:name.",
)
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes to share the work.")
@as_json
def placement(traces: Path, lists: str, seeds: list[int], policies: list[str], jobs: int, as_json: bool) -> None:
    """GPU allocation by placement policy, on the public trace "openb".

    A list is shuffled by the seed and filled up to 130% of the GPUs. Workloads arrive one at a time, none departs, and
    requests that do not fit are dropped (the experiment of "Beware of Fragmentation", USENIX ATC 2023).

    \b
    Example:
      python -m benchmarks placement --traces ~/openb --policy fgd,best-fit --seeds 42-44
      python -m benchmarks placement --traces ~/openb --list all --jobs 2 --json
    """
    chosen = _lists(lists, lists_in(traces))
    tasks = [Task(traces, name, policy, seed) for name in chosen for policy in policies for seed in seeds]
    try:
        rows = _measured(tasks, jobs)
    except InvalidInput as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps({"rows": [row.as_json() for row in rows]}, indent=2))
    else:
        _show(rows, len(seeds))


def _measured(tasks: Sequence[Task], jobs: int) -> list[Row]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("trials", total=len(tasks))

        def done(task: Task) -> None:
            progress.update(bar, advance=1, description=f"{task.list}, {task.policy}, seed {task.seed}")

        return measure(tasks, jobs, done)


def _show(rows: Sequence[Row], seeds: int) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_OF_A_PIPE)
    table = Table(box=None, header_style="bold")
    several = len({row.list for row in rows}) > 1
    if several:
        table.add_column("list")
    table.add_column("policy")
    for title in ("at 130%", "published", "at 100%", "deviation", "fragmented", "failed", "per second"):
        table.add_column(title, justify="right")
    for row in rows:
        cells = (
            f"{row.allocation_130:.2f}",
            "" if row.published_130 is None else f"{row.published_130:.2f}",
            f"{row.allocation_100:.2f}",
            f"{row.allocation_130_std:.2f}",
            f"{row.fragmented_130:.2f}",
            f"{row.failed:.0f}",
            f"{row.per_second:,.0f}",
        )
        name = f"{row.policy} (default)" if row.default else row.policy
        table.add_row(*([row.list] if several else []), name, *cells)
    console.print(table)
    console.print(
        f"GPUs in use, in per cent of all, when 130% (100%) of them were requested; mean and deviation over "
        f"{seeds} seed{'s' if seeds > 1 else ''}. Fragmented: idle, but not usable by typical workloads."
    )
