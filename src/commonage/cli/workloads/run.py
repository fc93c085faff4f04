"""`commonage run`: runs a command as a job, with the files of this folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import LIVE, Server, as_json, calls_server, connect
from commonage.cli.errors import FAILED
from commonage.cli.workloads.cron_job import create, cron_fields, cron_options
from commonage.cli.workloads.files import send_files
from commonage.cli.workloads.follow import INTERRUPTED, StatusLine, follow
from commonage.cli.workloads.request import (
    add_options,
    dependencies,
    job_fields,
    job_options,
    message,
    request_options,
    with_units,
)
from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commonage.sdk import Client
    from commonage.wire.workloads import SubmitIn, SubmitOut

_RUN_OPTIONS = (
    click.option(
        "--array",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Array of N jobs, each with its own COMMONAGE_ARRAY_INDEX.",
    ),
    click.option(
        "--nodes",
        type=click.IntRange(1, 1024),
        metavar="N",
        help="Gang of N members that start together on different nodes.",
    ),
    click.option(
        "--dependency",
        "depends_on",
        multiple=True,
        metavar="afterok:ID",
        help="Wait for other workloads. Conditions: afterok, afternotok, afterany, after. Repeatable.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(0, 100),
        metavar="N",
        help="Maximum number of retries if the job fails.  [default: 0]",
    ),
    click.option("--requeue/--no-requeue", default=None, help="Requeue if the node is lost (default for jobs)."),
    click.option("--grace", metavar="TIME", help="Time between SIGTERM and SIGKILL, like 30s.  [default: 10s]"),
    click.option("--service", is_flag=True, help="Run as a service: long-running, with a route through the proxy."),
    click.option(
        "--port",
        type=click.IntRange(1, 65535),
        metavar="N",
        help="Port on which the service listens.  [default: a free one, in {port} and COMMONAGE_PORT]",
    ),
    click.option("--health", "health_path", metavar="/PATH", help="Path that health checks of the service request."),
    click.option("--health-interval", metavar="TIME", help="Time between two health checks.  [default: 10s]"),
    click.option("--key", metavar="KEY", help="Idempotency key: a second run with it returns the same job."),
    *cron_options,
)


@click.command(context_settings={"allow_interspersed_args": False})
@request_options
@add_options(_RUN_OPTIONS)
@job_options
@click.option("-d", "--detach", is_flag=True, help="Print the id and exit, without following the job.")
@as_json
@calls_server
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND…")
def run(
    server: Server,
    command: tuple[str, ...],
    files: tuple[str, ...],
    no_files: bool,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a command as a job, with the files of this folder, and follow it until it ends.

    The files of the current folder are uploaded, at most 64 MiB. In a git work tree, ignored files are left out. With
    --schedule, the command creates a cron job, prints the next times, and exits. The job runs in its own copy of the
    folder. Ctrl-C asks whether to detach or stop. The exit code is that of the job. If the command is a notebook, it is
    executed, and the result is written next to it in the job's copy, below ~/jobs/ID, as NAME.result-TIME.ipynb.

    \b
    Examples:
      commonage run --gpus 6GiB --time 30m -- python train.py
      commonage run --array 100 --mem 2GiB -- python sweep.py
      commonage run --nodes 4 --gpus 8 -- torchrun train.py
      commonage run --gpus 6GiB -- analysis.ipynb
      commonage run --detach --json -- sleep 60
      commonage run --service --port 8080 --health /health -- python server.py
      commonage run --schedule "0 7 * * 1-5" --name report -- python report.py
    """
    if not command:
        raise click.UsageError("a command is needed: commonage run [OPTIONS] -- python train.py")
    values = {
        **job_fields(options, command),
        **with_units({"grace": options["grace"]}),
        **{name: options[name] for name in ("array", "nodes", "retries", "requeue")},
        **_service_fields(options),
        "depends_on": dependencies(options["depends_on"]),
    }
    cron = cron_fields(options)
    message(values)  # validate before files are sent
    with connect(server, reconnect_timeout_s=120.0 if not detach else 5.0) as client:
        if not no_files:
            values["bundle"] = send_files(client, Path.cwd(), files)
        if cron is not None:
            create(client, {**cron, "job": message({**values, "key": None})}, as_json)
            return
        hint = _hint(client, message(values))
        if hint is not None:
            StatusLine().print(hint)
        submitted = client.submit(message(values))
        if as_json and detach:
            output.print_json(submitted.workload.model_dump(mode="json") | {"ids": submitted.ids})
        if detach:
            if not as_json:
                click.echo("\n".join(submitted.ids))
            return
        sys.exit(_follow(client, submitted, as_json))


def _service_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a service. Raises UsageError for its options without --service."""
    interval = options["health_interval"]
    fields = {
        "port": options["port"],
        "health_path": options["health_path"],
        **with_units({"health_interval": interval}),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    if not options["service"]:
        if given:
            raise click.UsageError("--port, --health and --health-interval are for services. Add --service.")
        return {}
    return {"kind": "service", **given}


def _hint(client: Client, request: SubmitIn) -> str | None:
    """A hint if the request has much more VRAM than the last runs of the same command used, else None.

    A request that the server refuses gives no hint; the refusal is reported when it is submitted.
    """
    if request.gpus is None:
        return None
    try:
        suggestion = client.dry_run(request).suggestion
    except ApiError:
        return None
    if suggestion is None or not suggestion.too_much or suggestion.simulated:
        return None
    return f"{suggestion.summary} (--gpus {suggestion.gpus}), and starts sooner"


def _follow(client: Client, submitted: SubmitOut, as_json: bool) -> int:
    if submitted.count > 1:
        return _follow_array(client, submitted)
    StatusLine().print(f"{submitted.workload.id}{'' if submitted.created else ' (it already exists)'}")
    code = follow(client, submitted.workload)
    if as_json:
        output.print_json(client.workload(submitted.workload.id))
    return code


def _follow_array(client: Client, submitted: SubmitOut) -> int:
    import time

    status = StatusLine()
    kind = f"a gang on {submitted.count} nodes" if submitted.workload.gang else f"an array of {submitted.count}"
    status.print(f"{submitted.ids[0]}: {kind}. `commonage logs ID` shows the log of one member.")
    try:
        while True:
            counts = client.workload_page(
                limit=1, counts=True, array=submitted.workload.array_id or submitted.ids[0]
            ).counts
            summary = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
            status.update(summary)
            if not any(counts.get(state) for state in LIVE):
                break
            time.sleep(1)
    except KeyboardInterrupt:
        status.print(f"detached. The array continues; stop it with `commonage stop --array {submitted.ids[0]}`.")
        return INTERRUPTED
    status.print(summary)
    return 0 if counts.get("succeeded", 0) == submitted.count else FAILED
