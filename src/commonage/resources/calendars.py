"""Reads the meetings of a class from a calendar file (.ics, RFC 5545), as timetables and calendar programs write it.

Repetitions by day and week are understood, with excluded and additional dates. Others are refused, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from commonage.domain.errors import InvalidInput
from commonage.domain.time_zones import zone_of

MAX_MEETINGS = 200
MAX_EVENTS = 200
MAX_INTERVAL = 366
MAX_DAYS = 5 * 366
"""The longest series that is followed, from its first meeting."""
_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_DURATION = re.compile(r"P(?:(\d{1,6})W)?(?:(\d{1,6})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,6})S)?)?")
_TIME = re.compile(r"\d{8}T\d{6}Z?")


@dataclass(frozen=True, slots=True)
class _Line:
    params: Mapping[str, str]
    value: str


@dataclass(slots=True)
class _Event:
    """The properties of one VEVENT; those that may be repeated have several lines."""

    lines: dict[str, list[_Line]] = field(default_factory=dict)

    def one(self, name: str) -> _Line | None:
        return self.lines.get(name, [None])[0]

    @property
    def title(self) -> str:
        summary = self.one("SUMMARY")
        return "an event" if summary is None else summary.value[:60]


def times_of_calendar(text: str, time_zone: str) -> list[dict[str, str]]:
    """The meetings as `times` of a class, in this time zone. Raises InvalidInput."""
    zone = zone_of(time_zone)
    try:
        found = sorted(_found(text, zone))
        return [
            {"starts": f"{start.astimezone(zone):%Y-%m-%d %H:%M}", "ends": f"{end.astimezone(zone):%Y-%m-%d %H:%M}"}
            for start, end in found
        ]
    except OverflowError:
        raise _refused("a time in it is before the year 1 or after the year 9999") from None


def _found(text: str, zone: tzinfo) -> set[tuple[datetime, datetime]]:
    found: set[tuple[datetime, datetime]] = set()
    for number, event in enumerate(_events(text), 1):
        if number > MAX_EVENTS:
            raise _refused(f"it has more than {MAX_EVENTS} events; export only those of the class")
        status = event.one("STATUS")
        if status is not None and status.value.upper() == "CANCELLED":
            continue
        found.update(_meetings(event, zone))
        if len(found) > MAX_MEETINGS:
            raise _refused(f"it has more than {MAX_MEETINGS} meetings; export fewer events")
    if not found:
        raise _refused("it has no event with a time; export the events of the class as .ics")
    return found


def _refused(why: str) -> InvalidInput:
    return InvalidInput(f"the calendar file cannot be used: {why}", field="calendar", code="invalid-calendar")


def _events(text: str) -> Iterator[_Event]:
    unfolded = re.sub(r"\r?\n[ \t]", "", text.removeprefix("\ufeff"))
    if "BEGIN:VCALENDAR" not in unfolded.upper():
        raise _refused("it does not begin with BEGIN:VCALENDAR")
    event: _Event | None = None
    inner = 0  # alarms within events have times of their own
    for line in unfolded.splitlines():
        name, params, value = _parsed(line)
        if name == "BEGIN" and value.upper() == "VEVENT":
            event, inner = _Event(), 0
        elif event is not None and name == "BEGIN":
            inner += 1
        elif event is not None and name == "END" and value.upper() != "VEVENT":
            inner -= 1
        elif event is not None and name == "END":
            yield event
            event = None
        elif event is not None and not inner:
            event.lines.setdefault(name, []).append(_Line(params, value))


def _parsed(line: str) -> tuple[str, Mapping[str, str], str]:
    """Name, parameters and value; a quoted parameter may contain a colon."""
    head, _, value = re.sub(r'"[^"]*"', lambda quoted: quoted[0].replace(":", "\0"), line).partition(":")
    name, *given = head.replace("\0", ":").split(";")
    pairs = (part.partition("=") for part in given)
    params = {key.upper(): value.strip('"') for key, _, value in pairs}
    return name.strip().upper(), params, value.replace("\0", ":").strip()


def _meetings(event: _Event, zone: tzinfo) -> Iterator[tuple[datetime, datetime]]:
    begins = event.one("DTSTART")
    if begins is None or not _TIME.fullmatch(begins.value):
        return  # an event of whole days is no meeting
    start = _instant(begins, zone)
    length = _length(event, start, zone)
    if event.one("RECURRENCE-ID") is not None:
        raise _refused(f"{event.title!r} moves one meeting of a series; export the meetings as single events")
    excluded = {one for line in event.lines.get("EXDATE", ()) for one in _instants(line, zone)}
    starts = [
        *_repeated(event, start),
        *(one for line in event.lines.get("RDATE", ()) for one in _instants(line, zone)),
    ]
    for one in starts:
        if one not in excluded:
            yield one, one + length


def _instants(line: _Line, zone: tzinfo) -> Iterator[datetime]:
    for value in line.value.split(","):
        if _TIME.fullmatch(value.strip()):
            yield _instant(_Line(line.params, value.strip()), zone)


def _instant(line: _Line, zone: tzinfo) -> datetime:
    try:
        found = datetime.strptime(line.value.rstrip("Z"), "%Y%m%dT%H%M%S")
    except ValueError:
        raise _refused(f"{line.value!r} is no time") from None
    if line.value.endswith("Z"):
        return found.replace(tzinfo=UTC)
    named = line.params.get("TZID")
    if named is None:
        return found.replace(tzinfo=zone)
    try:
        return found.replace(tzinfo=zone_of(named))
    except InvalidInput:
        raise _refused(f"its time zone {named[:40]!r} is not known here; export it in UTC") from None


def _length(event: _Event, start: datetime, zone: tzinfo) -> timedelta:
    ends, lasts = event.one("DTEND"), event.one("DURATION")
    if ends is not None and _TIME.fullmatch(ends.value):
        length = _instant(ends, zone).astimezone(UTC) - start.astimezone(UTC)
    else:
        parts = _DURATION.fullmatch(lasts.value) if lasts is not None else None
        if parts is None:
            raise _refused(f"{event.title!r} has no end")
        weeks, days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
        length = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    if length <= timedelta(0):
        raise _refused(f"{event.title!r} ends before it begins")
    return length


@dataclass(frozen=True, slots=True)
class _Rule:
    """A series every `interval` days or weeks, on `days` only; at most `most` times (0: any), or `until` a time."""

    weekly: bool
    days: Sequence[str]
    interval: int
    most: int
    until: datetime | None


def _rule(event: _Event, line: _Line, start: datetime) -> _Rule:
    """Raises InvalidInput for a rule that is not supported, or has no end."""
    rule = dict(part.upper().split("=", 1) for part in line.value.split(";") if "=" in part)
    unknown = sorted(set(rule) - {"FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "WKST"})
    days = [day for day in rule.get("BYDAY", "").split(",") if day]
    if rule.get("FREQ") not in ("DAILY", "WEEKLY") or unknown or any(day not in _DAYS for day in days):
        raise _refused(f"{event.title!r} repeats by {line.value[:80]}; only daily and weekly repetitions are supported")
    try:
        interval, most = int(rule.get("INTERVAL", "1")), int(rule.get("COUNT", "0"))
    except ValueError:
        raise _refused(f"{event.title!r} repeats by {line.value[:80]}, which is no number") from None
    if interval < 1 or not (most > 0 or "UNTIL" in rule):
        raise _refused(f"{event.title!r} repeats without an end; give the series a last day")
    if interval > MAX_INTERVAL:
        raise _refused(f"{event.title!r} has an interval above {MAX_INTERVAL}, which is not supported")
    weekly = rule["FREQ"] == "WEEKLY"
    until = _until(rule["UNTIL"], start) if "UNTIL" in rule else None
    return _Rule(weekly, days or ([_DAYS[start.weekday()]] if weekly else _DAYS), interval, most, until)


def _repeated(event: _Event, start: datetime) -> Sequence[datetime]:
    """The starts of a series, with the same local time of day also across a change to summer time."""
    line = event.one("RRULE")
    if line is None:
        return [start]
    rule = _rule(event, line, start)
    found: list[datetime] = []
    for offset in range(MAX_DAYS):
        day = start.date() + timedelta(days=offset)
        number = (offset + start.weekday()) // 7 if rule.weekly else offset
        if number % rule.interval == 0 and _DAYS[day.weekday()] in rule.days:
            at = datetime.combine(day, start.time(), start.tzinfo)
            if rule.until is not None and at > rule.until:
                return found
            found.append(at)
        if (rule.most and len(found) == rule.most) or len(found) > MAX_MEETINGS:
            return found
    if rule.until is not None and rule.until <= start + timedelta(days=MAX_DAYS):
        return found
    raise _refused(f"{event.title!r} repeats for more than five years; give the series an earlier last day")


def _until(text: str, start: datetime) -> datetime:
    if _TIME.fullmatch(text):
        return _instant(_Line({}, text), start.tzinfo or UTC)
    try:
        last = date(int(text[:4]), int(text[4:6]), int(text[6:8]))
    except ValueError:
        raise _refused(f"UNTIL={text[:20]} is no day") from None
    return datetime.combine(last, time.max, start.tzinfo)
