"""`commonage config`: shows the settings."""

from __future__ import annotations

import json

import click

from commonage.server.commands.common import as_json, reads_settings
from commonage.server.settings.show import shown
from commonage.server.settings.sources import Resolved


@click.command
@as_json
@reads_settings
def config(resolved: Resolved, as_json: bool) -> None:
    """Show every setting with its value and source. Passwords are hidden.

    \b
    Examples:
      commonage config
      COMMONAGE_PORT=9000 commonage config --json
    """
    rows = shown(resolved)
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=2, ensure_ascii=False))
        return
    values = [(row.name, _text(row.value), row.origin) for row in rows]
    widths = [max(len(row[column]) for row in values) for column in (0, 1)]
    for name, value, origin in values:
        click.echo(f"{name:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {origin}")
    if resolved.file is None:
        click.echo("No settings file was found.", err=True)


def _text(value: object) -> str:
    if value is None or value in ([], ""):
        return "-"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)
