"""Calendar months and days in a time zone, as unix seconds: the periods of quotas and their notices."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo


@lru_cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def month_of(at: float, time_zone: str) -> tuple[float, float]:
    """The first instant of the month that contains `at`, and that of the next month, by the clocks of the zone."""
    zone = _zone(time_zone)
    first = datetime.fromtimestamp(at, zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
    year, month = divmod(first.year * 12 + first.month, 12)
    return first.timestamp(), first.replace(year=year, month=month + 1).timestamp()


def day_of(at: float, time_zone: str) -> tuple[float, float]:
    """Likewise the day."""
    first = datetime.fromtimestamp(at, _zone(time_zone)).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    return first.timestamp(), (first + timedelta(days=1)).timestamp()
