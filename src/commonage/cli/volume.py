"""`commonage volume`: data that workloads may have, and the room one's home takes."""

from __future__ import annotations

import click

from commonage.cli import show
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server


@click.group
def volume() -> None:
    """List data that workloads may have.

    \b
    Example:
      commonage volume ls
    """


@volume.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List the volumes, whether they can be written to, and where a workload finds them; and how full your home is.

    Ask for one with `commonage run --volume NAME`, or `NAME:rw` to write to it.

    \b
    Example:
      commonage volume ls --json
    """
    with connect(server) as client:
        found = client.volumes()
    if as_json:
        show.print_json(found)
        return
    made = show.table("NAME", "TITLE", "KIND", "MODE", "SIZE", "WHERE", "NOTES", right=("SIZE",))
    for one in found.items:
        notes = ["unasked for"] if one.always else []
        notes += ["counts as memory"] if one.in_memory else []
        made.add_row(
            show.text(one.name),
            show.text(one.title if one.title != one.name else one.description),
            one.kind,
            "ro, rw" if one.writable and one.kind != "scratch" else "rw" if one.writable else "ro",
            "" if one.size_mib is None else show.memory(one.size_mib),
            show.text(one.place),
            show.text("; ".join([*notes, *one.notes])),
        )
    if found.items:
        show.console().print(made)
    else:
        click.echo("There are no volumes.")
    if found.home is not None:
        click.echo(found.home.text)
