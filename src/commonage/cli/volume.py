"""`commonage volume`: the volumes that workloads can request, and the size of your home."""

from __future__ import annotations

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server


@click.group
def volume() -> None:
    """List the volumes that workloads can request.

    \b
    Example:
      commonage volume ls
    """


@volume.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List the volumes with their modes and paths, and show the size of your home.

    Request a volume with `commonage run --volume NAME`, or `NAME:rw` to write to it.

    \b
    Example:
      commonage volume ls --json
    """
    with connect(server) as client:
        found = client.volumes()
    if as_json:
        output.print_json(found)
        return
    table = output.table("NAME", "TITLE", "KIND", "MODE", "SIZE", "PATH", "NOTES", right=("SIZE",))
    for one in found.items:
        notes = ["always mounted"] if one.always else []
        notes += ["counts as memory"] if one.in_memory else []
        table.add_row(
            output.text(one.name),
            output.text(one.title if one.title != one.name else one.description),
            one.kind,
            "ro, rw" if one.writable and one.kind != "scratch" else "rw" if one.writable else "ro",
            "" if one.size_mib is None else output.memory(one.size_mib),
            output.text(one.place),
            output.text("; ".join([*notes, *one.notes])),
        )
    if found.items:
        output.console().print(table)
    else:
        click.echo("No volumes.")
    if found.home is not None:
        click.echo(found.home.text)
