"""`commonage reservation`: room that is kept for a tenant in a window of time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonage.cli import show
from commonage.cli.asks import labels, with_units
from commonage.cli.connection import as_json, calls_server, connect
from commonage.cli.credentials import Server
from commonage.cli.failures import MISUSED, Failure

if TYPE_CHECKING:
    from commonage.wire.tenants import ReservationIn, ReservationOut


@click.group
def reservation() -> None:
    """List what is kept for whom and when; keep room for a class, or give it back.

    \b
    Example:
      commonage reservation ls
      commonage reservation add --tenant course --from "2026-11-24 14:00" --until 16:00 --count 50 --gpus 4GiB
    """


@reservation.command("ls")
@as_json
@calls_server
def ls(server: Server, as_json: bool) -> None:
    """List the reservations that are not over: those of your tenants, for admins all.

    \b
    Example:
      commonage reservation ls
    """
    with connect(server) as client:
        found = client.reservations()
    if as_json:
        show.print_json(found)
        return
    if not found:
        click.echo("Nothing is reserved.", err=True)
        return
    made = show.table("Id", "For", "From", "Until", "Times", "Each", "Title", right=("Times",))
    for one in found:
        whom = f"{one.owner} of {one.tenant}" if one.owner else one.tenant
        made.add_row(
            one.id, show.text(whom), _moment(one.starts_at), _moment(one.ends_at, after=one.starts_at), str(one.count),
            show.text(one.request.text), show.text(one.title),
        )  # fmt: skip
    show.console().print(made)
    for one in found:
        if one.reason:
            click.echo(f"Note: not all of {one.id} can be kept as things stand. {one.reason.message}", err=True)
    click.echo(f"Times are of {_zone_in_words()}.")


@reservation.command("add")
@click.option("--tenant", required=True, metavar="NAME", help="For its members.")
@click.option("--from", "starts_at", required=True, metavar="TIME", help='"2026-11-24 14:00", 14:00 (today) or now.')
@click.option("--until", "ends_at", required=True, metavar="TIME", help="16:00 is on the same day.")
@click.option("--count", type=click.IntRange(1, 10_000), default=1, metavar="N", help="For N workloads at once.")
@click.option("--gpus", metavar="SHARE", help="GPU for each, as for run: 4GiB, 0.25, 1, A100:1.")
@click.option("--cpus", metavar="N", help="Cores for each.")
@click.option("--mem", "memory", metavar="SIZE", help="Memory for each: 4GiB or 512MiB; 4096 is MiB.")
@click.option("--on", "on", multiple=True, metavar="KEY=VALUE", help="Only on such nodes.")
@click.option("--owner", metavar="USER", help="For one member alone.")
@click.option("--title", default="", metavar="TEXT", help="What it is for.")
@click.option("--every", type=click.Choice(["day", "week"]), help="Again every day or week, up to --last-day.")
@click.option("--last-day", metavar="DATE", help="The last day on which a repetition begins: 2027-02-12.")
@click.option("--time-zone", metavar="ZONE", help="Europe/Berlin, UTC or +01:00; your own if left out.")
@as_json
@calls_server
def add(server: Server, as_json: bool, on: tuple[str, ...], **ask: str | int | None) -> None:
    """Keep room for a tenant. For admins.

    Nothing is placed there that would not have ended by then; the tenant's members get the room by starting something
    within the window. A time without a zone is one of yours.

    \b
    Example:
      commonage reservation add --tenant course --from "2026-11-24 14:00" --until 16:00 --count 50 --gpus 4GiB
      commonage reservation add --tenant lab --from 22:00 --until 06:00 --gpus 8 --every day --last-day 2026-12-01
    """
    zone = ask.pop("time_zone") or time_zone()
    message = _message({**with_units(ask), "time_zone": zone, "on": labels(on)})
    with connect(server) as client:
        made = client.reserve(message)
    if as_json:
        show.print_json(made)
        return
    for one in made.items:
        click.echo(f"{one.id}  {_in_words(one)}")
    if made.reason:
        click.echo(f"Note: as things stand not all of it can be kept. {made.reason.message}", err=True)


@reservation.command("rm")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
@as_json
@calls_server
def rm(server: Server, ids: tuple[str, ...], as_json: bool) -> None:
    """Give reserved room back; what runs in it goes on. For admins.

    \b
    Example:
      commonage reservation rm r01jz4v9k2m4q
    """
    with connect(server) as client:
        gone = [client.unreserve(one) for one in ids]
    if as_json:
        show.print_json(gone)
        return
    for one in gone:
        click.echo(f"{one.id} is taken away: {_in_words(one)}")


def _message(values: dict[str, object]) -> ReservationIn:
    from pydantic import ValidationError

    from commonage.cli.asks import sentences
    from commonage.sdk import ReservationIn

    try:
        return ReservationIn.model_validate({name: value for name, value in values.items() if value not in (None, {})})
    except ValidationError as error:
        raise Failure("\n".join(sentences(error)), MISUSED) from None


def time_zone() -> str:
    """The name of this machine's time zone where it can be told, else its distance from UTC now."""
    name = os.environ.get("TZ", "").lstrip(":")
    if not name:
        try:
            name = str(Path("/etc/localtime").readlink())
        except OSError:
            name = ""
    name = name.partition("zoneinfo/")[2] or name
    if name and not name.startswith(("/", ".")) and all(part.isascii() for part in name):
        return name
    return _distance()


def _distance() -> str:
    text = time.strftime("%z")
    return f"{text[:3]}:{text[3:]}"


def _zone_in_words() -> str:
    zone, distance = time_zone(), _distance()
    if zone.endswith("UTC"):
        return "UTC"
    return zone if zone == distance else f"{zone} ({distance})"


def _moment(at: float, after: float | None = None) -> str:
    """Day and hour in the reader's own time; the hour alone if it is the day of `after`."""
    then = time.localtime(at)
    same = after is not None and time.localtime(after)[:3] == then[:3]
    return time.strftime("%H:%M" if same else "%a %Y-%m-%d %H:%M", then)


def _in_words(one: ReservationOut) -> str:
    window = f"{_moment(one.starts_at)} until {_moment(one.ends_at, after=one.starts_at)} {time.strftime('%Z')}"
    return f"{window}: {one.count} times {one.request.text} for {one.tenant}"
