"""`commonage env`: the catalogue of environments."""

from __future__ import annotations

import click

from commonage.cli import show
from commonage.cli.connection import as_json, asks_server, connect
from commonage.cli.credentials import Server


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
    made = show.table("NAME", "TITLE", "FOR", "STATE", "HAS")
    for one in found:
        progress = "" if one.progress is None else f" {one.progress:.0%}"
        made.add_row(
            show.text(one.name),
            show.text(one.title),
            ", ".join(one.kinds),
            f"{show.state(one.state)}{progress}{f' [dim]{show.text(one.detail)}[/]' if one.detail else ''}",
            show.text(", ".join(one.requirements)),
        )
    show.console().print(made)
