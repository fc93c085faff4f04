"""`schedule`: time of a scheduling pass over many nodes and a long queue."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.planner.growth import growth
from benchmarks.planner.passes import STEPS, Durations, Row, measure
from benchmarks.planner.synthetic import QUEUED, RUNNING, USERS
from benchmarks.report import as_json, progress

MAX_NODES = 20_000
WIDTH_OF_A_PIPE = 260


def _sizes(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 0 < int(part) <= MAX_NODES for part in parts):
        raise click.BadParameter(f"write numbers of nodes from 1 to {MAX_NODES} like 250,500,1000")
    return [int(part) for part in parts]


@click.command
@click.option("--nodes", "sizes", default="250,500,1000,2000", show_default=True, callback=_sizes, help="Nodes.")
@click.option("--users", type=click.IntRange(1), default=USERS, show_default=True, help="Users, ten in each tenant.")
@click.option("--steps", type=click.IntRange(1), default=STEPS, show_default=True, help="Samples of each figure.")
@click.option("--chart", type=click.Path(dir_okay=False, writable=True), help="Write the growth as an SVG chart here.")
@as_json
def schedule(sizes: list[int], users: int, steps: int, chart: str | None, as_json: bool) -> None:
    """Time of a scheduling pass over many nodes with 8 GPUs each and a long queue.

    \b
    For each node 10 workloads run and 100 wait. Passes are timed as the server makes them: the first over the whole
    queue (at once, and as the server cuts it into short passes), the next with all that it started, and then one after
    each arrival and after each departure. Then queued workloads are explained, from anywhere and from the first 500,
    and new ones are considered (dry run).

    \b
    Example:
      python -m benchmarks schedule --nodes 1000 --json
    """
    rows: list[Row] = []
    for size in sizes:
        progress(f"{size} nodes, {RUNNING * size:,} running, {QUEUED * size:,} waiting")
        rows += measure([size], users, steps)
    if chart is not None:
        Path(chart).write_text(growth(rows), encoding="utf-8")
    if as_json:
        click.echo(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2))
    else:
        _show(rows)


def _show(rows: list[Row]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_OF_A_PIPE)
    table = Table(box=None, header_style="bold")
    titles = (
        "nodes",
        "running",
        "waiting",
        "first pass",
        "cut",
        "next pass",
        "no change",
        "arrival",
        "departure",
        "explain",
        "of the first",
        "dry run",
        "memory",
    )
    for title in titles:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            f"{row.nodes:,}",
            f"{row.running:,}",
            f"{row.queued:,}",
            f"{row.first.median_ms / 1000:.1f} s",
            _cell(row.cut),
            _cell(row.changed),
            _cell(row.whole),
            _cell(row.arrival),
            _cell(row.departure),
            _cell(row.explain),
            _cell(row.front),
            _cell(row.dry_run),
            f"{row.memory_mib:.0f} MiB",
        )
    console.print(table)
    console.print(
        "p50 / p95 of wall-clock time; of CPU time in brackets. The first pass starts thousands of workloads."
    )


def _cell(durations: Durations) -> str:
    return (
        f"{durations.median_ms:.1f} / {durations.p95_ms:.1f} ms ({durations.cpu_ms:.1f} / {durations.cpu_p95_ms:.1f})"
    )
