"""`commonage replay`: the past played again, as it is ruled now and as it could be. The playing is `replay`'s work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from commonage.domain.errors import CommonageError, InvalidInput
from commonage.domain.nodes import Node
from commonage.domain.quantities import format_duration, parse_duration
from commonage.domain.tenants import Rules
from commonage.replay.chart import ReplayRun, page
from commonage.replay.clusters import all_ready, parse_cluster, with_more_devices, with_more_nodes
from commonage.replay.figures import percentile
from commonage.replay.history import read_history
from commonage.replay.play import play, runnable_records
from commonage.replay.policies import maker_of
from commonage.replay.records import Records, read_trace
from commonage.scheduler.policies.registry import DEFAULT, POLICIES, Maker
from commonage.server.bootstrap import catalogue_of, database_of
from commonage.server.commands.common import Failure, as_json, reads_settings
from commonage.server.control_settings import rules_of
from commonage.server.engines import SITE
from commonage.server.settings.rules import BoundsEntry
from commonage.server.settings.sources import Resolved
from commonage.store.sql_store import SqlStore

WIDTH_OF_A_PIPE = 160
MOST_SETTINGS = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """The options: what to play, and what if. `last` is in seconds, `limits` a factor."""

    trace: Path | None
    history: bool
    cluster: str | None
    policies: dict[str, Maker]
    gpus: int
    nodes: int
    quotas: list[tuple[str, BoundsEntry]]
    last: float | None
    limits: float | None


@dataclass(frozen=True, slots=True)
class Variant:
    """A setting to play: under these rules, on these nodes."""

    name: str
    rules: Rules
    nodes: tuple[Node, ...]


def _quotas(
    _context: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> list[tuple[str, BoundsEntry]]:
    found = []
    for text in texts:
        tenant, equals, bounds = text.partition("=")
        pairs = dict((part.strip().partition(":")[::2]) for part in bounds.split(","))
        try:
            if not equals or not tenant:
                raise ValueError
            found.append((tenant.strip(), BoundsEntry.model_validate(pairs)))
        except (ValidationError, ValueError):
            raise click.BadParameter(
                f"{text!r} is none; write TENANT=gpus:4,cpus:64,memory:256GiB,vram:80GiB"
            ) from None
    return found


def _policies(_context: click.Context, _parameter: click.Parameter, text: str | None) -> dict[str, Maker]:
    names = [] if text is None else list(dict.fromkeys(name.strip() for name in text.split(",")))
    if len(names) > MOST_SETTINGS - 1:
        raise click.BadParameter(f"{len(names)} are too many to set side by side; name at most {MOST_SETTINGS - 1}")
    try:
        return {name: maker_of(name, POLICIES) for name in names}
    except InvalidInput as error:
        raise click.BadParameter(error.message) from None


def _span(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else float(parse_duration(text, field="--last"))
    except InvalidInput as error:
        raise click.BadParameter(error.message) from None


@click.command
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="A list of the openb trace, with times.")
@click.option("--history", is_flag=True, help="What this installation has run.")
@click.option("--cluster", metavar="NODESxDEVICES", help="Nodes: 8x8, 4x2x80GiB:A100.  [default: 8x8, or one's own]")
@click.option(
    "--policy",
    "policies",
    callback=_policies,
    metavar="NAME,…",
    help="What if this placement policy had been used: best-fit, spread, expected-waste, or module:name.",
)
@click.option(
    "--gpus", type=click.IntRange(-4096, 4096), default=0, metavar="+N", help="What if there were N GPUs more."
)
@click.option("--nodes", type=click.IntRange(-1024, 1024), default=0, metavar="+N", help="… or N nodes more.")
@click.option(
    "--quota", "quotas", multiple=True, callback=_quotas, metavar="TENANT=gpus:4", help="… or a tenant had this quota."
)
@click.option("--last", callback=_span, metavar="TIME", help="Only what was submitted in the last, say, 30d.")
@click.option(
    "--limits",
    type=click.FloatRange(1, 1000),
    metavar="FACTOR",
    help="Give what has no time limit one of FACTOR times its length.",
)
@click.option("--chart", type=click.Path(path_type=Path), metavar="FILE.html", help="Write a page with a chart.")
@as_json
@reads_settings
def replay(resolved: Resolved, as_json: bool, chart: Path | None, **options: Any) -> None:
    """Play the past again: who would have waited how long under another policy, quota, or with more GPUs.

    The same planner on a clock that jumps. The first line is how things are ruled now, the others what you ask about.

    \b
    Example:
      commonage replay --history --last 30d --gpus +1
      commonage replay --trace openb_pod_list_default.csv --policy spread,best-fit --chart waits.html
      commonage replay --history --policy quiet:Quiet
    """
    asked = Asked(**options)
    if asked.history == (asked.trace is not None):
        raise click.UsageError("say what to play: --history, or --trace FILE")
    try:
        records, nodes, rules = _past(resolved, asked)
        records = runnable_records(records.of_the_last(asked.last), nodes).with_limits(asked.limits)
        if not records.items:
            raise InvalidInput(". ".join(["there is nothing to play", *records.notes]), field="trace")
        runs = _played(records, _variants(rules, nodes, asked), {**POLICIES, **asked.policies})
    except CommonageError as error:
        raise Failure(error.message) from None
    if chart is not None:
        _write(chart, records, runs)
    if as_json:
        found = [{"setting": run.name, **run.figures.as_json()} for run in runs]
        click.echo(json.dumps({"notes": records.notes, "then": _then(records), "settings": found}, indent=2))
    else:
        _show(records, runs)


def _past(resolved: Resolved, asked: Asked) -> tuple[Records, tuple[Node, ...], Rules]:
    if asked.trace is not None:
        return read_trace(asked.trace), parse_cluster(asked.cluster or "8x8"), Rules()
    settings = resolved.settings
    rules = rules_of(settings, [one.name for one in catalogue_of(settings)], [SITE])

    async def read() -> tuple[Records, tuple[Node, ...]]:
        store = SqlStore(database_of(settings, settings.data_dir))
        await store.open()
        try:
            return await read_history(store), all_ready(await store.nodes())
        finally:
            await store.close()

    records, nodes = asyncio.run(read())
    return records, parse_cluster(asked.cluster) if asked.cluster else nodes, rules


def _variants(rules: Rules, nodes: tuple[Node, ...], asked: Asked) -> list[Variant]:
    """As it is, and with what was asked about: once for each policy named."""
    policy = rules.policy or DEFAULT
    wished = with_more_nodes(with_more_devices(nodes, asked.gpus), asked.nodes)
    tenants = {one.name: one for one in rules.tenants}
    for name, entry in asked.quotas:
        before = rules.tenant(name)
        tenants[name] = replace(before, quota=replace(before.quota, nominal=entry.bounds()))
    changes = [f"{count:+} {what}" for count, what in ((asked.gpus, "GPUs"), (asked.nodes, "nodes")) if count]
    changes += [f"quota of {name}" for name, _ in asked.quotas]
    variants = [Variant(f"as it is ({policy})", replace(rules, policy=policy), nodes)]
    for name in list(asked.policies) or ([policy] if changes else []):
        if name != policy or changes:
            ruled = replace(rules, policy=name, tenants=tuple(tenants.values()))
            variants.append(Variant(", ".join([name, *changes]), ruled, wished))
    return variants


def _played(records: Records, variants: Sequence[Variant], policies: Mapping[str, Maker]) -> list[ReplayRun]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    runs = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for variant in variants:
            bar = progress.add_task(variant.name, total=len(records.items))
            tell = partial(_tell, progress, bar)
            played = play(records.items, variant.nodes, variant.rules, tell, policies)
            runs.append(ReplayRun(variant.name, played.figures, played.samples, played.capacity))
    return runs


def _tell(progress: Progress, bar: TaskID, ended: int) -> None:
    progress.update(bar, completed=ended)


def _then(records: Records) -> dict[str, float] | None:
    """What was waited in truth, in seconds, where that is known."""
    waits = [one.waited_s for one in records.items if one.waited_s is not None]
    return {"wait_p50_s": percentile(waits, 50), "wait_p95_s": percentile(waits, 95)} if waits else None


def _write(chart: Path, records: Records, runs: Sequence[ReplayRun]) -> None:
    try:
        chart.write_text(page("The past, played again", _said(records), runs), encoding="utf-8")
    except OSError as error:
        raise Failure(f"{chart} cannot be written: {error.strerror}") from None


def _said(records: Records) -> list[str]:
    days = (records.items[-1].submitted_at - records.items[0].submitted_at) / 86_400
    said = [f"{len(records.items)} workloads of {days:.1f} days.", *(f"{note}." for note in records.notes)]
    then = _then(records)
    if then is not None:
        words = f"{format_duration(then['wait_p50_s'])} (p50) and {format_duration(then['wait_p95_s'])} (p95)"
        said.append(f"In truth they waited {words}.")
    return said


def _show(records: Records, runs: Sequence[ReplayRun]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_OF_A_PIPE)
    for line in _said(records):
        console.print(line)
    table = Table(box=None, header_style="bold")
    table.add_column("setting")
    for title in ("wait p50", "p95", "mean", "GPUs used", "cores used", "preempted", "fairness", "makespan"):
        table.add_column(title, justify="right")
    for run in runs:
        one = run.figures
        waits = (format_duration(wait) for wait in (one.wait_p50_s, one.wait_p95_s, one.wait_mean_s))
        used = (f"{one.gpu_utilisation:.1%}", f"{one.cpu_utilisation:.1%}", str(one.preemptions), f"{one.fairness:.3f}")
        table.add_row(run.name, *waits, *used, format_duration(one.makespan_s))
    console.print(table)
    if len(runs[0].figures.tenants) > 1:
        console.print(_by_tenant(runs))
    left = [f"{run.name}: {run.figures.unfinished} could never start there" for run in runs if run.figures.unfinished]
    for line in left:
        console.print(line)


def _by_tenant(runs: Sequence[ReplayRun]) -> Table:
    """Waits p50 / p95 of each tenant, a column for each setting."""
    table = Table(box=None, header_style="bold")
    table.add_column("tenant")
    table.add_column("workloads", justify="right")
    for run in runs:
        table.add_column(run.name, justify="right")
    for number, tenant in enumerate(runs[0].figures.tenants):
        cells = []
        for run in runs:
            one = run.figures.tenants[number]
            cells.append(f"{format_duration(one.wait_p50_s)} / {format_duration(one.wait_p95_s)}")
        table.add_row(tenant.tenant, str(tenant.workloads), *cells)
    return table
