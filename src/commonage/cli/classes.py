"""`commonage class`: classes with their rosters and meetings, for teachers and students."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import prints
from commonage.cli.errors import MISUSED, Failure
from commonage.cli.reservation import time_zone
from commonage.cli.resources.documents import write
from commonage.sdk.errors import ApiError

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.classes import ClassOut, ConsentOut
    from commonage.wire.workloads import WorkloadOut

_LATEST = 5
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("class")
def classes() -> None:
    """List, set and remove classes, see the seats, and write to all students.

    \b
    Examples:
      commonage class set ml101 --tenant course --roster students.csv --gpus 4GiB \\
        --from "2026-11-24 14:00" --until 16:00 --every week --last-day 2027-02-02
      commonage class show ml101
    """


def _print_classes(found: Sequence[ClassOut]) -> None:
    if not found:
        click.echo("No classes.", err=True)
        return
    table = output.table("CLASS", "TENANT", "SEATS", "SHARE", "NEXT MEETING", "", right=("SEATS",))
    for one in found:
        when = "none" if one.next_meeting is None else _span(*one.next_meeting)
        on = "on now" if one.meeting is not None else ""
        table.add_row(
            output.text(one.name), output.text(one.tenant), str(one.seat_count), output.text(one.request.text), when, on
        )
    output.console().print(table)
    _print_notes(found)


def _print_notes(found: Sequence[ClassOut]) -> None:
    for one in found:
        if one.reason:
            click.echo(f"Note: {one.name} cannot have all its room at present. {one.reason.message}", err=True)


@classes.command("ls")
@prints(_print_classes)
def list_classes(client: Client) -> Sequence[ClassOut]:
    """List classes of your tenants, and those that you attend.

    \b
    Example:
      commonage class ls
    """
    return client.classes()


def _print_class(one: ClassOut) -> None:
    click.echo(f"{one.title or one.name}: {one.seat_count} times {one.request.text} for {one.tenant}")
    now = time.time()
    for starts_at, ends_at in [each for each in one.times if each[1] > now][:_LATEST]:
        click.echo(f"  {_span(starts_at, ends_at)}")
    if one.meeting is not None and one.meeting.announcement is not None:
        click.echo(f"Message of {one.meeting.announcement.by}: {one.meeting.announcement.text}")
    if one.meeting is not None and one.attends:
        for consent in one.meeting.consents:
            if consent.given is None:
                click.echo(
                    f"{consent.teacher} asks to open your session. Answer: commonage class allow {one.name} "
                    f"{consent.teacher}, or: commonage class refuse {one.name} {consent.teacher}"
                )
    if one.session_url:
        click.echo(f"Your session: {one.session_url}")
    _print_notes([one])
    if not one.teaches:
        return
    table = output.table("STUDENT", "SEAT", "WHY", "WORKLOAD", "CONSENT")
    for seat in one.seats:
        cells = (seat.student, seat.state, seat.reason.message, seat.workload_id or "", _consent(seat.consent))
        table.add_row(*(output.text(cell) for cell in cells))
    output.console().print(table)
    counted = Counter(seat.state for seat in one.seats)
    click.echo(", ".join(f"{count} {state}" for state, count in sorted(counted.items())) or "No students.")


def _consent(consent: ConsentOut | None) -> str:
    if consent is None:
        return ""
    return "asked" if consent.given is None else "given" if consent.given else "refused"


@classes.command("show")
@click.argument("name")
@prints(_print_class)
def show(client: Client, name: str) -> ClassOut:
    """Show a class; for teachers with the seat of each student.

    \b
    Example:
      commonage class show ml101
    """
    return client.one_class(name)


def _print_document(one: ClassOut) -> None:
    click.echo(write([one.document or {}]), nl=False)
    _print_notes([one])


@classes.command("set")
@click.argument("name")
@click.option("--tenant", metavar="NAME", help="Tenant whose quota the seats use.")
@click.option("--title", metavar="TEXT", help="Title to show.")
@click.option("--roster", type=_FILE, metavar="FILE", help="CSV file with the user names of the students.")
@click.option("--user", "users", multiple=True, metavar="USER", help="A student. Repeatable.")
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP", help="A group or GitHub team of students. Repeatable."
)
@click.option(
    "--seats",
    type=click.IntRange(1, 2000),
    metavar="N",
    help="Maximum number of students at the same time.  [default: number of users; required with --group]",
)
@click.option("--env", "environment", metavar="NAME", help="Environment of the sessions.")
@click.option("--gpus", metavar="SHARE", help="GPU request of each seat: 4GiB, 0.25, 1 or A100:1.")
@click.option("--cpus", metavar="N", help="CPU cores of each seat.")
@click.option("--mem", "memory", metavar="SIZE", help="Memory of each seat: 4GiB.")
@click.option("--material", metavar="VOLUME", help="Volume with the material of the class.")
@click.option("--from", "starts", metavar="TIME", help='Start of the first meeting: "2026-11-24 14:00".')
@click.option("--until", "ends", metavar="TIME", help="End of the first meeting: a time like 16:00 is on the same day.")
@click.option("--every", type=click.Choice(["day", "week"]), help="Repeat every day or week until --last-day.")
@click.option("--last-day", metavar="DATE", help="Last day of the repetition: 2027-02-02.")
@click.option("--calendar", type=_FILE, metavar="FILE", help=".ics file with the meetings.")
@click.option("--time-zone", metavar="ZONE", help="Europe/Berlin, UTC or +01:00.  [default: yours]")
@click.option("--ahead", metavar="TIME", help="How long before a meeting its sessions start.  [default: 10m]")
@click.option("--grace", metavar="TIME", help="How long after a meeting its sessions stop.  [default: 10m]")
@click.option(
    "--at-end", type=click.Choice(["stop", "keep"]), help="Stop or keep the sessions after a meeting.  [default: stop]"
)
@prints(_print_document)
def set_class(client: Client, name: str, roster: Path | None, calendar: Path | None, **options: Any) -> ClassOut:
    """Create a class, or change the fields that are given. For teachers and managers of the tenant.

    The seats must fit into the quota of the tenant. The times are reserved at once.

    \b
    Examples:
      commonage class set ml101 --tenant course --roster students.csv --gpus 4GiB --calendar timetable.ics
      commonage class set ml101 --user ada --user grace --at-end keep
    """
    from commonage.sdk import ClassIn

    document, version = _present(client, name)
    times = {key: value for key in ("starts", "ends", "every", "last_day") if (value := options.pop(key)) is not None}
    if times and calendar is not None:
        raise Failure("Give the meetings with --from and --until, or with --calendar, not with both.", MISUSED)
    if times and not {"starts", "ends"} <= times.keys():
        raise Failure("A meeting needs a start and an end: give --from and --until.", MISUSED)
    if times:
        document["times"] = [times]
    document |= {key: list(value) if isinstance(value, tuple) else value for key, value in options.items() if value}
    document.setdefault("time_zone", time_zone())
    return client.put_class(
        name,
        ClassIn(
            document=document,
            roster=None if roster is None else _read(roster),
            calendar=None if calendar is None else _read(calendar),
            version=version,
        ),
    )


def _present(client: Client, name: str) -> tuple[dict[str, Any], int]:
    """The document of the class and its version; an empty one of version 0 if it is new."""
    try:
        found = client.one_class(name)
    except ApiError as error:
        if error.code != "class-not-found":
            raise
        return {}, 0
    return dict(found.document or {}), found.version


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path} cannot be read as text: {error}", MISUSED) from error


@classes.command("roster")
@click.argument("name")
@click.option("--add", "add", multiple=True, metavar="USER", help="Add a student.")
@click.option(
    "--remove", "remove", multiple=True, metavar="USER", help="Remove a student, and stop the student's session."
)
@prints(_print_document)
def roster(client: Client, name: str, add: tuple[str, ...], remove: tuple[str, ...]) -> ClassOut:
    """Add students to a class, or remove them. It takes effect at once, also during a meeting.

    \b
    Example:
      commonage class roster ml101 --add alan --remove ada
    """
    from commonage.sdk import ClassIn

    found = client.one_class(name)
    document = dict(found.document or {})
    users = [user for user in document.get("users", []) if user not in remove]
    document["users"] = [*users, *(user for user in add if user not in users)]
    return client.put_class(name, ClassIn(document=document, version=found.version))


def _print_removed(removed: ClassOut) -> None:
    click.echo(f"Removed class {removed.name} with its reservations.")


@classes.command("rm")
@click.argument("name")
@click.option("--force", is_flag=True, help="Remove it even while its sessions run. They are stopped.")
@prints(_print_removed)
def remove_class(client: Client, name: str, force: bool) -> ClassOut:
    """Remove a class with its reservations.

    \b
    Example:
      commonage class rm ml101
    """
    return client.delete_class(name, force=force)


def _print_sent(one: ClassOut) -> None:
    click.echo(f"Sent to all students of {one.name}.")


@classes.command("message")
@click.argument("name")
@click.argument("text")
@prints(_print_sent)
def message(client: Client, name: str, text: str) -> ClassOut:
    """Send a message to all students of the meeting that is on.

    \b
    Example:
      commonage class message ml101 "Save your work: we restart at 15:00."
    """
    return client.send_class_message(name, text)


def _print_consent(consent: ConsentOut) -> None:
    if consent.given is None:
        click.echo(f"{consent.student} is asked in the portal.")
    else:
        verb = "may open" if consent.given else "may not open"
        click.echo(f"{consent.teacher} {verb} the session of {consent.student} in this meeting.")


@classes.command("ask")
@click.argument("name")
@click.argument("student")
@prints(_print_consent)
def ask(client: Client, name: str, student: str) -> ConsentOut:
    """Ask a student to let you open the session.

    \b
    Example:
      commonage class ask ml101 ada
    """
    return client.ask_student(name, student)


@classes.command("allow")
@click.argument("name")
@click.argument("teacher")
@prints(_print_consent)
def allow(client: Client, name: str, teacher: str) -> ConsentOut:
    """Let a teacher who asked open your session until the meeting ends.

    \b
    Example:
      commonage class allow ml101 grace
    """
    return client.answer_teacher(name, teacher, given=True)


@classes.command("refuse")
@click.argument("name")
@click.argument("teacher")
@prints(_print_consent)
def refuse(client: Client, name: str, teacher: str) -> ConsentOut:
    """Refuse a teacher who asked to open your session, or withdraw your consent.

    \b
    Example:
      commonage class refuse ml101 grace
    """
    return client.answer_teacher(name, teacher, given=False)


def _print_session(session: WorkloadOut) -> None:
    click.echo(f"{session.id} is {session.state}. {session.url or session.reason.message}")


@classes.command("start")
@click.argument("name")
@prints(_print_session)
def start(client: Client, name: str) -> WorkloadOut:
    """Start your own session in a class again.

    \b
    Example:
      commonage class start ml101
    """
    return client.start_class_session(name)


def _span(starts_at: float, ends_at: float) -> str:
    start, end = time.localtime(starts_at), time.localtime(ends_at)
    same = start[:3] == end[:3]
    return (
        f"{time.strftime('%a %Y-%m-%d %H:%M', start)} - {time.strftime('%H:%M' if same else '%a %Y-%m-%d %H:%M', end)}"
    )
