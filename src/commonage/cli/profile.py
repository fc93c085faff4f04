"""`commonage profile`: run a command on a whole GPU, and say what to ask for next time."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import show, usage_reports
from commonage.cli.asks import message, of_request, request_options, variables
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.failures import FAILED, Failure
from commonage.cli.follow import Teller, follow
from commonage.cli.run import send_files

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.platform import NodeOut
    from commonage.wire.usage_reports import UsageReportOut

_MEMORY_STEP_MIB = 256


@click.command(context_settings={"allow_interspersed_args": False})
@request_options
@click.option("--name", metavar="NAME", help="For people; made from the command if left out.")
@click.option("-e", "--var", "given", multiple=True, metavar="NAME[=VALUE]", help="A variable for the job.")
@click.option("--secret", "secret", multiple=True, metavar="NAME[=VALUE]", help="The same, never shown again.")
@click.option("--files", multiple=True, metavar="PATH", help="Send only this file or folder along; may be repeated.")
@click.option("--no-files", is_flag=True, help="Send nothing along.")
@as_json
@calls_server
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND…")
def profile(
    server: Server, command: tuple[str, ...], files: tuple[str, ...], no_files: bool, as_json: bool, **ask: Any
) -> None:
    """Run a command once on a whole GPU without limits, and print the request to make for it.

    It takes a GPU of its own and all cores and memory that are free beside it, unless you say otherwise, is measured
    every few seconds, and ends with the job's exit code. Give it a run that is short but typical: a minute of training
    needs the memory of an hour. What it prints on stdout are options of `commonage run`.

    \b
    Example:
      commonage profile -- python train.py --epochs 1
      commonage run $(commonage profile -- python train.py --epochs 1) -- python train.py
    """
    if not command:
        raise click.UsageError("a command is needed: commonage profile [OPTIONS] -- python train.py")
    values = {
        **of_request(ask),
        "kind": "job",
        "name": ask["name"],
        "command": list(command),
        "variables": variables(ask["given"], "--var"),
        "secrets": variables(ask["secret"], "--secret"),
        "key": f"cli-{uuid.uuid4().hex}",
    }
    message(values)  # before any file is sent
    with connect(server, reconnect_timeout_s=120.0) as client:
        values = {**_without_limits(client), **values}
        if not no_files:
            values["bundle"] = send_files(client, Path.cwd(), files)
        made = client.submit(message(values)).workload
        Teller().line(f"{made.id}: measured with {made.request.text}")
        with _output_on_stderr():
            code = follow(client, made)
        ended = client.workload(made.id)
    usage_report = ended.usage_report
    if usage_report is None:
        raise Failure("it ended before it was measured, which is done every few seconds; give it more to do", FAILED)
    if as_json:
        show.print_json(
            {"request": usage_reports.request_line(usage_report), "usage_report": usage_report.model_dump(mode="json")}
        )
    else:
        for line in _measured(usage_report):
            click.echo(f"commonage: {line}", err=True)
        click.echo(usage_reports.request_line(usage_report))
    sys.exit(code)


def _output_on_stderr() -> Any:
    """What the job says goes to stderr: stdout is for the request."""
    from contextlib import redirect_stdout

    return redirect_stdout(sys.stderr)


def _without_limits(client: Client) -> dict[str, Any]:
    """A whole GPU with all that is free beside it, on the node with the most; without GPUs only the latter."""
    nodes = [node for node in client.nodes() if node.state == "ready"]
    with_devices = [node for node in nodes if _free_device(node)]
    chosen = max(with_devices or nodes, key=lambda node: node.free_memory_mib, default=None)
    if chosen is None:
        raise Failure("no node takes work now; `commonage node ls` says why", FAILED)
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
    """What it used at most, and what to think of that."""
    lines = [
        f"cores: {show.cpus(usage_report.cpu_peak_milli)} at most",
        f"memory: {show.memory(usage_report.memory_peak_mib)} at most",
    ]
    if usage_report.devices:
        peak = usage_report.vram_peak_mib
        vram = "not measured" if peak is None else f"{show.memory(peak)} at most" if peak else "none used"
        idle = (
            ""
            if usage_report.gpu_idle_share is None
            else f"; the GPU idled {usage_report.gpu_idle_share:.0%} of the time"
        )
        lines.append(f"VRAM: {vram}{idle}")
    if usage_report.simulated:
        lines.append("the GPU is simulated: what is said of VRAM means nothing real")
    return lines
