"""Time windows of reservations as users write them: in their time zone, once or every week. Called by API and portal.

Uses no clock: the present time is a parameter. Daily and weekly repetitions keep the local time of day, also across a
change to summer time.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, tzinfo

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import parse_duration

MAX_WINDOWS = 100
LAST_YEAR = 9000
_STEPS = {"day": timedelta(days=1), "week": timedelta(days=7)}
_CLOCK = re.compile(r"(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)", re.ASCII)
_SPAN = re.compile(r"(\d+(\.\d+)?\s*(s|m|h|d|min|sec)\w*\s*)+", re.ASCII | re.IGNORECASE)
_HOW = "write it like 2026-11-24 14:00, 16:00, or with a zone like 2026-11-24T14:00+01:00"

Window = tuple[float, float]
"""Start and end in unix seconds."""


def window_of(starts: str | float, ends: str | float, zone: tzinfo, now: float) -> tuple[datetime, datetime]:
    """Start and end as local times. A time alone means today, or for the end the day of the start.

    Raises InvalidInput.
    """
    begin = _local(starts, zone, datetime.fromtimestamp(now, zone), "starts_at")
    end = _local(ends, zone, begin, "ends_at")
    if end <= begin and isinstance(ends, str) and _CLOCK.fullmatch(ends.strip()):
        end += timedelta(days=1)  # from 22:00 until 02:00
    return begin, end


def deadline_of(given: str, zone: tzinfo, now: float, *, field: str = "by") -> float:
    """Unix seconds of a deadline: `2h` (from now), `18:00` (the next), or `2026-11-24 14:00`. Raises InvalidInput."""
    text = given.strip()
    if _SPAN.fullmatch(text):
        return now + parse_duration(text, field=field)
    day = datetime.fromtimestamp(now, zone)
    found = _local(text, zone, day, field)
    if found <= day and _CLOCK.fullmatch(text):
        found += timedelta(days=1)
    return found.timestamp()


def _local(given: str | float, zone: tzinfo, day: datetime, field: str) -> datetime:
    text = given.strip() if isinstance(given, str) else None
    if text == "now":
        return day
    clock = _CLOCK.fullmatch(text) if text is not None else None
    if clock is not None:
        return day.replace(hour=int(clock["hour"]), minute=int(clock["minute"]), second=0, microsecond=0, fold=0)
    try:
        read = datetime.fromisoformat(text) if text is not None else datetime.fromtimestamp(float(given), zone)
        found = read.astimezone(zone) if read.tzinfo is not None else read.replace(tzinfo=zone)
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(f"{field} {str(given)[:40]!r} is no time; {_HOW}", field=field) from None
    if found.year > LAST_YEAR:  # days are added to it, and no date exists after 9999
        raise InvalidInput(f"{field} {str(given)[:40]!r} is after the year {LAST_YEAR}", field=field)
    return found


def windows(begin: datetime, end: datetime, every: str | None = None, last: str | None = None) -> list[Window]:
    """The window and its repetitions `every` day or week, up to and including the day `last` (a date)."""
    if every is None:
        if last is not None:
            raise InvalidInput(
                "a last day needs a repetition; set `every` to day or week, or leave the last day out", field="last_day"
            )
        return [(begin.timestamp(), end.timestamp())]
    if last is None:
        raise InvalidInput(f"a repetition every {every} needs a last day, like 2027-02-12", field="last_day")
    try:
        last_day = date.fromisoformat(last.strip())
    except ValueError:
        raise InvalidInput(f"{last[:40]!r} is not a day; write it like 2027-02-12", field="last_day") from None
    found: list[Window] = []
    while begin.date() <= last_day:
        found.append((begin.timestamp(), end.timestamp()))
        if len(found) > MAX_WINDOWS:
            raise InvalidInput(f"that makes more than {MAX_WINDOWS} windows; end it earlier", field="last_day")
        begin, end = begin + _STEPS[every], end + _STEPS[every]
    if not found:
        raise InvalidInput(f"the last day, {last_day}, is before the first window begins", field="last_day")
    return found
