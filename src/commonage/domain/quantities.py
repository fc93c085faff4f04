"""Quantities with units: what users type, and how we print it back.

Memory and VRAM are whole MiB, CPU is whole thousandths of a core, durations are whole seconds. Parsing is strict and
says what was typed; formatting gives back something that parses to the same value.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation

from commonage.domain.errors import InvalidInput

_MEMORY = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?)\s*(?P<unit>[kmgtp]?i?b?)", re.IGNORECASE | re.ASCII)
_BYTES = {
    "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4, "pi": 1024**5,
    "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "p": 1000**5,
}  # fmt: skip
_DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,7})h)?(?:(\d{1,8})m)?(?:(\d{1,9})s)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,5})-)?(\d{1,4}):(\d{2})(?::(\d{2}))?", re.ASCII)
MAX_DURATION_S = 366 * 24 * 3600


def _asked(text: object) -> str:
    shown = str(text)
    return repr(shown if len(shown) <= 60 else shown[:57] + "...")


def parse_memory(text: str | int, *, field: str = "memory") -> int:
    """MiB from `6GiB`, `512MiB`, `6G` (Slurm's habit: binary), `1.5GiB`, `2GB` (decimal), or a plain number of MiB.

    Rounded up to a whole MiB. Raises InvalidInput for anything else, for zero and for less than nothing.
    """
    if isinstance(text, int):
        if text <= 0:
            raise InvalidInput(f"{field} must be more than nothing, not {text} MiB", field=field, code="invalid-memory")
        return text
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(
            f"{field} {_asked(text)} is not an amount of memory; write it like 6GiB or 512MiB",
            field=field,
            code="invalid-memory",
        )
    unit = match["unit"].lower()
    scale = _scale(unit)
    mib = -(-int(Decimal(match["number"]) * scale) // 1024**2)
    if mib <= 0:
        raise InvalidInput(f"{field} must be more than nothing, not {_asked(text)}", field=field, code="invalid-memory")
    return mib


def _scale(unit: str) -> int:
    """Bytes of one of `unit` (lower case): none = MiB, `g`/`gi`/`gib` binary, `gb` decimal, `b` bytes."""
    if unit == "":
        return 1024**2
    if unit == "b":
        return 1
    if unit.endswith("ib") or unit.endswith("i"):
        return _BYTES[unit.removesuffix("b")] if unit not in ("i", "ib") else 1
    if unit.endswith("b"):
        return _BYTES[unit[0]]
    return _BYTES[unit + "i"]


def format_memory(mib: int) -> str:
    """`6 GiB`, `1.5 GiB`, `512 MiB`: at most one decimal, exact otherwise in MiB."""
    if mib >= 1024 and (mib * 10) % 1024 == 0:
        gib = Decimal(mib) / 1024
        return f"{gib.normalize():f} GiB"
    if mib >= 10 * 1024:
        return f"{mib / 1024:.1f} GiB"
    return f"{mib} MiB"


def parse_cpus(text: str | float, *, field: str = "cpus") -> int:
    """Thousandths of a core from `2`, `0.5`, `1500m`. Raises InvalidInput for nothing or less."""
    shown = str(text).strip()
    try:
        milli = Decimal(shown[:-1]) if shown.endswith("m") else Decimal(shown) * 1000
        whole = int(milli)
    except (InvalidOperation, ValueError, OverflowError):
        raise InvalidInput(
            f"{field} {_asked(text)} is not a number of cores; write it like 2, 0.5 or 1500m",
            field=field,
            code="invalid-cpus",
        ) from None
    if whole <= 0 or whole > 10_000_000:
        raise InvalidInput(
            f"{field} must be between 0.001 and 10000 cores, not {_asked(text)}",
            field=field,
            code="invalid-cpus",
        )
    return whole


def format_cpus(milli: int) -> str:
    """`2`, `0.5`, `1.25`."""
    return f"{(Decimal(milli) / 1000).normalize():f}"


def parse_duration(text: str | float, *, field: str = "time") -> int:
    """Seconds from `90m`, `1h30m`, `2d`, `45s`, Slurm's `[D-]HH:MM[:SS]`, or a plain number of minutes typed as text.

    A number that is not text is seconds. Raises InvalidInput for nothing, for less, and for more than 366 days.
    """
    seconds = _number_of_seconds(text) if isinstance(text, (int, float)) else _seconds_of(text.strip())
    if seconds is None:
        raise InvalidInput(
            f"{field} {_asked(text)} is not a duration; write it like 30m, 1h30m, 2d or 01:30:00",
            field=field,
            code="invalid-time",
        )
    if seconds <= 0 or seconds > MAX_DURATION_S:
        raise InvalidInput(
            f"{field} must be more than nothing and at most 366 days, not {_asked(text)}",
            field=field,
            code="invalid-time",
        )
    return seconds


def _number_of_seconds(number: float) -> int | None:
    """Whole seconds, rounded up; None for what is not a number."""
    if not math.isfinite(number):
        return None
    return -int(-number // 1) if number > 0 else int(number)


def _seconds_of(text: str) -> int | None:
    if text.startswith("-") and _seconds_of(text[1:]) is not None:
        return -1
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text) * 60
    match = _DURATION.fullmatch(text.replace(" ", ""))
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


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
