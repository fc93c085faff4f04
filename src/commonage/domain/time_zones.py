"""Time zones as users name them, and times as dates. Used by reservations, drains, cron jobs and messages."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from commonage.domain.errors import InvalidInput

_OFFSET = re.compile(r"(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>[0-5]\d)", re.ASCII)
_YEAR_1, _YEAR_9999 = datetime(1, 1, 2, tzinfo=UTC).timestamp(), datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def zone_of(name: str, *, field: str = "time_zone") -> tzinfo:
    """Find the zone called `Europe/Berlin`, `UTC` or `+01:00`. Raises InvalidInput."""
    offset = _OFFSET.fullmatch(name)
    try:
        if offset is not None:
            away = timedelta(hours=int(offset["hours"]), minutes=int(offset["minutes"]))
            return timezone(-away if offset["sign"] == "-" else away)
        return UTC if name.upper() == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f"the time zone {name[:40]!r} is not known here; write it like Europe/Berlin, UTC or +01:00", field=field
        ) from None


def utc(at: float) -> datetime:
    """Of unix seconds. A time before the year 1 or after 9999, which a site may report, becomes the nearest one."""
    return datetime.fromtimestamp(max(_YEAR_1, min(at, _YEAR_9999)), UTC)
