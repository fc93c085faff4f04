"""How things look in a terminal: quantities, times, states, tables, JSON. Used by every verb that shows something."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.table import Table

    from commonage.wire.workloads import ExplanationOut, ShareOut, WorkloadOut

_WIDTH_OF_A_PIPE = 200  # nobody folds lines there
STATE_STYLES = {
    "held": "dim", "queued": "yellow", "starting": "cyan", "running": "green", "succeeded": "bold green",
    "failed": "bold red", "timed_out": "red", "lost": "red", "stopped": "magenta",
    "ready": "green", "draining": "yellow", "faulty": "red", "building": "cyan", "absent": "dim",
}  # fmt: skip


def console(*, err: bool = False) -> Console:
    """A console on stdout (or stderr); plain text where it is no terminal."""
    from rich.console import Console

    wide = Console(stderr=err, highlight=False)
    return wide if wide.is_terminal else Console(stderr=err, highlight=False, width=_WIDTH_OF_A_PIPE)


def print_json(value: BaseModel | Sequence[BaseModel] | dict[str, Any]) -> None:
    """The message (or messages, as a list) as JSON on stdout."""
    if isinstance(value, dict):
        plain: Any = value
    elif isinstance(value, Sequence):
        plain = [one.model_dump(mode="json") for one in value]
    else:
        plain = value.model_dump(mode="json")
    click.echo(json.dumps(plain, indent=2, ensure_ascii=False))


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """An empty table with these headings; those in `right` hold figures."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def state(name: str) -> str:
    """A state, in its colour."""
    style = STATE_STYLES.get(name, "")
    shown = name.replace("_", " ")
    return f"[{style}]{shown}[/]" if style else shown


def text(value: str) -> str:
    """Text of others, so that brackets in it are no mark-up and control characters do nothing."""
    from rich.markup import escape

    return escape("".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in value))


def memory(mib: float) -> str:
    """`512 MiB`, `6 GiB`, `1.5 GiB`."""
    return f"{mib:.0f} MiB" if mib < 1024 else f"{round(mib / 1024, 1):g} GiB"


def cpus(milli: int) -> str:
    """`2`, `0.5`."""
    return f"{milli / 1000:g}"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    minutes = total // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def since(at: float | None) -> str:
    """How long ago, nothing for never."""
    return "" if at is None else duration(time.time() - at)


def clock(at: float) -> str:
    """A time of day, with the date if it is not today."""
    then = time.localtime(at)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)


def shares(held: Sequence[ShareOut]) -> str:
    """The parts of GPUs held, with the level that holds them; a simulated one says so."""
    return ", ".join(f"{memory(share.memory_mib)} of GPU {share.label or share.index}{_level(share)}" for share in held)


def _level(share: ShareOut) -> str:
    if share.simulated:
        return " (simulated)"
    return "" if share.whole and share.isolation != "mig" else f" ({share.isolation})"


def where(workload: WorkloadOut) -> str:
    """Where it runs and what it holds there, or why it does not."""
    if workload.state == "running":
        address = workload.internal_url if workload.kind == "service" else None
        parts = (workload.node, shares(workload.shares), address)
        return ": ".join(part for part in parts if part)
    said = " ".join(one.message for one in (workload.reason, *workload.notes))
    return said if workload.position is None else f"Position {workload.position}. {said}"


def explanation(said: ExplanationOut) -> list[str]:
    """An explanation as lines to read."""
    lines = [said.summary]
    if said.jobs_ahead:
        lines.append(f"Ahead of it: {'; '.join(one.text for one in said.jobs_ahead)}.")
    if said.position is not None:
        lines += [f"- {one.message}" for one in said.reasons[1:]]
    for holder in said.holders:
        ends = f", until {clock(holder.ends_at)} at the latest" if holder.ends_at else ""
        name = f" {holder.name}" if holder.name else ""  # of other people's work it is not told
        lines.append(f"The {holder.kind}{name} of {holder.owner} holds {holder.holds} on {holder.node}{ends}.")
    if said.fits_now and not said.startable_now:
        lines.append(f"This would start now: {said.fits_now}.")
    if said.expected_start_at is not None and not said.startable_now:
        lines.append(_expected(said, said.expected_start_at))
    elif said.basis and said.position is not None and not said.startable_now:
        lines.append(said.basis.message)
    return lines


def _expected(said: ExplanationOut, at: float) -> str:
    """When it starts, how sure that is, and why."""
    basis = f" {said.basis.message}" if said.basis else ""
    if said.confidence == "limits":
        sooner = f"; likely {clock(said.earliest_start_at)}" if said.earliest_start_at else ""
        return f"Expected start: {clock(at)} at the latest{sooner}, unless somebody comes ahead.{basis}"
    between = ""
    if said.earliest_start_at and said.latest_start_at and said.latest_start_at > said.earliest_start_at:
        between = f" (between {clock(said.earliest_start_at)} and {clock(said.latest_start_at)})"
    return (
        f"Expected start: {'a guess, ' if said.confidence == 'guess' else 'likely '}about {clock(at)}{between}.{basis}"
    )
