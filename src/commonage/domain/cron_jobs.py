"""Cron jobs: jobs that repeat at the times of a cron expression, and the rule for what runs when. Pure.

`control.workloads.cron_jobs` fires them, by this rule and with these ids; so does a site agent without a link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice

from cronsim import CronSim, CronSimError

from commonage.domain.errors import InvalidInput
from commonage.domain.reasons import Reason
from commonage.domain.reasons.cron_jobs import MAX_COUNTED, PreviousRunActive, StartingDeadlinePassed
from commonage.domain.time_zones import zone_of
from commonage.domain.workloads import Spec, encode_id

ON_TIME_S = 60.0
"""A run that starts within this time is not late. The default starting deadline if missed runs are skipped."""
NEXT_TIMES = 5
_MAX_EXPRESSION = 100
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# A clock change moves a time by less than this: the search begins so much earlier.
_CLOCK_CHANGE_S = 3 * 3600.0
_WINDOWS_S = (3600.0, 86_400.0, 32 * 86_400.0, 400 * 86_400.0)
_SLOT_MS = 60_000
_TAIL_BITS = 19


class Overlap(StrEnum):
    """If the previous run has not ended when the next one is due: run both, skip the new one, or stop the old one."""

    ALLOW = "allow"
    SKIP = "skip"
    REPLACE = "replace"


class MissedRuns(StrEnum):
    """After an outage: run the newest missed time once, or skip all missed times."""

    RUN_ONCE = "run-once"
    SKIP = "skip"


def _invalid(schedule: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"the schedule {schedule[:60]!r} is no cron expression: {why}. Write minute, hour, day of month, month and day "
        "of week, like `0 7 * * 1-5` for 7:00 on weekdays, or @hourly, @daily, @weekly, @monthly",
        field="schedule",
        code="invalid-schedule",
    )


@dataclass(frozen=True, slots=True)
class CronRule:
    """The times of a cron job, and what happens to times that cannot be met.

    `schedule` is a cron expression with five fields, as Debian's cron reads it: a time that a clock change skips runs
    right after it, a time that it repeats runs once. `starting_deadline_s`: a run that would start later is missed.
    """

    schedule: str
    time_zone: str = "UTC"
    overlap: Overlap = Overlap.SKIP
    missed_runs: MissedRuns = MissedRuns.RUN_ONCE
    starting_deadline_s: int | None = None

    def check(self) -> None:
        """Raise InvalidInput for a schedule or time zone that cannot be read, or that has no time at all."""
        if len(self.schedule) > _MAX_EXPRESSION:
            raise _invalid(self.schedule, f"it has more than {_MAX_EXPRESSION} characters")
        if len(self._expression.split()) != 5:
            raise _invalid(self.schedule, f"it has {len(self.schedule.split())} fields, not 5")
        zone_of(self.time_zone)
        if next(self.after(0.0), None) is None:
            raise _invalid(self.schedule, "no date matches it")

    @property
    def _expression(self) -> str:
        return _ALIASES.get(self.schedule.strip().lower(), self.schedule)

    def after(self, instant: float) -> Iterator[float]:
        """The due times after an instant, rising. All are unix seconds. Raises InvalidInput."""
        begin, newest = datetime.fromtimestamp(instant - _CLOCK_CHANGE_S, zone_of(self.time_zone)), instant
        try:
            for found in CronSim(self._expression, begin):
                due_at = found.timestamp()
                if due_at > newest:
                    newest = due_at
                    yield due_at
        except CronSimError as error:
            raise _invalid(self.schedule, str(error)) from None
        except OverflowError:
            return

    def next_times(self, now: float, count: int = NEXT_TIMES) -> tuple[float, ...]:
        return tuple(islice(self.after(now), count))

    def newest(self, after: float, until: float) -> float | None:
        """The newest due time in (after, until]. Looks at the last hour first, so that a long outage costs little."""
        for window_s in (*_WINDOWS_S, float("inf")):
            begin = max(after, until - window_s)
            found = None
            for due_at in self.after(begin):
                if due_at > until:
                    break
                found = due_at
            if found is not None or begin == after:
                return found
        return None

    def count(self, after: float, before: float) -> int:
        """How many due times are in (after, before), at most MAX_COUNTED."""
        return sum(1 for due_at in islice(self.after(after), MAX_COUNTED) if due_at < before)


@dataclass(frozen=True, slots=True)
class Decision:
    """About one due time, the newest of those not decided yet. `refused`: why it does not run; None: run it now.

    `missed` counts the older times that are decided with it: they never run.
    """

    due_at: float
    missed: int = 0
    refused: Reason | None = None


def decide(rule: CronRule, decided_until: float, now: float, active: str = "") -> Decision | None:
    """The decision about the next due time; None if no time is due. `active`: the id of a live run, or empty.

    Due times are decided in rising order, each once, so a clock that goes back repeats nothing.
    """
    due_at = rule.newest(decided_until, now)
    if due_at is None:
        return None
    refused: Reason | None = None
    late_s, deadline_s = now - due_at, rule.starting_deadline_s
    if deadline_s is None and rule.missed_runs is MissedRuns.SKIP:
        deadline_s = int(ON_TIME_S)
    if deadline_s is not None and late_s > deadline_s:
        refused = StartingDeadlinePassed(late_s=late_s, deadline_s=deadline_s)
    elif active and rule.overlap is Overlap.SKIP:
        refused = PreviousRunActive(workload_id=active)
    return Decision(due_at, rule.count(decided_until, due_at), refused)


@dataclass(frozen=True, slots=True)
class CronJob:
    """A job that repeats. `spec` is what each run runs; its `cron_job` and `due_at` are not set.

    `decided_until` is the newest due time that was decided. `last_due_at` and `last_refused`: that time, and why it did
    not run. `groups` are those that the owner had in the hub when it was made, `of_admin`: it was made by an admin.

    `succeeded_kept` and `failed_kept`: how many ended runs are kept; None: as long as other workloads.

    `site` is the appliance that may fire it while its link is down: from before it gets the cron job until it has
    forgotten it. `removed`: a user removed it, and it is kept only until then.
    """

    id: str
    spec: Spec
    rule: CronRule
    created_at: float
    decided_until: float
    suspended: bool = False
    succeeded_kept: int | None = None
    failed_kept: int | None = None
    last_due_at: float | None = None
    last_refused: Reason | None = None
    groups: tuple[str, ...] = ()
    of_admin: bool = False
    site: str | None = None
    removed: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def owner(self) -> str:
        return self.spec.owner

    @property
    def tenant(self) -> str:
        return self.spec.tenant

    def next_times(self, now: float, count: int = NEXT_TIMES) -> tuple[float, ...]:
        if self.suspended:
            return ()
        return self.rule.next_times(max(now, self.decided_until), count)


def slot_of(cron_job_id: str) -> int:
    """Makes run ids of cron jobs differ that are due at the same time; no two cron jobs may have the same."""
    return int.from_bytes(hashlib.sha256(cron_job_id.encode()).digest()[:8], "big") % (_SLOT_MS << _TAIL_BITS)


def run_id(cron_job_id: str, due_at: float) -> str:
    """The workload id of the run at this time: however often it is fired, it is one workload.

    It reads like an id of the minute before `due_at`, so that it is no later than the ids made since.
    """
    milliseconds, tail = divmod(slot_of(cron_job_id), 1 << _TAIL_BITS)
    return encode_id(((int(due_at) * 1000 - _SLOT_MS + milliseconds) << (_TAIL_BITS + 1)) + (1 << _TAIL_BITS) + tail)


def run_key(cron_job_id: str, due_at: float) -> str:
    """The idempotency key of the run at this time."""
    return f"{cron_job_id}:{int(due_at)}"
