"""`commonage top`: shows nodes, GPUs and workloads live."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.connection import LIVE, as_json, calls_server, connect
from commonage.cli.credentials import Server

if TYPE_CHECKING:
    from rich.console import Group

    from commonage.sdk import Client

_MAX_SHOWN = 40


@click.command
@click.option("--once", is_flag=True, help="Show it once and exit.")
@click.option(
    "--every", type=click.FloatRange(0.5, 60), default=2.0, show_default=True, help="Seconds between two refreshes."
)
@as_json
@calls_server
def top(server: Server, once: bool, every: float, as_json: bool) -> None:
    """Watch nodes, GPUs and workloads, until Ctrl-C.

    \b
    Examples:
      commonage top
      commonage top --once --json
    """
    with connect(server, reconnect_timeout_s=60.0 if not once else 3.0) as client:
        if as_json:
            found = list(islice(client.workloads(state=list(LIVE)), 1000))
            output.print_json(
                {
                    "nodes": [one.model_dump(mode="json") for one in client.nodes()],
                    "workloads": [one.model_dump(mode="json") for one in found],
                }
            )
        elif once:
            output.console().print(_view(client))
        else:
            _live(client, every)


def _live(client: Client, every_s: float) -> None:
    from rich.live import Live

    try:
        with Live(_view(client), console=output.console(), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(every_s)
                live.update(_view(client), refresh=True)
    except KeyboardInterrupt:
        return


def _view(client: Client) -> Group:
    from rich.console import Group

    from commonage.cli.nodes.node import node_table
    from commonage.cli.workloads.ps import workload_table

    info = client.info()
    counts = ", ".join(f"{number} {state}" for state, number in info.counts.items() if number) or "no workloads"
    head = f"[bold]{output.text(info.name)}[/]  {time.strftime('%H:%M:%S')}  {counts}"
    if info.simulated_gpus:
        head += "  [yellow]GPUs are simulated[/]"
    work = list(islice(client.workloads(state=list(LIVE)), _MAX_SHOWN))
    return Group(head, "", node_table(client.nodes()), "", workload_table(work, with_owner=True))
