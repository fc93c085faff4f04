"""`commonage top`: nodes, GPUs and workloads, live."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

import click

from commonage.cli import show
from commonage.cli.connection import LIVE, as_json, calls_server, connect
from commonage.cli.credentials import Server

if TYPE_CHECKING:
    from rich.console import Group

    from commonage.sdk import Client

_MOST_SHOWN = 40


@click.command
@click.option("--once", is_flag=True, help="Show it once and end.")
@click.option(
    "--every", type=click.FloatRange(0.5, 60), default=2.0, show_default=True, help="Seconds between two looks."
)
@as_json
@calls_server
def top(server: Server, once: bool, every: float, as_json: bool) -> None:
    """Watch nodes, GPUs and workloads, until Ctrl-C.

    \b
    Example:
      commonage top
      commonage top --once --json
    """
    with connect(server, reconnect_timeout_s=60.0 if not once else 3.0) as client:
        if as_json:
            found = list(islice(client.workloads(state=list(LIVE)), 1000))
            show.print_json(
                {
                    "nodes": [one.model_dump(mode="json") for one in client.nodes()],
                    "workloads": [one.model_dump(mode="json") for one in found],
                }
            )
        elif once:
            show.console().print(_picture(client))
        else:
            _live(client, every)


def _live(client: Client, every_s: float) -> None:
    from rich.live import Live

    try:
        with Live(_picture(client), console=show.console(), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(every_s)
                live.update(_picture(client), refresh=True)
    except KeyboardInterrupt:
        return


def _picture(client: Client) -> Group:
    from rich.console import Group

    from commonage.cli.node import node_table
    from commonage.cli.ps import workload_table

    info = client.info()
    counts = ", ".join(f"{number} {state}" for state, number in info.counts.items() if number) or "no work"
    head = f"[bold]{show.text(info.name)}[/]  {time.strftime('%H:%M:%S')}  {counts}"
    if info.simulated_gpus:
        head += "  [yellow]GPUs are simulated[/]"
    work = list(islice(client.workloads(state=list(LIVE)), _MOST_SHOWN))
    return Group(head, "", node_table(client.nodes()), "", workload_table(work, with_owner=True))
