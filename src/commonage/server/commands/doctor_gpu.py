"""`commonage doctor gpu`: whether shares of this machine's cards hold, tried for real."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from commonage.domain.errors import CommonageError
from commonage.domain.fleet import Isolation
from commonage.gpus.record import record as record_cards
from commonage.server.commands.common import Failure, as_json, reads_settings
from commonage.server.gpu_doctor import look, try_all
from commonage.server.gpu_trials import Trial
from commonage.server.settings_sources import Resolved

HELD, BROKEN, NOTHING_TRIED = 0, 1, 2


@click.command("gpu")
@click.option(
    "--level",
    "levels",
    multiple=True,
    type=click.Choice([level.value for level in Isolation]),
    help="Only this level; may be given again.",
)
@click.option("--record", type=click.Path(path_type=Path), metavar="FILE", help="Also write what the cards tell.")
@as_json
@reads_settings
def gpu(resolved: Resolved, levels: Sequence[str], record: Path | None, as_json: bool) -> None:
    """Try on this machine's cards, which nobody may use meanwhile, whether a share holds.

    At each level of isolation a program takes memory beyond its share, looks for other cards, and tries to escape with
    an empty environment and in another control group, while a neighbour computes. Exit code 1 if a level does not hold
    what it promises, 2 if nothing could be tried.

    \b
    Example:
      commonage doctor gpu
      commonage doctor gpu --level mps --json
    """
    try:
        found = look(resolved.settings.gpus)
        if record is not None:
            _record(record)
    except CommonageError as error:
        raise Failure(error.message) from None
    if not found.cards:
        click.echo(f"There is no real card here, so nothing can be tried. {found.said}", err=True)
        sys.exit(NOTHING_TRIED)
    trials = []
    if not as_json:
        click.echo(found.said)
    for trial in try_all(found, [Isolation(level) for level in levels] or tuple(Isolation)):
        trials.append(trial)
        if not as_json:
            _print(trial, trials[-2] if len(trials) > 1 else None)
    if as_json:
        click.echo(json.dumps([asdict(trial) for trial in trials], indent=2, ensure_ascii=False))
    sys.exit(exit_code(trials))


def exit_code(trials: Sequence[Trial]) -> int:
    """0: all that is promised held; 1: something did not; 2: nothing could be tried."""
    if any(trial.is_broken for trial in trials):
        return BROKEN
    return HELD if any(trial.held is not None for trial in trials) else NOTHING_TRIED


def _print(trial: Trial, before: Trial | None) -> None:
    if before is None or (before.device, before.level) != (trial.device, trial.level):
        click.echo(f"\nGPU {trial.label}: {trial.model}, {trial.level}")
    click.echo(f"  {_mark(trial)}  {trial.check}: {trial.found}")


def _mark(trial: Trial) -> str:
    if trial.held is None:
        return click.style("not tried   ", fg="yellow")
    if trial.held:
        return click.style("held        ", fg="green")
    if trial.promised:
        return click.style("DID NOT HOLD", fg="red", bold=True)
    return "not promised"


def _record(file: Path) -> None:
    """Write what the driver tells of the cards, for tests elsewhere."""
    try:
        written = record_cards(file)
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error}") from None
    click.echo(f"{len(written['calls'])} answers of {len(written['devices'])} GPUs are in {file}", err=True)
