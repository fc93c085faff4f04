"""`commonage env`: the catalogue of environments."""

from __future__ import annotations

import re

import click

from commonage.cli import show
from commonage.cli.connection import as_json, asks_server, connect
from commonage.cli.credentials import Server

_NAMED = 6
_NAME = re.compile(r"[^A-Za-z0-9._-]")


@click.group
def env() -> None:
    """List what workloads can run in.

    \b
    Example:
      commonage env ls
    """


@env.command("ls")
@as_json
@asks_server
def ls(server: Server, as_json: bool) -> None:
    """List the environments, and whether they stand ready.

    \b
    Example:
      commonage env ls --json
    """
    with connect(server) as client:
        found = client.environments()
    if as_json:
        show.print_json(found)
        return
    made = show.table("NAME", "TITLE", "FOR", "STATE", "WHAT")
    for one in found:
        progress = "" if one.progress is None else f" {one.progress:.0%}"
        made.add_row(
            show.text(one.name),
            show.text(one.title),
            ", ".join(one.kinds),
            f"{show.state(one.state)}{progress}{f' [dim]{show.text(one.detail)}[/]' if one.detail else ''}",
            show.text(one.description or _has(one.requirements)),
        )
    show.console().print(made)


def _has(requirements: list[str]) -> str:
    """The first few, without versions and hashes; --json has them whole."""
    names = [_NAME.split(one.strip(), maxsplit=1)[0] for one in requirements]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
