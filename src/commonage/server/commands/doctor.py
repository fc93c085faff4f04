"""`commonage doctor`: checks this machine and its server."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import get_args

import click

from commonage.server.commands.common import as_json, reads_settings
from commonage.server.commands.doctor_gpu import gpu
from commonage.server.doctor.checks import examine
from commonage.server.settings.settings import Settings
from commonage.server.settings.sources import Resolved

_ENGINES = get_args(Settings.model_fields["engine"].annotation)
_MARKS = {
    "ok": click.style("ok  ", fg="green"),
    "note": click.style("note", fg="yellow"),
    "bad": click.style("BAD ", fg="red"),
}


@click.group(invoke_without_command=True)
@click.option("--engine", type=click.Choice(_ENGINES), help="Check for this engine.  [default: the setting]")
@as_json
@reads_settings
@click.pass_context
def doctor(context: click.Context, resolved: Resolved, engine: str | None, as_json: bool) -> None:
    """Check this machine and its server, and suggest fixes. Exit code 1 if a check fails.

    `commonage doctor gpu` tests whether GPU shares hold.

    \b
    Examples:
      commonage doctor --data-dir .commonage
      commonage doctor --engine docker
    """
    if context.invoked_subcommand is not None:
        return
    settings = resolved.settings
    findings = examine(settings if engine is None else settings.model_copy(update={"engine": engine}))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        for one in findings:
            click.echo(f"{_MARKS[one.verdict]}  {one.check:<14} {one.found}")
            if one.advice:
                click.echo(f"      {'':<14} → {one.advice}")
    sys.exit(1 if any(finding.verdict == "bad" for finding in findings) else 0)


doctor.add_command(gpu)
