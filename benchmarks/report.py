"""Measured figures, printed as a table or JSON together with a description of this machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


class BenchmarkError(click.ClickException):
    """The benchmark cannot run: a server does not start, or a workload fails. Exit code 1."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value and how it was measured. `baseline` is the same value of another system, from the same run."""

    name: str
    value: float
    unit: str
    how: str
    baseline: float | None = None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def node() -> str:
    """Cores, memory, kernel and Python of this machine, in a line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = f" ({named[0]})" if named else ""
    return (
        f"{os.cpu_count()} cores{model}, {memory:.0f} GiB, {platform.system()} {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def progress(line: str) -> None:
    """Print a progress line to stderr."""
    click.echo(f"  {line} …", err=True)


def show(title: str, figures: Sequence[Figure], *, as_json: bool) -> str:
    """The figures as text to print."""
    if as_json:
        return json.dumps({"title": title, "node": node(), "figures": [asdict(one) for one in figures]}, indent=2)
    baselines = any(one.baseline is not None for one in figures)
    lines = [f"{title} on {node()}", ""]
    head = "| figure | value | " + ("baseline | ratio | " if baselines else "") + "how |"
    lines += [head, "|" + "---|" * head.count(" | ") + "---|"]
    for one in figures:
        middle = ""
        if baselines:
            ratio = f"{one.value / one.baseline:.2f}" if one.baseline else ""
            middle = f"{_amount(one.baseline, one.unit)} | {ratio} | " if one.baseline is not None else "| | "
        lines.append(f"| {one.name} | {_amount(one.value, one.unit)} | {middle}{one.how} |")
    return "\n".join(lines)


def _amount(value: float, unit: str) -> str:
    return f"{value:.4g} {unit}".rstrip()
