"""`commonage info`: what this installation is, and who you are to it."""

from __future__ import annotations

import click

from commonage.cli import show
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server


@click.command
@as_json
@calls_server
def info(server: Server, as_json: bool) -> None:
    """Show what this installation is, and who you are to it.

    \b
    Example:
      commonage info --json
    """
    with connect(server) as client:
        found = client.info()
    if as_json:
        show.print_json(found)
        return
    counts = ", ".join(f"{number} {state}" for state, number in found.counts.items() if number) or "none"
    click.echo(f"{found.name} {found.version} at {server.url}")
    click.echo(f"You are {found.user}{', an admin' if found.admin else ''}.")
    click.echo(f"Engines: {', '.join(found.engines)}. Workloads: {counts}; {found.queue_length} in the queue.")
    if found.simulated_gpus:
        click.echo("GPUs are simulated: nothing is computed on them.")
    for note in found.notes:
        click.echo(f"- {note}")
