"""`commonage doctor` checks this machine and its server; `doctor gpu` tests GPU shares, or measures what they cost."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from commonage.domain.errors import CommonageError
from commonage.domain.nodes import Isolation
from commonage.engines.kubernetes.gpus.mode import Detection
from commonage.engines.kubernetes.gpus.modes import MODES_IN_USE
from commonage.gpu.nvml.record import record as record_devices
from commonage.messages import text
from commonage.server.commands.common import Failure, as_json, reads_settings
from commonage.server.doctor.checks import examine
from commonage.server.doctor.cluster_checks import ClusterReport, examine_cluster
from commonage.server.doctor.gpu_doctor import RealGpus, find_gpus, measure_all, try_all
from commonage.server.doctor.gpu_trials import Trial
from commonage.server.doctor.site_checks import examine_site, is_appliance
from commonage.server.settings.settings import Resolved, Settings

HELD, BROKEN, NOT_TESTED = 0, 1, 2
MEASURED, NOT_MEASURED = 0, 2
SECONDS = 10.0
_ENGINES = get_args(Settings.model_fields["engine"].annotation)
_MARKS = {
    "ok": click.style("ok  ", fg="green"),
    "note": click.style("note", fg="yellow"),
    "bad": click.style("BAD ", fg="red"),
}


@click.command("gpu")
@click.option(
    "--level",
    "levels",
    multiple=True,
    type=click.Choice([level.value for level in Isolation if level is not Isolation.ACCOUNTED]),  # of clusters only
    help="Only this isolation level. Repeatable.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the answers of the GPU driver to a file.",
)
@click.option("--measure", is_flag=True, help="Measure the cost of sharing instead.")
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), help=f"Seconds for each figure of --measure.  [default: {SECONDS:g}]"
)
@as_json
@reads_settings
def gpu(
    resolved: Resolved,
    levels: Sequence[str],
    record: Path | None,
    measure: bool,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Test whether GPU shares are enforced on this machine. The GPUs must be unused.

    For each isolation level, a neighbor computes in one share. A program in another share allocates too much memory,
    looks for other GPUs, and tries to escape with an empty environment and from another control group. Exit code 1 if a
    level does not enforce what it promises, 2 if nothing could be tested.

    --measure compares the throughput of 2, 4 and 8 shares with that of one workload alone, and measures a share next to
    a greedy neighbor. Exit code 2 if nothing could be measured.

    \b
    Examples:
      commonage doctor gpu
      commonage doctor gpu --level mps --json
      commonage doctor gpu --measure --seconds 20
    """
    if seconds is not None and not measure:
        raise click.UsageError("--seconds is the time for each figure of --measure. Add --measure, or omit --seconds.")
    found = find_gpus(resolved.settings.gpus, resolved.settings.gpu_preload)
    if record is not None:
        _record(record)
    wanted = [Isolation(level) for level in levels] or tuple(Isolation)
    sys.exit(_measure(found, wanted, seconds or SECONDS, as_json) if measure else _try(found, wanted, as_json))


def _try(found: RealGpus, levels: Sequence[Isolation], as_json: bool) -> int:
    if not found.devices:
        click.echo(f"No real GPU on this machine, so nothing can be tested. {found.summary}", err=True)
        return NOT_TESTED
    trials = []
    if not as_json:
        click.echo(found.summary)
    for trial in try_all(found, levels):
        trials.append(trial)
        if not as_json:
            _print(trial, trials[-2] if len(trials) > 1 else None)
    if as_json:
        click.echo(json.dumps([asdict(trial) for trial in trials], indent=2, ensure_ascii=False))
    return exit_code(trials)


def _measure(found: RealGpus, levels: Sequence[Isolation], seconds: float, as_json: bool) -> int:
    measured = measure_all(found, levels, seconds, lambda line: click.echo(line, err=True))
    if not measured:
        click.echo(f"No real GPU on this machine can be shared, so nothing is measured. {found.summary}", err=True)
        return NOT_MEASURED
    click.echo(json.dumps(measured, indent=2) if as_json else "\n\n".join(_table(one) for one in measured))
    return MEASURED if any(one["alone"] for one in measured) else NOT_MEASURED


def _table(measured: dict[str, Any]) -> str:
    alone = f"{measured['alone']:.1f} kernels a second{': ' if measured['error'] else ''}{measured['error']}"
    lines = [
        f"GPU {measured['device']}, driver {measured['driver']}: one workload alone: {alone}.",
        "",
        "| level | shares | total, relative to one alone | slowest | fastest | |",
        "|---|---|---|---|---|---|",
    ]
    for one in measured["together"]:
        rates = f"{one['slowest']:.1f}/s | {one['fastest']:.1f}/s"
        lines.append(f"| {one['level']} | {one['count']} | {one['of_one']:.0%} | {rates} | {one['error']} |")
    lines += [
        "",
        "| level | neighbor alone | next to a greedy program | the greedy program got | |",
        "|---|---|---|---|---|",
    ]
    for one in measured["beside"]:
        lines.append(
            f"| {one['level']} | {one['alone']:.1f}/s | {one['meanwhile']:.1f}/s | {one['got_mib']} of "
            f"{one['share_mib']} MiB | {one['error']} |"
        )
    lines += ["", *(f"- {one['level']} was skipped: {one['why']}" for one in measured["left_out"])]
    return "\n".join(lines).rstrip()


def exit_code(trials: Sequence[Trial]) -> int:
    """0: everything promised held; 1: something did not; 2: nothing could be tested."""
    if any(trial.is_broken for trial in trials):
        return BROKEN
    return HELD if any(trial.held is not None for trial in trials) else NOT_TESTED


def _print(trial: Trial, before: Trial | None) -> None:
    if before is None or (before.device, before.level) != (trial.device, trial.level):
        click.echo(f"\nGPU {trial.label}: {trial.model}, {trial.level}")
    click.echo(f"  {_mark(trial)}  {trial.check}: {trial.found}")


def _mark(trial: Trial) -> str:
    if trial.held is None:
        return click.style("not tested  ", fg="yellow")
    if trial.held:
        return click.style("held        ", fg="green")
    if trial.promised:
        return click.style("DID NOT HOLD", fg="red", bold=True)
    return "not promised"


def _record(file: Path) -> None:
    """Write the answers of the GPU driver, for tests on other machines."""
    try:
        written = record_devices(file)
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error}") from None
    click.echo(f"{len(written['calls'])} answers of {len(written['devices'])} GPUs are in {file}", err=True)


@click.group(invoke_without_command=True)
@click.option("--engine", type=click.Choice(_ENGINES), help="Check for this engine.  [default: the setting]")
@as_json
@reads_settings
@click.pass_context
def doctor(context: click.Context, resolved: Resolved, engine: str | None, as_json: bool) -> None:
    """Check this machine and its server, and suggest fixes. Exit code 1 if a check fails.

    On an appliance, which has joined with `commonage site join`, check its engine, its link and its clock.

    `commonage doctor gpu` tests whether GPU shares are enforced. `commonage doctor site` checks a Kubernetes cluster.

    \b
    Examples:
      commonage doctor --data-dir .commonage
      commonage doctor --engine docker
    """
    if context.invoked_subcommand is not None:
        return
    settings = resolved.settings if engine is None else resolved.settings.model_copy(update={"engine": engine})
    findings = examine_site(settings) if is_appliance(settings) else examine(settings)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        for one in findings:
            click.echo(f"{_MARKS[one.verdict]}  {one.check:<14} {one.found}")
            if one.advice:
                click.echo(f"      {'':<14} → {one.advice}")
    sys.exit(1 if any(finding.verdict == "bad" for finding in findings) else 0)


@click.command("site")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Kubeconfig of the cluster.  [default: the Pod's service account, KUBECONFIG, or ~/.kube/config]",
)
@click.option("--context", help="Context in the kubeconfig.  [default: the current one]")
@click.option(
    "--namespace", default="default", show_default=True, help="A namespace of workloads, for the check of rights."
)
@as_json
def site(kubeconfig: Path | None, context: str | None, namespace: str, as_json: bool) -> None:
    """Check a Kubernetes cluster: its GPU modes, missing rights, and feature gates. Nothing is changed.

    Commonage uses the first of the modes dra, hami and plugin that is present. Exit code 1 if a right is missing that a
    present mode needs, or if the cluster does not answer.

    \b
    Examples:
      commonage doctor site
      commonage doctor site --kubeconfig admin.kubeconfig --namespace commonage-physics --json
    """
    try:
        report = examine_cluster(kubeconfig, context, namespace)
    except CommonageError as error:
        raise Failure(str(error)) from None
    click.echo(json.dumps(_plain(report), indent=2, ensure_ascii=False) if as_json else _cluster_table(report))
    sys.exit(1 if report.missing else 0)


def _plain(report: ClusterReport) -> dict[str, Any]:
    used = _used(report)
    modes = [
        {
            "mode": one.mode,
            "present": one.is_present,
            "used": one is used,
            "shares": None if one.isolation is None else one.isolation.value,
            "strength": None if one.isolation is None else one.isolation.strength.value,
            "reason": None if one.missing is None else text(one.missing),
            "notices": [text(notice) for notice in one.notices],
        }
        for one in report.modes
    ]
    return {
        "version": report.version,
        "nodes": report.nodes,
        "modes": modes,
        "missing_rights": [str(right) for right in report.missing],
        "feature_gates": None if report.gates is None else {gate.name: gate.is_enabled for gate in report.gates},
    }


def _cluster_table(report: ClusterReport) -> str:
    used = _used(report)
    lines = [
        f"Kubernetes {report.version}, {report.nodes} nodes",
        "",
        f"{'GPU MODE':<13}{'STRENGTH':<14}PRESENT / REASON",
    ]
    for one in report.modes:
        strength = "whole" if one.isolation is None else one.isolation.strength.value
        state = "present, used" if one is used else "present" if one.missing is None else text(one.missing)
        lines.append(f"{one.mode:<13}{strength if one.is_present else '-':<14}{state}")
        lines += [f"{'':<27}{text(notice)}" for notice in one.notices]
    lines += ["", "Missing rights: " + (", ".join(str(right) for right in report.missing) or "none")]
    if report.gates is None:
        lines.append("Feature gates: unknown, /metrics of the API server may not be read")
    else:
        gates = (f"{gate.name} {'on' if gate.is_enabled else 'off'} ({gate.stage})" for gate in report.gates)
        lines.append("Feature gates: " + (", ".join(gates) or "none of devices"))
    return "\n".join(lines)


def _used(report: ClusterReport) -> Detection | None:
    names = {mode.name for mode in MODES_IN_USE}
    return next((one for one in report.modes if one.is_present and one.mode in names), None)


doctor.add_command(gpu)
doctor.add_command(site)
