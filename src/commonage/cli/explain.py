"""`commonage explain`: why something waits, or what would become of a request."""

from __future__ import annotations

from typing import Any

import click

from commonage.cli import show, usage_reports
from commonage.cli.asks import message, of_request, request_options
from commonage.cli.connection import as_json, calls_server, connect, find_workload
from commonage.cli.credentials import Server


@click.command
@click.argument("workload", metavar="[ID]", required=False)
@request_options
@click.option("--kind", type=click.Choice(["job", "session"]), default="job", help="What the request would be for.")
@as_json
@calls_server
def explain(server: Server, workload: str | None, as_json: bool, **ask: Any) -> None:
    """Say why a workload waits and until when; or, for a request, whether it could start now.

    \b
    Example:
      commonage explain 7k2v
      commonage explain --gpus 12GiB --time 2h
    """
    given = of_request(ask)
    if workload is not None and given:
        raise click.UsageError("give an id or a request, not both")
    with connect(server) as client:
        usage_report = None
        if workload is not None:
            found = client.workload(find_workload(client, workload).id)
            said, usage_report = client.explain(found.id), usage_reports.used(found)
        else:
            command = ["true"] if ask["kind"] == "job" else []
            said = client.dry_run(message({**given, "kind": ask["kind"], "command": command}))
    if as_json:
        show.print_json(said)
    else:
        lines = show.explanation(said)
        click.echo("\n".join([*lines, f"It {usage_report}."] if usage_report else lines))
