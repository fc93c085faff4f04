"""`schedule`: time of a scheduling pass over many nodes and a long queue."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from benchmarks.planner.passes import Durations, Row, measure
from benchmarks.planner.synthetic import QUEUED, RUNNING
from benchmarks.report import as_json, progress

MAX_NODES = 20_000
WIDTH_OF_A_PIPE = 160


def _sizes(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 0 < int(part) <= MAX_NODES for part in parts):
        raise click.BadParameter(f"write numbers of nodes from 1 to {MAX_NODES} like 250,500,1000")
    return [int(part) for part in parts]


@click.command
@click.option("--nodes", "sizes", default="250,500,1000,2000", show_default=True, callback=_sizes, help="Nodes.")
@as_json
def schedule(sizes: list[int], as_json: bool) -> None:
    """Time of a scheduling pass over many nodes with 8 GPUs each and a long queue.

    \b
    For each node 10 workloads run and 100 wait, of 200 users. Passes are timed as the server makes them: the first
    over the whole queue, the next with all that it started, and then one after each arrival and after each departure.

    \b
    Example:
      python -m benchmarks schedule --nodes 1000 --json
    """
    rows: list[Row] = []
    for size in sizes:
        progress(f"{size} nodes, {RUNNING * size:,} running, {QUEUED * size:,} waiting")
        rows += measure([size])
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
        "next pass",
        "no change",
        "arrival",
        "departure",
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
            _cell(row.changed),
            _cell(row.whole),
            _cell(row.arrival),
            _cell(row.departure),
            f"{row.memory_mib:.0f} MiB",
        )
    console.print(table)
    console.print(
        "Wall-clock medians; CPU time of the process in brackets. The first pass starts some thousand workloads."
    )


def _cell(durations: Durations) -> str:
    return f"{durations.median_ms:.1f} ms ({durations.cpu_ms:.1f})"
