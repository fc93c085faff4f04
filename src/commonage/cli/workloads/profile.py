"""`commonage profile`: runs a command on a whole GPU, and suggests a request."""

from __future__ import annotations

import sys
import uuid
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.errors import FAILED, Failure
from commonage.cli.workloads import usage_reports
from commonage.cli.workloads.follow import StatusLine, follow
from commonage.cli.workloads.request import job_options, message, request_fields, request_options, variables
from commonage.cli.workloads.run import send_files

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.nodes import NodeOut
    from commonage.wire.usage import UsageReportOut

_MEMORY_STEP_MIB = 256


@click.command(context_settings={"allow_interspersed_args": False})
@request_options
@job_options
@as_json
@calls_server
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND…")
def profile(
    server: Server, command: tuple[str, ...], files: tuple[str, ...], no_files: bool, as_json: bool, **options: Any
) -> None:
    """Run a command once on a whole GPU, measure it, and print the resources it needs as options of `run`.

    By default the job gets a whole GPU, and all free cores and memory of its node. Use a short but typical run: a
    minute of training needs as much memory as an hour. The exit code is that of the job.

    \b
    Examples:
      commonage profile -- python train.py --epochs 1
      commonage run $(commonage profile -- python train.py --epochs 1) -- python train.py
    """
    if not command:
        raise click.UsageError("a command is needed: commonage profile [OPTIONS] -- python train.py")
    values = {
        **request_fields(options),
        "kind": "job",
        "name": options["name"],
        "command": list(command),
        "variables": variables(options["given"], "--var"),
        "secrets": variables(options["secret"], "--secret"),
        "key": f"cli-{uuid.uuid4().hex}",
    }
    message(values)  # validate before files are sent
    with connect(server, reconnect_timeout_s=120.0) as client:
        values = {**_without_limits(client), **values}
        if not no_files:
            values["bundle"] = send_files(client, Path.cwd(), files)
        made = client.submit(message(values)).workload
        StatusLine().print(f"{made.id}: measured with {made.request.text}")
        with redirect_stdout(sys.stderr):  # stdout is for the request
            code = follow(client, made)
        ended = client.workload(made.id)
    usage_report = ended.usage_report
    if usage_report is None:
        raise Failure(
            "the job ended before the first measurement, which takes a few seconds. Give it more work.", FAILED
        )
    if as_json:
        output.print_json(
            {"request": usage_reports.request_line(usage_report), "usage_report": usage_report.model_dump(mode="json")}
        )
    else:
        for line in _measured(usage_report):
            click.echo(f"commonage: {line}", err=True)
        click.echo(usage_reports.request_line(usage_report))
    sys.exit(code)


def _without_limits(client: Client) -> dict[str, Any]:
    """A whole GPU, and all free cores and memory of the node with the most free memory."""
    nodes = [node for node in client.nodes() if node.state == "ready"]
    with_devices = [node for node in nodes if _free_device(node)]
    chosen = max(with_devices or nodes, key=lambda node: node.free_memory_mib, default=None)
    if chosen is None:
        raise Failure("no node takes workloads now. `commonage node ls` shows the reasons.", FAILED)
    any_device = any(device for node in nodes for device in node.devices)
    memory = chosen.free_memory_mib // _MEMORY_STEP_MIB * _MEMORY_STEP_MIB
    return {
        **({"gpus": "1"} if any_device else {}),
        **({"memory_mib": memory} if memory else {}),
        **({"cpus": f"{chosen.free_cpus_milli}m"} if chosen.free_cpus_milli > 0 else {}),
    }


def _free_device(node: NodeOut) -> bool:
    return any(one.free_mib == one.memory_mib and one.free_compute_milli == 1000 for one in node.devices)


def _measured(usage_report: UsageReportOut) -> list[str]:
    """The peaks of the usage report as lines of text."""
    lines = [
        f"cores: {output.cpus(usage_report.cpu_peak_milli)} at most",
        f"memory: {output.memory(usage_report.memory_peak_mib)} at most",
    ]
    if usage_report.devices:
        peak = usage_report.vram_peak_mib
        vram = "not measured" if peak is None else f"{output.memory(peak)} at most" if peak else "none used"
        idle = (
            ""
            if usage_report.gpu_idle_share is None
            else f"; the GPU idled {usage_report.gpu_idle_share:.0%} of the time"
        )
        lines.append(f"VRAM: {vram}{idle}")
    if usage_report.simulated:
        lines.append("the GPU is simulated: the figures of VRAM are not real")
    return lines
