"""The verb `commonage bench schedule`: options in, table or JSON out. It measures by `replay.schedule_bench`.

Found by its name, in the table of the benchmarks (commonage/cli/bench/commands.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from commonage.replay.crowd import QUEUED, RUNNING
from commonage.replay.schedule_bench import Row, Took, measure
from commonage.server.commands.common import as_json

MOST_NODES = 20_000
WIDTH_OF_A_PIPE = 160


def _sizes(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 0 < int(part) <= MOST_NODES for part in parts):
        raise click.BadParameter(f"write numbers of machines from 1 to {MOST_NODES} like 250,500,1000")
    return [int(part) for part in parts]


@click.command
@click.option("--nodes", "sizes", default="250,500,1000,2000", show_default=True, callback=_sizes, help="Machines.")
@as_json
def schedule(sizes: list[int], as_json: bool) -> None:
    """How long a pass of the planner takes over many machines with 8 cards each and a long queue.

    \b
    For each machine 10 workloads run and 100 wait, of 200 users. Passes are timed as the server makes them: the first
    over the whole queue, the next with all that it started, and then one after each arrival and after each departure.

    \b
    Example:
      commonage bench schedule --nodes 1000 --json
    """
    rows: list[Row] = []
    for size in sizes:
        click.echo(f"  {size} machines, {RUNNING * size:,} running, {QUEUED * size:,} waiting …", err=True)
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
        "machines",
        "running",
        "waiting",
        "first pass",
        "the next",
        "nothing new",
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
            _took(row.changed),
            _took(row.whole),
            _took(row.arrival),
            _took(row.departure),
            f"{row.memory_mib:.0f} MiB",
        )
    console.print(table)
    console.print(
        "Medians on the clock, in brackets the CPU time of this process. The first pass starts some thousand workloads."
    )


def _took(one: Took) -> str:
    return f"{one.median_ms:.1f} ms ({one.cpu_ms:.1f})"
