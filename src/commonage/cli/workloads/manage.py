"""Commands for a workload that was submitted: explain, logs, attach, extend, release-gpu and stop."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import LIVE, Server, as_json, calls_server, connect, find_workload
from commonage.cli.errors import MISUSED, Failure, ServerRefused
from commonage.cli.workloads.follow import INTERRUPTED, follow, gpu_use
from commonage.cli.workloads.request import message, request_fields, request_options
from commonage.sdk.errors import ApiError
from commonage.units import UnitError, parse_duration

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.workloads import WorkloadOut


@click.command
@click.argument("workload", metavar="[ID]", required=False)
@request_options
@click.option(
    "--kind",
    type=click.Choice(["job", "session"]),
    default="job",
    help="Kind of workload of the request.  [default: job]",
)
@as_json
@calls_server
def explain(server: Server, workload: str | None, as_json: bool, **options: Any) -> None:
    """Explain why a workload waits and when it starts, or whether a request could start now.

    \b
    Examples:
      commonage explain 7k2v
      commonage explain --gpus 12GiB --time 2h
    """
    given = request_fields(options)
    if workload is not None and given:
        raise click.UsageError("give either an id or a request")
    with connect(server) as client:
        used = None
        if workload is not None:
            explained = client.workload(find_workload(client, workload).id)
            explanation, used = client.explain(explained.id), gpu_use(explained)
        else:
            command = ["true"] if options["kind"] == "job" else []
            explanation = client.dry_run(message({**given, "kind": options["kind"], "command": command}))
    if as_json:
        output.print_json(explanation)
    else:
        lines = output.explanation(explanation)
        click.echo("\n".join([*lines, f"It {used}."] if used else lines))


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
        workload_id = find_workload(client, workload).id
        try:
            with closing(client.logs(workload_id, follow=follow_log, attempt=attempt, tail=tail)) as lines:
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


@click.command
@click.argument("workloads", nargs=-1, metavar="ID…")
@click.option("--array", metavar="ID", help="Stop all members of this array.")
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
    stopped: list[WorkloadOut] = []
    failed = 0
    with connect(server) as client:
        members = _live_members(client, array) if array is not None else []
        for text in (*workloads, *members):
            try:
                workload_id = text if text in members else find_workload(client, text).id
                stopped.append(client.stop(workload_id, reason))
            except (ApiError, Failure) as error:
                failed = max(failed, _report(text, error))
    if as_json:
        output.print_json(stopped)
    else:
        for each in stopped:
            click.echo(f"{each.id} {'stopping' if each.state in LIVE else each.state.replace('_', ' ')}")
    sys.exit(failed)


@click.command
@click.argument("workload", metavar="ID")
@click.argument("duration", default="2h", metavar="[DURATION]")
@as_json
@calls_server
def extend(server: Server, workload: str, duration: str, as_json: bool) -> None:
    """Keep a workload for at least DURATION from now, 2h by default.

    Its time limit is extended if necessary, and an idle session is not stopped earlier. Quota, maximum age and
    reservations may allow less.

    \b
    Examples:
      commonage extend 7k2v
      commonage extend main 90m
    """
    try:
        seconds = parse_duration(duration, "DURATION")
    except UnitError as error:
        raise click.UsageError(str(error)) from error
    with connect(server) as client:
        kept = client.extend(find_workload(client, workload).id, seconds)
    if as_json:
        output.print_json(kept)
        return
    until = kept.kept_until or 0.0
    less = until < time.time() + seconds - 60
    click.echo(f"{kept.id} is kept until {output.clock(until)}{', which is as long as possible' if less else ''}.")


@click.command("release-gpu")
@click.argument("workload", metavar="ID")
@as_json
@calls_server
def release_gpu(server: Server, workload: str, as_json: bool) -> None:
    """Release the GPU of a session: the session starts again without it, with the same files.

    Kernels and their variables are lost.

    \b
    Example:
      commonage release-gpu main
    """
    with connect(server) as client:
        released = client.release_gpu(find_workload(client, workload).id)
    if as_json:
        output.print_json(released)
    else:
        click.echo(f"{released.id} releases its GPU. The session starts again without it.")


def _live_members(client: Client, array: str) -> list[str]:
    members = [each.id for each in client.workloads(array=array, state=list(LIVE))]
    if not members:
        raise Failure(f"the array {array} has no live workloads", MISUSED)
    return members


def _report(text: str, error: ApiError | Failure) -> int:
    """Print the error of one workload. Returns its exit code; the others are still stopped."""
    failure = ServerRefused(error) if isinstance(error, ApiError) else error
    message = failure.format_message()
    click.echo(f"commonage: {message if text in message else f'{text}: {message}'}", err=True)
    return failure.exit_code
