"""`commonage cron-job`: jobs that repeat; and the options and output that `run` and `submit` share with it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from commonage.cli import output
from commonage.cli.connection import prints
from commonage.cli.errors import MISUSED, Failure
from commonage.cli.reservation import time_zone
from commonage.cli.workloads.request import validate, with_units

if TYPE_CHECKING:
    from commonage.sdk import Client
    from commonage.wire.cron_jobs import CronJobOut, TriggeredOut
    from commonage.wire.workloads import WorkloadOut

CRON_FIELDS = frozenset(
    {
        "schedule",
        "time_zone",
        "overlap",
        "missed_runs",
        "starting_deadline_s",
        "suspended",
        "succeeded_kept",
        "failed_kept",
    }
)
_HISTORY = 10

cron_options = (
    click.option(
        "--schedule",
        metavar="CRON",
        help='Repeat the job: minute, hour, day of month, month, day of week, like "0 7 * * 1-5"; or @hourly, @daily.',
    ),
    click.option(
        "--time-zone",
        "--timezone",
        "time_zone",
        metavar="ZONE",
        help="Time zone of --schedule: Europe/Berlin, UTC or +01:00.  [default: yours]",
    ),
    click.option(
        "--overlap",
        type=click.Choice(["allow", "skip", "replace"]),
        help="If the previous run has not ended: run both, skip the new one (default), or stop the old one.",
    ),
    click.option(
        "--missed-runs",
        type=click.Choice(["run-once", "skip"]),
        help="After an outage: run the newest missed time once (default), or skip all.",
    ),
    click.option(
        "--starting-deadline",
        metavar="TIME",
        help="How long after its due time a run may still start, like 10m.  [default: no limit]",
    ),
    click.option("--suspended", is_flag=True, default=None, help="Create the cron job suspended."),
    click.option("--keep-succeeded", "succeeded_kept", type=click.IntRange(0, 1000), metavar="N",
                 help="Number of succeeded runs to keep.  [default: all, as long as other workloads]"),
    click.option("--keep-failed", "failed_kept", type=click.IntRange(0, 1000), metavar="N",
                 help="Number of other ended runs to keep.  [default: all, as long as other workloads]"),
)  # fmt: skip


def cron_fields(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of the cron job for the options of `run`; None without --schedule. Raises Failure."""
    names = ("time_zone", "overlap", "missed_runs", "starting_deadline", "suspended", "succeeded_kept", "failed_kept")
    given = {name: options[name] for name in names if options[name] is not None}
    if options["schedule"] is None:
        if given:
            option = "--" + min(given).replace("_", "-")
            raise Failure(f"{option} is for jobs that repeat. Give --schedule, or leave it out.", MISUSED)
        return None
    return {"schedule": options["schedule"], "time_zone": time_zone(), **with_units(given)}


def create(client: Client, fields: dict[str, Any], as_json: bool) -> None:
    from commonage.sdk import CronJobIn

    made = client.create_cron_job(validate(CronJobIn, fields))
    if as_json:
        output.print_json(made)
    else:
        print_created(made)


def print_created(made: CronJobOut) -> None:
    click.echo(f"{made.id}  {made.name}, a cron job")
    print_next_times(made)


def print_next_times(found: CronJobOut) -> None:
    """The next times in the zone of the cron job, and in this machine's where that differs."""
    if not found.next_times:
        click.echo("  no next time: it is suspended")
    for at in found.next_times:
        click.echo(f"  {_time_text(at, found.time_zone)}")


def _time_text(at: float, zone: str) -> str:
    here = datetime.fromtimestamp(at).astimezone()
    there = here.astimezone(_zone(zone))
    shown = f"{there:%a %Y-%m-%d %H:%M} {zone}"
    return shown if there.utcoffset() == here.utcoffset() else f"{shown} ({here:%a %H:%M} here)"


def _zone(name: str) -> Any:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return datetime.strptime(name.replace(":", ""), "%z").tzinfo if name[:1] in "+-" else None


@click.group("cron-job")
def cron_job() -> None:
    """List, suspend, trigger and remove jobs that repeat. `commonage run --schedule` creates one.

    \b
    Examples:
      commonage run --schedule "0 7 * * 1-5" --name report -- python report.py
      commonage cron-job ls
      commonage cron-job show report
    """


def _print_cron_jobs(found: Sequence[CronJobOut]) -> None:
    if not found:
        click.echo("No cron jobs. Create one with: commonage run --schedule CRON -- COMMAND", err=True)
        return
    table = output.table("ID", "NAME", "OWNER", "SCHEDULE", "NEXT", "LAST", "ACTIVE", "NOTE", right=("ACTIVE",))
    for one in found:
        following = output.clock(one.next_times[0]) if one.next_times else "suspended"
        last = "" if one.last_due_at is None else output.clock(one.last_due_at)
        note = output.text(one.reason.message) if one.reason else ""
        schedule = output.text(f"{one.schedule} {one.time_zone}")
        row = (one.id, output.text(one.name), output.text(one.owner), schedule, following, last)
        table.add_row(*row, str(len(one.active)), note)
    output.console().print(table)
    click.echo(f"NEXT and LAST are in the time zone {time.strftime('%Z')}.")


@cron_job.command("ls")
@prints(_print_cron_jobs)
def list_cron_jobs(client: Client) -> Sequence[CronJobOut]:
    """List your cron jobs, and those of other users that you may see.

    \b
    Example:
      commonage cron-job ls
    """
    return client.cron_jobs()


def _print_shown(shown: dict[str, Any]) -> None:
    found, runs = shown["cron_job"], shown["runs"]
    rows = {
        "id": found.id,
        "name": found.name,
        "owner": f"{found.owner} (tenant {found.tenant})",
        "command": " ".join(found.command),
        "request": found.request.text,
        "schedule": f"{found.schedule} in {found.time_zone}",
        "overlap": found.overlap,
        "missed runs": found.missed_runs,
        "starting deadline": None if found.starting_deadline_s is None else output.duration(found.starting_deadline_s),
        "state": "suspended" if found.suspended else "active",
        "note": found.reason.message if found.reason else None,
    }
    for name, value in rows.items():
        if value:
            click.echo(f"{name + ':':19}{value}")
    click.echo("next times:")
    print_next_times(found)
    _print_runs(runs)


def _print_runs(runs: Sequence[WorkloadOut]) -> None:
    if not runs:
        click.echo("No runs yet.")
        return
    table = output.table("RUN", "DUE", "STATE", "TOOK", "NODE / REASON", right=("TOOK",))
    for one in runs:
        due = "triggered" if one.due_at is None else output.clock(one.due_at)
        took = "" if one.started_at is None or one.ended_at is None else output.duration(one.ended_at - one.started_at)
        table.add_row(one.id, due, output.state(one.state), took, output.text(output.node_or_reason(one)))
    output.console().print(table)


@cron_job.command("show")
@click.argument("name", metavar="ID|NAME")
@click.option(
    "--runs", type=click.IntRange(1, 500), default=_HISTORY, show_default=True, metavar="N", help="Newest runs to show."
)
@prints(_print_shown)
def show(client: Client, name: str, runs: int) -> dict[str, Any]:
    """Show a cron job, its next five times and its newest runs.

    \b
    Example:
      commonage cron-job show report
    """
    found = _found(client, name)
    return {"cron_job": found, "runs": client.workload_page(limit=runs, cron_job=found.id).items}


def _print_changed(changed: Sequence[CronJobOut]) -> None:
    for one in changed:
        click.echo(f"{one.id}  {one.name}{', suspended' if one.suspended else ''}")
        print_next_times(one)


@cron_job.command("suspend")
@click.argument("names", metavar="ID|NAME…", nargs=-1, required=True)
@prints(_print_changed)
def suspend(client: Client, names: tuple[str, ...]) -> Sequence[CronJobOut]:
    """Suspend cron jobs until you resume them. Live runs continue.

    \b
    Example:
      commonage cron-job suspend report
    """
    return [client.suspend_cron_job(_found(client, name).id) for name in names]


@cron_job.command("resume")
@click.argument("names", metavar="ID|NAME…", nargs=-1, required=True)
@prints(_print_changed)
def resume(client: Client, names: tuple[str, ...]) -> Sequence[CronJobOut]:
    """Resume suspended cron jobs. Times that passed meanwhile are skipped.

    \b
    Example:
      commonage cron-job resume report
    """
    return [client.resume_cron_job(_found(client, name).id) for name in names]


def _print_triggered(triggered: TriggeredOut) -> None:
    click.echo("\n".join(triggered.ids))


@cron_job.command("trigger")
@click.argument("name", metavar="ID|NAME")
@prints(_print_triggered)
def trigger(client: Client, name: str) -> TriggeredOut:
    """Run a cron job now, outside its schedule. Prints the id of the run.

    \b
    Example:
      commonage cron-job trigger report
    """
    from commonage.sdk import TriggerIn

    return client.trigger_cron_job(_found(client, name).id, TriggerIn(key=uuid.uuid4().hex))


def _print_removed(removed: Sequence[CronJobOut]) -> None:
    for one in removed:
        click.echo(f"Removed {one.id} ({one.name}). Its runs stay.")


@cron_job.command("rm")
@click.argument("names", metavar="ID|NAME…", nargs=-1, required=True)
@prints(_print_removed)
def remove(client: Client, names: tuple[str, ...]) -> Sequence[CronJobOut]:
    """Remove cron jobs. Their runs are kept, and live ones continue.

    \b
    Example:
      commonage cron-job rm report
    """
    return [client.remove_cron_job(_found(client, name).id) for name in names]


def _found(client: Client, text: str) -> CronJobOut:
    """Find a cron job by its id, or by its name. Raises Failure."""
    known = client.cron_jobs()
    matches = [one for one in known if one.id == text] or [one for one in known if one.name == text]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise Failure(f"no cron job has the id or name {text!r}. `commonage cron-job ls` lists them.", MISUSED)
    listed = ", ".join(f"{one.id} of {one.owner}" for one in matches[:5])
    raise Failure(f"several cron jobs are called {text!r}: {listed}. Write the id.", MISUSED)
