"""`commonage run`: a command as a job, with this folder's files."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import show, usage_reports
from commonage.cli.asks import dependencies, message, of_request, request_options, variables, with_units
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.failures import FAILED, MISUSED, Failure
from commonage.cli.files import files_along
from commonage.cli.follow import Teller, follow

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.workloads import SubmitOut

_OF_THE_JOB = (
    click.option("--name", metavar="NAME", help="For people; made from the command if left out."),
    click.option("--array", type=click.IntRange(1, 10_000), metavar="N", help="N jobs; COMMONAGE_ARRAY_INDEX differs."),
    click.option("--nodes", type=click.IntRange(1, 1024), metavar="N", help="N together, each on a node of its own."),
    click.option("--dependency", "depends_on", multiple=True, metavar="afterok:ID", help="Wait for others."),
    click.option("--retries", type=click.IntRange(0, 100), metavar="N", help="Try so often again when it fails."),
    click.option("--requeue/--no-requeue", default=None, help="Begin anew when its node is lost, as a rule."),
    click.option("--grace", metavar="TIME", help="Time between SIGTERM and SIGKILL: 30s."),
    click.option("--key", metavar="KEY", help="Your own key: running again with it gives the same job."),
    click.option("-e", "--var", "given", multiple=True, metavar="NAME[=VALUE]", help="A variable for the job."),
    click.option("--secret", "secret", multiple=True, metavar="NAME[=VALUE]", help="The same, never shown again."),
)  # fmt: skip


def _options_of_the_job(verb: Any) -> Any:
    for option in reversed(_OF_THE_JOB):
        verb = option(verb)
    return verb


@click.command(context_settings={"allow_interspersed_args": False})
@request_options
@_options_of_the_job
@click.option("--files", multiple=True, metavar="PATH", help="Send only this file or folder along; may be repeated.")
@click.option("--no-files", is_flag=True, help="Send nothing along.")
@click.option("-d", "--detach", is_flag=True, help="Do not follow it: print its id and end.")
@as_json
@calls_server
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND…")
def run(
    server: Server, command: tuple[str, ...], files: tuple[str, ...], no_files: bool, detach: bool, **ask: Any
) -> None:
    """Run a command as a job, with the files of this folder, and follow it to its end.

    The files of the current folder go along, at most 64 MiB; in a git work tree without those that git ignores. The job
    runs in a folder of its own that holds them. Ends with the job's exit code. Ctrl-C asks whether to detach or stop.

    \b
    Example:
      commonage run --gpus 6GiB --time 30m -- python train.py
      commonage run --array 100 --mem 2GiB -- python sweep.py
      commonage run --nodes 4 --gpus 8 -- torchrun train.py
      commonage run --detach --json -- sleep 60
    """
    if not command:
        raise click.UsageError("a command is needed: commonage run [OPTIONS] -- python train.py")
    as_json = ask.pop("as_json")
    values = asked(ask, list(command))
    message(values)  # before any file is sent
    with connect(server, reconnect_timeout_s=120.0 if not detach else 5.0) as client:
        if not no_files:
            values["bundle"] = send_files(client, Path.cwd(), files)
        hint = usage_reports.hint(client, message(values))
        if hint is not None:
            Teller().line(hint)
        made = client.submit(message(values))
        if as_json and detach:
            show.print_json(made.workload.model_dump(mode="json") | {"ids": made.ids})
        if detach:
            if not as_json:
                click.echo("\n".join(made.ids))
            return
        sys.exit(_to_the_end(client, made, as_json))


def asked(ask: dict[str, Any], command: list[str]) -> dict[str, Any]:
    """The options as the fields of the message."""
    return {
        **of_request(ask),
        **with_units({"grace": ask["grace"]}),
        **{name: ask[name] for name in ("name", "array", "nodes", "retries", "requeue")},
        "kind": "job",
        "command": command,
        "variables": variables(ask["given"], "--var"),
        "secrets": variables(ask["secret"], "--secret"),
        "depends_on": dependencies(ask["depends_on"]),
        "key": ask["key"] or f"cli-{uuid.uuid4().hex}",  # so that a lost answer does not make two of it
    }


def send_files(client: Client, folder: Path, only: tuple[str, ...]) -> str | None:
    """Send the files along; the digest to submit with, None if there are none. Raises Failure."""
    found = files_along(folder, only)
    if not found:
        return None
    try:
        return client.bundle(found).digest
    except OSError as error:
        raise Failure(f"{error.filename or folder} cannot be sent along: {error.strerror or error}", MISUSED) from error


def _to_the_end(client: Client, made: SubmitOut, as_json: bool) -> int:
    if made.count > 1:
        return _array_to_the_end(client, made)
    Teller().line(f"{made.workload.id}{'' if made.created else ' (it was there already)'}")
    code = follow(client, made.workload)
    if as_json:
        show.print_json(client.workload(made.workload.id))
    return code


def _array_to_the_end(client: Client, made: SubmitOut) -> int:
    """Follow an array by its counts; 0 if all of it succeeded."""
    import time

    say = Teller()
    what = f"a gang on {made.count} nodes" if made.workload.gang else f"an array of {made.count}"
    say.line(f"{made.ids[0]}: {what}; `commonage logs ID` shows what one of them says")
    try:
        while True:
            counts = client.workload_page(limit=1, counts=True, array=made.workload.array_id or made.ids[0]).counts
            say.status(", ".join(f"{number} {state}" for state, number in counts.items() if number))
            if not any(counts.get(state) for state in ("held", "queued", "starting", "running")):
                break
            time.sleep(1)
    except KeyboardInterrupt:
        say.line(f"detached; the array goes on. End it with `commonage stop --array {made.ids[0]}`.")
        return 130
    say.done()
    say.line(", ".join(f"{number} {state}" for state, number in counts.items() if number))
    return 0 if counts.get("succeeded", 0) == made.count else FAILED
