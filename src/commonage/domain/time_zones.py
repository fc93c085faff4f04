"""Time zones as users name them. Used by reservations, drains and cron jobs."""

from __future__ import annotations

import re
from datetime import UTC, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from commonage.domain.errors import InvalidInput

_OFFSET = re.compile(r"(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>[0-5]\d)", re.ASCII)


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
