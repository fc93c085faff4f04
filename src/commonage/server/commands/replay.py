"""`commonage replay`: simulates past workloads, with the present rules and with other ones."""

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

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Node
from commonage.domain.requests import format_duration, parse_duration
from commonage.domain.resources import Platform
from commonage.domain.tenants import Rules
from commonage.replay.chart import ReplayRun, page
from commonage.replay.clusters import all_ready, parse_cluster, with_more_devices, with_more_nodes
from commonage.replay.figures import percentile
from commonage.replay.play import play, runnable_records
from commonage.replay.policies import maker_of
from commonage.replay.records import Records, read_history, read_trace
from commonage.resources.scheduling import BoundsEntry
from commonage.scheduler.policies.registry import DEFAULT, POLICIES, Maker
from commonage.server.bootstrap import database_of
from commonage.server.commands.common import Failure, as_json, reads_settings
from commonage.server.configure import rules_of
from commonage.server.platform import stored_platform
from commonage.server.settings.settings import Resolved
from commonage.store.sql_store import SqlStore

_PIPE_WIDTH = 160
MAX_VARIANTS = 8


@dataclass(frozen=True, slots=True)
class Options:
    """The options. `last` is in seconds, `limits` a factor."""

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
                f"{text!r} is not a quota. Write TENANT=gpus:4,cpus:64,memory:256GiB,vram:80GiB."
            ) from None
    return found


def _policies(_context: click.Context, _parameter: click.Parameter, text: str | None) -> dict[str, Maker]:
    names = [] if text is None else list(dict.fromkeys(name.strip() for name in text.split(",")))
    if len(names) > MAX_VARIANTS - 1:
        raise click.BadParameter(f"{len(names)} are too many to compare. Name at most {MAX_VARIANTS - 1}.")
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
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Replay this trace, a CSV file of openb with times.",
)
@click.option("--history", is_flag=True, help="Replay the workloads of this installation.")
@click.option(
    "--cluster",
    metavar="NODESxDEVICES",
    help="Nodes: 8x8, 4x2x80GiB:A100.  [default: 8x8 for a trace, else the present nodes]",
)
@click.option(
    "--policy",
    "policies",
    callback=_policies,
    metavar="NAME,…",
    help="Compare with these placement policies: best-fit, spread, expected-waste, or module:name.",
)
@click.option("--gpus", type=click.IntRange(-4096, 4096), default=0, metavar="+N", help="Compare with N more GPUs.")
@click.option("--nodes", type=click.IntRange(-1024, 1024), default=0, metavar="+N", help="Compare with N more nodes.")
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    callback=_quotas,
    metavar="TENANT=gpus:4",
    help="Compare with this quota of a tenant. Repeatable.",
)
@click.option(
    "--last",
    callback=_span,
    metavar="TIME",
    help="Only workloads submitted in this last period of the records, like 30d.",
)
@click.option(
    "--limits",
    type=click.FloatRange(1, 1000),
    metavar="FACTOR",
    help="Time limit for workloads that have none: FACTOR times their run time.",
)
@click.option("--chart", type=click.Path(path_type=Path), metavar="FILE.html", help="Write an HTML page with a chart.")
@as_json
@reads_settings
def replay(resolved: Resolved, as_json: bool, chart: Path | None, **options: Any) -> None:
    """Simulate past workloads, to compare waiting times with other policies, quotas or more GPUs.

    Uses the real scheduler with a simulated clock. The first row has the present settings, the others your changes.

    \b
    Examples:
      commonage replay --history --last 30d --gpus +1
      commonage replay --trace openb_pod_list_default.csv --policy spread,best-fit --chart waits.html
      commonage replay --history --policy quiet:Quiet
    """
    chosen = Options(**options)
    if chosen.history == (chosen.trace is not None):
        raise click.UsageError("give either --history or --trace FILE")
    records, nodes, rules = _past(resolved, chosen)
    records = runnable_records(records.of_the_last(chosen.last), nodes).with_limits(chosen.limits)
    if not records.items:
        raise InvalidInput(". ".join(["no workloads to replay", *records.notes]), field="trace")
    runs = _played(records, _variants(rules, nodes, chosen), {**POLICIES, **chosen.policies})
    if chart is not None:
        _write(chart, records, runs)
    if as_json:
        found = [{"setting": run.name, **run.figures.as_json()} for run in runs]
        click.echo(json.dumps({"notes": records.notes, "then": _then(records), "settings": found}, indent=2))
    else:
        _show(records, runs)


def _past(resolved: Resolved, options: Options) -> tuple[Records, tuple[Node, ...], Rules]:
    if options.trace is not None:
        return read_trace(options.trace), parse_cluster(options.cluster or "8x8"), Rules()
    settings = resolved.settings

    async def read() -> tuple[Records, tuple[Node, ...], Platform]:
        store = SqlStore(database_of(settings, settings.data_dir))
        await store.open()
        try:
            platform = stored_platform(settings, await store.resources())
            return await read_history(store), all_ready(await store.nodes()), platform
        finally:
            await store.close()

    records, nodes, platform = asyncio.run(read())
    rules = replace(rules_of(settings), tenants=platform.tenants)
    return records, parse_cluster(options.cluster) if options.cluster else nodes, rules


def _variants(rules: Rules, nodes: tuple[Node, ...], options: Options) -> list[Variant]:
    """The present rules, then the changes: once for each policy."""
    policy = rules.policy or DEFAULT
    changed = with_more_nodes(with_more_devices(nodes, options.gpus), options.nodes)
    tenants = {one.name: one for one in rules.tenants}
    for name, entry in options.quotas:
        before = rules.tenant(name)
        tenants[name] = replace(before, quota=replace(before.quota, nominal=entry.bounds()))
    changes = [f"{count:+} {what}" for count, what in ((options.gpus, "GPUs"), (options.nodes, "nodes")) if count]
    changes += [f"quota of {name}" for name, _ in options.quotas]
    variants = [Variant(f"present ({policy})", replace(rules, policy=policy), nodes)]
    for name in list(options.policies) or ([policy] if changes else []):
        if name != policy or changes:
            ruled = replace(rules, policy=name, tenants=tuple(tenants.values()))
            variants.append(Variant(", ".join([name, *changes]), ruled, changed))
    return variants


def _played(records: Records, variants: Sequence[Variant], policies: Mapping[str, Maker]) -> list[ReplayRun]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    runs = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for variant in variants:
            bar = progress.add_task(variant.name, total=len(records.items))
            on_progress = partial(_update, progress, bar)
            played = play(records.items, variant.nodes, variant.rules, on_progress, policies)
            runs.append(ReplayRun(variant.name, played.figures, played.samples, played.capacity))
    return runs


def _update(progress: Progress, bar: TaskID, ended: int) -> None:
    progress.update(bar, completed=ended)


def _then(records: Records) -> dict[str, float] | None:
    """The real waits in seconds, if they are known."""
    waits = [one.waited_s for one in records.items if one.waited_s is not None]
    return {"wait_p50_s": percentile(waits, 50), "wait_p95_s": percentile(waits, 95)} if waits else None


def _write(chart: Path, records: Records, runs: Sequence[ReplayRun]) -> None:
    try:
        chart.write_text(page("Replay of past workloads", _summary(records), runs), encoding="utf-8")
    except OSError as error:
        raise Failure(f"{chart} cannot be written: {error.strerror}") from None


def _summary(records: Records) -> list[str]:
    days = (records.items[-1].submitted_at - records.items[0].submitted_at) / 86_400
    lines = [f"{len(records.items)} workloads of {days:.1f} days.", *(f"{note}." for note in records.notes)]
    then = _then(records)
    if then is not None:
        words = f"{format_duration(then['wait_p50_s'])} (p50) and {format_duration(then['wait_p95_s'])} (p95)"
        lines.append(f"Real waits: {words}.")
    return lines


def _show(records: Records, runs: Sequence[ReplayRun]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    for line in _summary(records):
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
    left = [f"{run.name}: {run.figures.unfinished} could not start" for run in runs if run.figures.unfinished]
    for line in left:
        console.print(line)


def _by_tenant(runs: Sequence[ReplayRun]) -> Table:
    """Waits p50 / p95 of each tenant, a column for each simulation."""
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
