"""`gpu`: all properties of shares that need a real GPU, in one report.

It calls the commands as people would: `doctor gpu` with `--record` and with `--measure`, and on a server of its own
`profile` and two trainings at once. What fails is part of the report; the rest goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.report import BenchmarkError, as_json, node, progress
from benchmarks.server import Served, command, server

WHAT = (
    ("Do shares hold?", "doctor gpu: beyond the share, other GPUs, escapes, at each level, on each GPU"),
    ("The GPUs' own answers", "doctor gpu --record: what NVML tells, for tests/data/nvml"),
    (
        "What sharing costs",
        "doctor gpu --measure: 2, 4, 8 shares against one workload; a neighbour of a greedy program",
    ),
    ("What to ask for", "profile of a training on a whole GPU"),
    ("Two trainings on one GPU", "two workloads with half a GPU each, at once, against one with a whole GPU"),
)
"""The parts of the report: title and command."""
_WITHIN_S = 3600
_TRAINING = str(Path(__file__).with_name("training.py"))
_TAIL = 40
# In some containers CUDA's library is found only by this variable; workloads need it, too.
_VARIABLES = ("-e", "LD_LIBRARY_PATH") if "LD_LIBRARY_PATH" in os.environ else ()


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the report: its lines of Markdown, and whether it succeeded."""

    title: str
    lines: tuple[str, ...]
    is_good: bool


@click.command
@click.option("--out", type=click.Path(path_type=Path), default="gpu-report.md", show_default=True, help="The report.")
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), default=20.0, show_default=True, help="Time for each figure."
)
@as_json
def gpu(out: Path, seconds: float, as_json: bool) -> None:
    """Do shares hold, and what do they cost? All measurements that need a real GPU, in one report.

    The GPUs must be unused meanwhile; it takes some minutes for each. Without a GPU, it lists the skipped measurements.
    Exit code 1 if a part of it failed.

    \b
    Example:
      sudo .venv/bin/python -m benchmarks gpu --out gpu-report.md
    """
    why = why_no_gpu()
    parts = [] if why else run(out, seconds)
    if as_json:
        click.echo(json.dumps({"node": node(), "why": why, "parts": [asdict(part) for part in parts]}, indent=2))
    elif why:
        click.echo(f"{why}\nWith a GPU this would be run and written to {out}:")
        for title, what in WHAT:
            click.echo(f"  {title:<25} {what}")
    else:
        for part in parts:
            click.echo(f"{'ok ' if part.is_good else 'BAD'}  {part.title}")
        click.echo(f"The report is in {out}.")
    if not all(part.is_good for part in parts):
        raise click.exceptions.Exit(1)


def why_no_gpu() -> str:
    """Empty if a real GPU is present; else the reason."""
    ended = _call("doctor", "gpu", "--level", "mig", "--json")
    return "" if ended.stdout.strip() else ended.stderr.strip() or f"exit code {ended.returncode}"


def run(out: Path, seconds: float) -> list[Part]:
    """All parts, in order; the report is rewritten after each, so that nothing is lost if a part hangs."""
    parts: list[Part] = []
    for make in (_doctor, _recorder, _shares, _on_a_server):
        for part in make(out, seconds):
            parts.append(part)
            out.write_text(report(parts), encoding="utf-8")
    return parts


def report(parts: Sequence[Part]) -> str:
    """The report as Markdown."""
    lines = ["# Shares of GPUs, measured", "", f"On {node()}, {time.strftime('%Y-%m-%d')}.", ""]
    for part in parts:
        lines += [f"## {part.title}", "", *part.lines, ""]
    return "\n".join(lines)


def _call(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command(), *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )


def _failed(title: str, ended: subprocess.CompletedProcess[str]) -> Part:
    said = (ended.stderr or ended.stdout).strip().splitlines()[-_TAIL:]
    return Part(title, (f"It failed with exit code {ended.returncode}:", "", "```", *said, "```"), is_good=False)


def _doctor(_out: Path, _seconds: float) -> list[Part]:
    title = WHAT[0][0]
    progress(WHAT[0][1])
    ended = _call("doctor", "gpu", "--json")
    try:
        trials = json.loads(ended.stdout)
    except ValueError:
        return [_failed(title, ended)]
    return [Part(title, tuple(trial_lines(trials)), ended.returncode == 0)]


def trial_lines(trials: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each trial."""
    lines = ["| GPU | level | a program tries to | outcome | found |", "|---|---|---|---|---|"]
    for one in trials:
        outcome = {True: "held", None: "not tried"}.get(one["held"], "**did not hold**")
        if one["held"] is False and not one["promised"]:
            outcome = "not promised"
        lines.append(
            f"| {one['index']}: {one['model']} | {one['level']} | {one['check']} | {outcome} | {one['found']} |"
        )
    return lines


def _recorder(out: Path, _seconds: float) -> list[Part]:
    title = WHAT[1][0]
    progress(WHAT[1][1])
    file = out.with_suffix(".nvml.json")
    ended = _call("doctor", "gpu", "--level", "cooperative", "--record", str(file))
    if not file.exists():
        return [_failed(title, ended)]
    return [Part(title, (f"They are in `{file.name}`; copy it to `tests/data/nvml`.",), is_good=True)]


def _shares(_out: Path, seconds: float) -> list[Part]:
    title = WHAT[2][0]
    progress(WHAT[2][1])
    ended = _call("doctor", "gpu", "--measure", "--seconds", str(seconds))
    return [_failed(title, ended) if ended.returncode else Part(title, tuple(ended.stdout.splitlines()), is_good=True)]


def _on_a_server(_out: Path, seconds: float) -> list[Part]:
    progress("starting a server for the rest")
    try:
        with server("--gpus", "nvml") as served:
            progress(WHAT[3][1])
            profiled = _profile(served, seconds)
            progress(WHAT[4][1])
            return [profiled, _trainings(served, seconds)]
    except BenchmarkError as error:
        return [Part(WHAT[3][0], (f"Cannot start a server: {error}",), is_good=False)]


def _ask(served: Served, *words: str) -> subprocess.CompletedProcess[str]:
    return _call(*words, COMMONAGE_URL=served.url, COMMONAGE_TOKEN=served.token)


def _train(seconds: float) -> tuple[str, ...]:
    return ("--", sys.executable, _TRAINING, "--seconds", str(seconds))


def _profile(served: Served, seconds: float) -> Part:
    title = WHAT[3][0]
    ended = _ask(served, "profile", "--no-files", *_VARIABLES, *_train(max(seconds, 20.0)))
    if ended.returncode:
        return _failed(title, ended)
    said = [line for line in ended.stderr.splitlines() if line.startswith("commonage: ")]
    return Part(title, ("```", *said, ended.stdout.strip(), "```"), is_good=True)


def _trainings(served: Served, seconds: float) -> Part:
    """One training on a whole GPU, then two at once on half a GPU each."""
    title = WHAT[4][0]
    with ThreadPoolExecutor(2) as pool:
        alone = _training(served, "1", seconds)
        both = list(pool.map(lambda _: _training(served, "0.5", seconds), range(2)))
    lines = [
        "| share | work by | steps a second | peak of PyTorch | loss, first and last | |",
        "|---|---|---|---|---|---|",
    ]
    for share, result in (("a whole GPU", alone), ("half a GPU", both[0]), ("half a GPU", both[1])):
        rate = result.get("steps", 0) / result["seconds"] if result.get("seconds") else 0.0
        losses = ", ".join(f"{loss:.4f}" for loss in result.get("losses", ()))
        peak = f"{result['peak_mib']} MiB" if "peak_mib" in result else ""
        lines.append(f"| {share} | {result.get('by', '')} | {rate:.1f} | {peak} | {losses} | {result['error']} |")
    return Part(title, tuple(lines), not any(result["error"] for result in (alone, *both)))


def _training(served: Served, gpus: str, seconds: float) -> dict[str, Any]:
    ended = _ask(served, "run", "--gpus", gpus, "--mem", "4GiB", "--no-files", *_VARIABLES, *_train(seconds))
    for line in reversed(ended.stdout.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {"error": (ended.stderr or ended.stdout).strip()[-300:] or f"exit code {ended.returncode}"}
