"""`commonage logs` and `commonage attach`: the log of a workload."""

from __future__ import annotations

import sys
from contextlib import closing

import click

from commonage.cli.connection import as_json, calls_server, connect, find_workload
from commonage.cli.credentials import Server
from commonage.cli.workloads.follow import INTERRUPTED, follow


@click.command
@click.argument("workload", metavar="ID")
@click.option("-f", "--follow", "follow_log", is_flag=True, help="Follow the log until the workload ends.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Log of this attempt.  [default: the newest]")
@as_json
@calls_server
def logs(server: Server, workload: str, follow_log: bool, tail: int | None, attempt: int | None, as_json: bool) -> None:
    """Show the log of a workload: stdout and stderr in order.

    ID is an id, the end of an id, or the name of a live workload. With --json each line is one object.

    \b
    Examples:
      commonage logs -f 7k2v
      commonage logs --tail 20 train
    """
    with connect(server, reconnect_timeout_s=60.0 if follow_log else 3.0) as client:
        found = find_workload(client, workload)
        try:
            with closing(client.logs(found.id, follow=follow_log, attempt=attempt, tail=tail)) as lines:
                for line in lines:
                    click.echo(line.model_dump_json() if as_json else line.text)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


@click.command
@click.argument("workload", metavar="ID")
@calls_server
def attach(server: Server, workload: str) -> None:
    """Follow a workload until it ends, as `run` does: its state, its log and its result.

    Ctrl-C asks whether to detach or stop. The exit code is that of the job.

    \b
    Example:
      commonage attach 7k2v
    """
    with connect(server, reconnect_timeout_s=120.0) as client:
        sys.exit(follow(client, find_workload(client, workload)))
