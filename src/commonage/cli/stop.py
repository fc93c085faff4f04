"""`commonage stop`: end workloads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from commonage.cli import show
from commonage.cli.connection import LIVE, as_json, calls_server, connect, find_workload
from commonage.cli.credentials import Server
from commonage.cli.failures import MISUSED, Failure, Refused
from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.workloads import WorkloadOut


@click.command
@click.argument("workloads", nargs=-1, metavar="ID…")
@click.option("--array", metavar="ID", help="All of this array.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for its owner to read.")
@as_json
@calls_server
def stop(server: Server, workloads: tuple[str, ...], array: str | None, reason: str, as_json: bool) -> None:
    """End workloads: those that wait at once, those that run with time to tidy up.

    \b
    Example:
      commonage stop 7k2v train
      commonage stop --array 1m7yv9fqka6p0
    """
    if not workloads and array is None:
        raise click.UsageError("whose end? `commonage ps` shows the ids")
    with connect(server) as client:
        found = [(text, None) for text in workloads]
        done: list[WorkloadOut] = []
        failed = 0
        for text, known in [*found, *_of_array(client, array)]:
            try:
                done.append(client.stop(known or find_workload(client, text).id, reason))
            except (ApiError, Failure) as error:
                failed = max(failed, _say(text, error))
    if as_json:
        show.print_json(done)
    else:
        for one in done:
            click.echo(f"{one.id} {'stopping' if one.state in LIVE else one.state.replace('_', ' ')}")
    sys.exit(failed)


def _of_array(client: Client, array: str | None) -> list[tuple[str, str]]:
    if array is None:
        return []
    members = [(one.id, one.id) for one in client.workloads(array=array, state=list(LIVE))]
    if not members:
        raise Failure(f"nothing of an array {array} waits or runs", MISUSED)
    return members


def _say(text: str, error: ApiError | Failure) -> int:
    """Say what went wrong with one; the others go on."""
    failure = Refused(error) if isinstance(error, ApiError) else error
    said = failure.format_message()
    click.echo(f"commonage: {said if text in said else f'{text}: {said}'}", err=True)
    return failure.exit_code
