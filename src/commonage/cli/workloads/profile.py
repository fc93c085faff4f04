"""`commonage profile`: runs a command on a whole GPU, and suggests a request."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import Server, as_json, calls_server, connect
from commonage.cli.errors import FAILED, Failure
from commonage.cli.workloads.files import send_files
from commonage.cli.workloads.follow import StatusLine, follow
from commonage.cli.workloads.request import job_fields, job_options, message, request_options

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
    values = job_fields(options, command)
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
    measured = ended.usage_report
    if measured is None:
        raise Failure(
            "the job ended before the first measurement, which takes a few seconds. Give it more work.", FAILED
        )
    if as_json:
        output.print_json({"request": _request_line(measured), "usage_report": measured})
    else:
        for line in _peaks(measured):
            click.echo(f"commonage: {line}", err=True)
        click.echo(_request_line(measured))
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
    return any(each.free_mib == each.memory_mib and each.free_compute_milli == 1000 for each in node.devices)


def _peaks(measured: UsageReportOut) -> list[str]:
    lines = [
        f"cores: {output.cpus(measured.cpu_peak_milli)} at most",
        f"memory: {output.memory(measured.memory_peak_mib)} at most",
    ]
    if measured.devices:
        peak, idle = measured.vram_peak_mib, measured.gpu_idle_share
        vram = "not measured" if peak is None else f"{output.memory(peak)} at most" if peak else "none used"
        lines.append(f"VRAM: {vram}{'' if idle is None else f'; the GPU idled {idle:.0%} of the time'}")
    if measured.simulated:
        lines.append("the GPU is simulated: the figures of VRAM are not real")
    return lines


def _request_line(measured: UsageReportOut) -> str:
    options = []
    if measured.sufficient_vram_mib is not None and measured.devices == 1:
        whole = measured.sufficient_vram_mib >= measured.vram_mib
        options.append(f"--gpus {'1' if whole else _amount(measured.sufficient_vram_mib)}")
    elif measured.sufficient_vram_mib is not None:
        options.append(f"--gpus {measured.devices}")
    if measured.sufficient_memory_mib is not None:
        options.append(f"--mem {_amount(measured.sufficient_memory_mib)}")
    # The peak, less an eighth of a core, rounded up to half cores.
    cores_milli = max(500, -(-(measured.cpu_peak_milli - 125) // 500) * 500)
    return " ".join([*options, f"--cpus {output.cpus(cores_milli)}"])


def _amount(mib: int) -> str:
    """Memory as an option: `6GiB`, `5.5GiB`, `768MiB`."""
    return f"{mib / 1024:g}GiB" if mib >= 1024 and mib % 512 == 0 else f"{mib}MiB"
