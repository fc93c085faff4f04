"""`commonage stop`: stops workloads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.connection import LIVE, as_json, calls_server, connect, find_workload
from commonage.cli.credentials import Server
from commonage.cli.errors import MISUSED, Failure, ServerRefused
from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.workloads import WorkloadOut


@click.command
@click.argument("workloads", nargs=-1, metavar="ID…")
@click.option("--array", metavar="ID", help="All members of this array.")
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown to the owner.")
@as_json
@calls_server
def stop(server: Server, workloads: tuple[str, ...], array: str | None, reason: str, as_json: bool) -> None:
    """Stop workloads: queued ones at once, running ones with SIGTERM, then SIGKILL after their grace time.

    \b
    Examples:
      commonage stop 7k2v train
      commonage stop --array 1m7yv9fqka6p0
    """
    if not workloads and array is None:
        raise click.UsageError("an id is needed. `commonage ps` lists the ids of your workloads.")
    with connect(server) as client:
        found = [(text, None) for text in workloads]
        done: list[WorkloadOut] = []
        failed = 0
        for text, known in [*found, *_of_array(client, array)]:
            try:
                done.append(client.stop(known or find_workload(client, text).id, reason))
            except (ApiError, Failure) as error:
                failed = max(failed, _report(text, error))
    if as_json:
        output.print_json(done)
    else:
        for one in done:
            click.echo(f"{one.id} {'stopping' if one.state in LIVE else one.state.replace('_', ' ')}")
    sys.exit(failed)


def _of_array(client: Client, array: str | None) -> list[tuple[str, str]]:
    if array is None:
        return []
    members = [(one.id, one.id) for one in client.workloads(array=array, state=list(LIVE))]
    if not members:
        raise Failure(f"the array {array} has no live workloads", MISUSED)
    return members


def _report(text: str, error: ApiError | Failure) -> int:
    """Print the error of one workload. Returns its exit code; the others are still stopped."""
    failure = ServerRefused(error) if isinstance(error, ApiError) else error
    message = failure.format_message()
    click.echo(f"commonage: {message if text in message else f'{text}: {message}'}", err=True)
    return failure.exit_code
