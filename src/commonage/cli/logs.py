"""`commonage logs` and `commonage attach`: what a workload says."""

from __future__ import annotations

import sys
from contextlib import closing

import click

from commonage.cli.connection import as_json, calls_server, connect, find_workload
from commonage.cli.credentials import Server
from commonage.cli.follow import INTERRUPTED, follow


@click.command
@click.argument("workload", metavar="ID")
@click.option("-f", "--follow", "go_on", is_flag=True, help="Go on until it ends.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of this attempt; the newest if left out.")
@as_json
@calls_server
def logs(server: Server, workload: str, go_on: bool, tail: int | None, attempt: int | None, as_json: bool) -> None:
    """Show what a workload has said: its output and its errors, in the order they came.

    An id may be shortened to its end, or be the name of a workload that waits or runs. With --json each line is an
    object of its own.

    \b
    Example:
      commonage logs -f 7k2v
      commonage logs --tail 20 train
    """
    with connect(server, reconnect_timeout_s=60.0 if go_on else 3.0) as client:
        found = find_workload(client, workload)
        try:
            with closing(client.logs(found.id, follow=go_on, attempt=attempt, tail=tail)) as lines:
                for line in lines:
                    click.echo(line.model_dump_json() if as_json else line.text)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


@click.command
@click.argument("workload", metavar="ID")
@calls_server
def attach(server: Server, workload: str) -> None:
    """Follow a workload to its end, as run does: why it waits, what it says, how it ends.

    Ends with the job's exit code. Ctrl-C asks whether to detach or stop.

    \b
    Example:
      commonage attach 7k2v
    """
    with connect(server, reconnect_timeout_s=120.0) as client:
        sys.exit(follow(client, find_workload(client, workload)))
