"""`commonage usage`: allocated resources over time, and their cost."""

from __future__ import annotations

import re
import time

import click

from commonage.cli import output
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server

_AGO = re.compile(r"(\d{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_FORMATS = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S")


class Instant(click.ParamType[float]):
    """A date (2026-11-01, optionally with a time), or an age (7d, 12h)."""

    name = "instant"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Unix seconds."""
        text = str(value).strip()
        ago = _AGO.fullmatch(text)
        if ago is not None:
            return time.time() - int(ago[1]) * _SECONDS[ago[2]]
        for one in _FORMATS:
            try:
                return time.mktime(time.strptime(text, one))
            except (ValueError, OverflowError):
                continue
        self.fail(f"{text!r} is not a time. Write 7d, 12h, 2026-11-01 or 2026-11-01T14:30.", param, ctx)


@click.command
@click.option(
    "--since",
    type=Instant(),
    default="30d",
    show_default=True,
    metavar="WHEN",
    help="Start: an age like 7d, or a date like 2026-11-01.",
)
@click.option("--until", type=Instant(), metavar="WHEN", help="End, in the same form.  [default: now]")
@click.option(
    "--by", type=click.Choice(["owner", "tenant", "workload", "environment"]), default="owner", show_default=True,
    help="Group by this.",
)  # fmt: skip
@as_json
@calls_server
def usage(server: Server, since: float, until: float | None, by: str, as_json: bool) -> None:
    """Show your usage and its cost. Admins see the usage of all users.

    Usage counts what was allocated, also if it was idle.

    \b
    Example:
      commonage usage --since 7d --by workload
    """
    with connect(server) as client:
        found = client.usage(since=since, until=until, by=by)
    if as_json:
        output.print_json(found)
        return
    if not found.items:
        click.echo("No usage in this time.", err=True)
        return
    priced = any(one.cost for one in found.items)
    figures = ["WORKLOADS", "GPU GiB h", "GPU h", "CORE h", "MEMORY GiB h", *(["COST"] if priced else [])]
    table = output.table(by.upper(), *figures, right=figures)
    for one in found.items:
        cost = [f"{one.cost:.2f} {found.currency}".strip()] if priced else []
        amounts = (one.gpu_gib_h, one.gpu_h, one.cpu_h, one.memory_gib_h)
        table.add_row(output.text(one.subject), str(one.workloads), *(_amount(amount) for amount in amounts), *cost)
    output.console().print(table)


def _amount(hours: float) -> str:
    """Three significant digits, without an exponent."""
    if not hours:
        return "0"
    if hours < 0.0001:
        return "<0.0001"
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.3g}"
