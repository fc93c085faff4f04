"""Formats output for the terminal: quantities, times, states, tables, JSON. Used by every command with output."""

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

    from commonage.wire.nodes import DeviceOut
    from commonage.wire.reasons import ReasonOut
    from commonage.wire.workloads import ExplanationOut, ShareOut, WorkloadOut

_PIPE_WIDTH = 200  # lines in a pipe are not folded
STATE_STYLES = {
    "held": "dim", "queued": "yellow", "starting": "cyan", "running": "green", "succeeded": "bold green",
    "failed": "bold red", "timed_out": "red", "lost": "red", "stopped": "magenta",
    "ready": "green", "draining": "yellow", "faulty": "red", "building": "cyan", "absent": "dim",
}  # fmt: skip


def console(*, err: bool = False) -> Console:
    """A console on stdout or stderr. It writes plain text if that is not a terminal."""
    from rich.console import Console

    screen = Console(stderr=err, highlight=False)
    return screen if screen.is_terminal else Console(stderr=err, highlight=False, width=_PIPE_WIDTH)


def messages(reasons: Iterable[ReasonOut]) -> str:
    return " ".join(reason.message for reason in reasons)


def print_json(value: object) -> None:
    """Print messages as JSON on stdout; a dictionary or list may contain messages."""

    def plain(message: BaseModel) -> Any:
        return message.model_dump(mode="json")

    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=plain))


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    from rich import box
    from rich.table import Table

    empty = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        empty.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return empty


def state(name: str) -> str:
    style, text = STATE_STYLES.get(name), name.replace("_", " ")
    return f"[{style}]{text}[/]" if style else text


def text(value: str) -> str:
    """Untrusted text as markup: brackets are escaped, control characters replaced."""
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
    """The time since then; empty for None."""
    return "" if at is None else duration(time.time() - at)


def clock(at: float) -> str:
    """The local time of day, with the date if it is not today."""
    then = time.localtime(at)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)


def shares(allocated: Sequence[ShareOut]) -> str:
    """The GPU shares of an allocation, with isolation level; simulated GPUs are marked."""
    return ", ".join(
        f"{memory(share.memory_mib)} of GPU {share.label or share.index}{_level(share)}" for share in allocated
    )


def _level(share: ShareOut) -> str:
    if share.simulated:
        return " (simulated)"
    return "" if share.whole and share.isolation != "mig" else f" ({isolation(share)})"


def isolation(of: ShareOut | DeviceOut) -> str:
    """The isolation level with its strength: `preload, soft`."""
    strength = of.strength.replace("-", " ")  # empty: the server is older
    return of.isolation if strength in ("", of.isolation) else f"{of.isolation}, {strength}"


def node_label(site: str | None, node: str | None) -> str:
    """The node as users read it: nodes of other sites with their site."""
    from commonage.wire.nodes import LOCAL_SITE  # pydantic takes long to import

    return f"{site}/{node}" if node and site not in (None, LOCAL_SITE) else node or ""


def node_or_reason(workload: WorkloadOut) -> str:
    """The node, allocation and notes of a running workload; for others the reason of the state."""
    if workload.state == "running":
        address = workload.url or workload.internal_url if workload.kind == "service" else None
        parts = (node_label(workload.site, workload.node), shares(workload.shares), address)
        place = ": ".join(part for part in parts if part)
        return f"{place}. {messages(workload.notes)}" if workload.notes else place
    reasons = messages((workload.reason, *workload.notes))
    return reasons if workload.position is None else f"Position {workload.position}. {reasons}"


def explanation(explained: ExplanationOut) -> list[str]:
    lines = [explained.summary]
    waits = not explained.startable_now
    if explained.jobs_ahead:
        lines.append(f"Jobs ahead: {'; '.join(group.text for group in explained.jobs_ahead)}.")
    if explained.position is not None:
        lines += [f"- {reason.message}" for reason in explained.reasons[1:]]
    for holder in explained.holders:
        ends = f", until {clock(holder.ends_at)} at the latest" if holder.ends_at else ""
        name = f" {holder.name}" if holder.name else ""  # hidden for workloads of other users
        who = f"The {holder.kind}{name} of {holder.owner} uses" if holder.owner else "Other tenants use"
        lines.append(f"{who} {holder.holds} on {holder.node}{ends}.")
    if explained.sites:
        lines.append("Sites:")
        lines += [f"  {site.site}: {site.reason.message}{_room(site.free_at)}" for site in explained.sites]
    if explained.fits_now and waits:
        lines.append(f"This would start now: {explained.fits_now}.")
    if explained.expected_start_at is not None and waits:
        lines.append(_expected(explained, explained.expected_start_at))
    elif explained.basis and explained.position is not None and waits:
        lines.append(explained.basis.message)
    return [*lines, *(quota.message for quota in explained.quotas)]


def _room(free_at: float | None) -> str:
    return "" if free_at is None else f" Room: {clock(free_at)} at the latest."


def _expected(explained: ExplanationOut, at: float) -> str:
    basis = f" {explained.basis.message}" if explained.basis else ""
    earliest, latest = explained.earliest_start_at, explained.latest_start_at
    if explained.confidence == "limits":
        likely = f"; likely {clock(earliest)}" if earliest else ""
        condition = "unless workloads with a higher priority arrive"
        return f"Expected start: {clock(at)} at the latest{likely}, {condition}.{basis}"
    between = f" (between {clock(earliest)} and {clock(latest)})" if earliest and latest and latest > earliest else ""
    certainty = "a guess, " if explained.confidence == "guess" else "likely "
    return f"Expected start: {certainty}about {clock(at)}{between}.{basis}"
