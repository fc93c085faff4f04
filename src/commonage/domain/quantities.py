"""Parses and formats quantities with units, as users type and read them.

Memory and VRAM are whole MiB, CPUs are whole thousandths of a core, durations are whole seconds. Parsing is strict, and
its errors quote the input. Formatted text parses again: to the same value, or, if shortened for reading, to a slightly
smaller one, so that "request 23.9 GiB or less" is advice that works.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_FLOOR, Decimal

from commonage import units
from commonage.domain.errors import InvalidInput
from commonage.units import quoted

_CPUS = re.compile(r"(?P<number>\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?P<milli>m?)", re.ASCII)
MAX_CPUS_MILLI = 10_000_000


def parse_memory(text: str | int, *, field: str = "memory") -> int:
    """MiB, as `units.parse_memory` reads it. Raises InvalidInput(code="invalid-memory")."""
    try:
        return units.parse_memory(text, field)
    except units.UnitError as error:
        raise InvalidInput(str(error), field=field, code="invalid-memory") from error


def parse_duration(text: str, *, field: str = "time", zero: bool = False) -> int:
    """Seconds, as `units.parse_duration` reads it. Raises InvalidInput(code="invalid-time")."""
    try:
        return units.parse_duration(text, field, zero=zero)
    except units.UnitError as error:
        raise InvalidInput(str(error), field=field, code="invalid-time") from error


def format_memory(mib: int) -> str:
    """`6 GiB`, `1.5 GiB`, `512 MiB`; from 10 GiB on one decimal, rounded down so that it never overstates."""
    if mib >= 10 * 1024 or (mib >= 1024 and mib * 10 % 1024 == 0):
        gib = (Decimal(mib) / 1024).quantize(Decimal("0.1"), ROUND_FLOOR)
        return f"{gib.normalize():f} GiB"
    return f"{mib} MiB"


def parse_cpus(text: str | float, *, field: str = "cpus") -> int:
    """Thousandths of a core from `2`, `0.5`, `1500m`, rounded up. Raises InvalidInput for zero or less."""
    shown = f"{text:f}" if isinstance(text, float) else str(text).strip()
    match = _CPUS.fullmatch(shown.removeprefix("-"))
    if match is None:
        raise InvalidInput(
            f"{field} {quoted(text)} is not a number of cores; write it like 2, 0.5 or 1500m",
            field=field,
            code="invalid-cpus",
        )
    milli = math.ceil(Decimal(match["number"]) * (1 if match["milli"] else 1000))
    if shown.startswith("-") or not 0 < milli <= MAX_CPUS_MILLI:
        raise InvalidInput(
            f"{field} must be more than nothing and at most 10000 cores, not {quoted(text)}",
            field=field,
            code="invalid-cpus",
        )
    return milli


def format_cpus(milli: int) -> str:
    """`2`, `0.5`, `1.25`."""
    return f"{(Decimal(milli) / 1000).normalize():f}"


def format_duration(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 30 min`, `2 d 4 h`: two units at most, for reading."""
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    if minutes < 10 and rest:
        return f"{minutes} min {rest} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
