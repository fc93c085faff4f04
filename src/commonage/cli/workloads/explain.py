"""`commonage explain`: explains why a workload waits, or when a request could start."""

from __future__ import annotations

from typing import Any

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect, find_workload
from commonage.cli.credentials import Server
from commonage.cli.workloads import usage_reports
from commonage.cli.workloads.request import message, request_fields, request_options


@click.command
@click.argument("workload", metavar="[ID]", required=False)
@request_options
@click.option("--kind", type=click.Choice(["job", "session"]), default="job", help="Kind of workload of the request.")
@as_json
@calls_server
def explain(server: Server, workload: str | None, as_json: bool, **options: Any) -> None:
    """Explain why a workload waits and when it starts, or whether a request could start now.

    \b
    Examples:
      commonage explain 7k2v
      commonage explain --gpus 12GiB --time 2h
    """
    given = request_fields(options)
    if workload is not None and given:
        raise click.UsageError("give either an id or a request")
    with connect(server) as client:
        usage_report = None
        if workload is not None:
            found = client.workload(find_workload(client, workload).id)
            explanation, usage_report = client.explain(found.id), usage_reports.summary(found)
        else:
            command = ["true"] if options["kind"] == "job" else []
            explanation = client.dry_run(message({**given, "kind": options["kind"], "command": command}))
    if as_json:
        output.print_json(explanation)
    else:
        lines = output.explanation(explanation)
        click.echo("\n".join([*lines, f"It {usage_report}."] if usage_report else lines))
