"""`commonage reservation`: resources that are reserved for a tenant in a time window."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonage.cli import output
from commonage.cli.connection import prints
from commonage.cli.workloads.request import labels, validate, with_units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commonage.sdk import Client
    from commonage.wire.tenants import ReservationOut, ReservedOut


@click.group
def reservation() -> None:
    """List, add and remove reservations, for example for a class.

    \b
    Examples:
      commonage reservation ls
      commonage reservation add --tenant course --from "2026-11-24 14:00" --until 16:00 --count 50 --gpus 4GiB
    """


def _print_reservations(reservations: Sequence[ReservationOut]) -> None:
    if not reservations:
        click.echo("No reservations.", err=True)
        return
    table = output.table("ID", "FOR", "FROM", "UNTIL", "COUNT", "REQUEST", "TITLE", right=("COUNT",))
    for each in reservations:
        owner = f"{each.owner} of {each.tenant}" if each.owner else each.tenant
        start, end = _time_text(each.starts_at), _time_text(each.ends_at, after=each.starts_at)
        request = output.text(each.request.text)
        table.add_row(each.id, output.text(owner), start, end, str(each.count), request, output.text(each.title))
    output.console().print(table)
    for each in reservations:
        if each.reason:
            click.echo(f"Note: {each.id} cannot be met completely at present. {each.reason.message}", err=True)
    click.echo(f"Time zone: {_zone_text()}.")


@reservation.command("ls")
@prints(_print_reservations)
def list_reservations(client: Client) -> Sequence[ReservationOut]:
    """List current and future reservations of your tenants. Admins see all reservations.

    \b
    Example:
      commonage reservation ls
    """
    return client.reservations()


def _print_reserved(reserved: ReservedOut) -> None:
    for each in reserved.items:
        click.echo(f"{each.id}  {_summary(each)}")
    if reserved.reason:
        click.echo(f"Note: it cannot be met completely at present. {reserved.reason.message}", err=True)


@reservation.command("add")
@click.option("--tenant", required=True, metavar="NAME", help="Tenant whose members may use it.")
@click.option(
    "--from", "starts_at", required=True, metavar="TIME", help='Start: "2026-11-24 14:00", 14:00 (today) or now.'
)
@click.option("--until", "ends_at", required=True, metavar="TIME", help="End: a time like 16:00 is on the same day.")
@click.option(
    "--count", type=click.IntRange(1, 10_000), default=1, metavar="N", help="Number of workloads at the same time."
)
@click.option("--gpus", metavar="SHARE", help="GPU request of each workload: 4GiB, 0.25, 1 or A100:1.")
@click.option("--cpus", metavar="N", help="CPU cores of each workload.")
@click.option("--mem", "memory", metavar="SIZE", help="Memory of each workload: 4GiB or 512MiB; 4096 is MiB.")
@click.option("--on", "on", multiple=True, metavar="KEY=VALUE", help="Only on nodes with this label.")
@click.option("--owner", metavar="USER", help="Only for this member of the tenant.")
@click.option("--title", default="", metavar="TEXT", help="Title to show.")
@click.option("--every", type=click.Choice(["day", "week"]), help="Repeat every day or week until --last-day.")
@click.option("--last-day", metavar="DATE", help="Last day on which a repetition starts: 2027-02-12.")
@click.option("--time-zone", metavar="ZONE", help="Europe/Berlin, UTC or +01:00.  [default: yours]")
@prints(_print_reserved)
def add(client: Client, on: tuple[str, ...], **options: str | int | None) -> ReservedOut:
    """Reserve resources for a tenant. For admins.

    Other workloads start on the reserved capacity only if they end before the window begins.
    Members of the tenant use the reservation by starting workloads in the window.

    \b
    Examples:
      commonage reservation add --tenant course --from "2026-11-24 14:00" --until 16:00 --count 50 --gpus 4GiB
      commonage reservation add --tenant lab --from 22:00 --until 06:00 --gpus 8 --every day --last-day 2026-12-01
    """
    zone = options.pop("time_zone") or time_zone()
    from commonage.sdk import ReservationIn

    return client.reserve(validate(ReservationIn, {**with_units(options), "time_zone": zone, "on": labels(on)}))


def _print_removed(removed: Sequence[ReservationOut]) -> None:
    for each in removed:
        click.echo(f"Removed {each.id}: {_summary(each)}")


@reservation.command("rm")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
@prints(_print_removed)
def remove(client: Client, ids: tuple[str, ...]) -> Sequence[ReservationOut]:
    """Remove reservations. Running workloads continue. For admins.

    \b
    Example:
      commonage reservation rm r01jz4v9k2m4q
    """
    return [client.unreserve(reservation_id) for reservation_id in ids]


def time_zone() -> str:
    """The name of this machine's time zone if it is known, else its present offset from UTC."""
    name = os.environ.get("TZ", "").lstrip(":")
    if not name:
        try:
            name = str(Path("/etc/localtime").readlink())
        except OSError:
            name = ""
    name = name.partition("zoneinfo/")[2] or name
    if name and not name.startswith(("/", ".")) and all(part.isascii() for part in name):
        return name
    return _offset()


def _offset() -> str:
    text = time.strftime("%z")
    return f"{text[:3]}:{text[3:]}"


def _zone_text() -> str:
    zone, offset = time_zone(), _offset()
    if zone.endswith("UTC"):
        return "UTC"
    return zone if zone == offset else f"{zone} ({offset})"


def _time_text(at: float, after: float | None = None) -> str:
    """Date and time in the local zone; only the time if the date is that of `after`."""
    then = time.localtime(at)
    same = after is not None and time.localtime(after)[:3] == then[:3]
    return time.strftime("%H:%M" if same else "%a %Y-%m-%d %H:%M", then)


def _summary(reservation: ReservationOut) -> str:
    start, end = _time_text(reservation.starts_at), _time_text(reservation.ends_at, after=reservation.starts_at)
    what = f"{reservation.count} times {reservation.request.text} for {reservation.tenant}"
    return f"{start} until {end} {time.strftime('%Z')}: {what}"
