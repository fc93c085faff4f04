"""Quantities with units: what users type, and how we print it back.

Memory and VRAM are whole MiB, CPU is whole thousandths of a core, durations are whole seconds. Parsing is strict and
says what was typed. What formatting gives parses again: to the same value, or where it was shortened for reading to a
little less, so that "ask for 23.9 GiB or less" is advice that works.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_FLOOR, Decimal

from commonage.domain.errors import InvalidInput

_MEMORY = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?)\s*(?P<unit>(?:[kmgtp]i?)?b?)", re.IGNORECASE | re.ASCII)
_BYTES = {
    "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4, "pi": 1024**5,
    "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "p": 1000**5,
}  # fmt: skip
_CPUS = re.compile(r"(?P<number>\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?P<milli>m?)", re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,7})h)?(?:(\d{1,8})m(?:in)?)?(?:(\d{1,9})s)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,5})-)?(\d{1,4}):(\d{2})(?::(\d{2}))?", re.ASCII)
MAX_DURATION_S = 366 * 24 * 3600
MAX_MEMORY_MIB = 1024**4  # an EiB: more is a slip of the finger, and would not fit a database's column
MAX_CPUS_MILLI = 10_000_000


def _asked(text: object) -> str:
    shown = str(text)
    return repr(shown if len(shown) <= 60 else shown[:57] + "...")


def parse_memory(text: str | int, *, field: str = "memory") -> int:
    """MiB from `6GiB`, `512MiB`, `6G` (Slurm's habit: binary), `1.5GiB`, `2GB` (decimal), or a plain number of MiB.

    Rounded up to a whole MiB. Raises InvalidInput for anything else, for zero and for less than nothing.
    """
    mib = text if isinstance(text, int) else _mib_of(text.strip())
    if mib is None:
        raise _invalid(field, f"{_asked(text)} is not an amount of memory; write it like 6GiB or 512MiB", "memory")
    if not 0 < mib <= MAX_MEMORY_MIB:
        raise _invalid(field, f"must be more than nothing and at most 1024 PiB, not {_asked(text)}", "memory")
    return mib


def _invalid(field: str, why: str, sort: str) -> InvalidInput:
    return InvalidInput(f"{field} {why}", field=field, code=f"invalid-{sort}")


def _mib_of(text: str) -> int | None:
    if text.startswith("-") and _MEMORY.fullmatch(text[1:]):
        return -1  # an amount, though less than nothing
    match = _MEMORY.fullmatch(text)
    if match is None:
        return None
    return math.ceil(Decimal(match["number"]) * _scale(match["unit"].lower()) / 1024**2)


def _scale(unit: str) -> int:
    """Bytes of one of `unit` (lower case): none = MiB, `g`/`gi`/`gib` binary, `gb` decimal, `b` bytes."""
    if unit == "":
        return 1024**2
    if unit == "b":
        return 1
    if unit.endswith("b"):
        return _BYTES[unit.removesuffix("b")]
    return _BYTES[unit[0] + "i"]


def format_memory(mib: int) -> str:
    """`6 GiB`, `1.5 GiB`, `512 MiB`; from 10 GiB on one decimal, rounded down so that it never says too much."""
    if mib >= 10 * 1024 or (mib >= 1024 and mib * 10 % 1024 == 0):
        gib = (Decimal(mib) / 1024).quantize(Decimal("0.1"), ROUND_FLOOR)
        return f"{gib.normalize():f} GiB"
    return f"{mib} MiB"


def parse_cpus(text: str | float, *, field: str = "cpus") -> int:
    """Thousandths of a core from `2`, `0.5`, `1500m`, rounded up. Raises InvalidInput for nothing or less."""
    shown = f"{text:f}" if isinstance(text, float) else str(text).strip()
    match = _CPUS.fullmatch(shown.removeprefix("-"))
    if match is None:
        raise _invalid(field, f"{_asked(text)} is not a number of cores; write it like 2, 0.5 or 1500m", "cpus")
    milli = math.ceil(Decimal(match["number"]) * (1 if match["milli"] else 1000))
    if shown.startswith("-") or not 0 < milli <= MAX_CPUS_MILLI:
        raise _invalid(field, f"must be more than nothing and at most 10000 cores, not {_asked(text)}", "cpus")
    return milli


def format_cpus(milli: int) -> str:
    """`2`, `0.5`, `1.25`."""
    return f"{(Decimal(milli) / 1000).normalize():f}"


def parse_duration(text: str | float, *, field: str = "time") -> int:
    """Seconds from `90m`, `1h30m`, `2d`, `45s`, Slurm's `[D-]HH:MM[:SS]`, or a plain number of minutes typed as text.

    A number that is not text is seconds. Raises InvalidInput for nothing, for less, and for more than 366 days.
    """
    seconds = _number_of_seconds(text) if isinstance(text, (int, float)) else _seconds_of(text.strip())
    if seconds is None:
        raise _invalid(field, f"{_asked(text)} is not a duration; write it like 30m, 1h30m, 2d or 01:30:00", "time")
    if not 0 < seconds <= MAX_DURATION_S:
        raise _invalid(field, f"must be more than nothing and at most 366 days, not {_asked(text)}", "time")
    return seconds


def _number_of_seconds(number: float) -> int | None:
    """Whole seconds, rounded up; None for what is not a number."""
    if not math.isfinite(number):
        return None
    return -int(-number // 1) if number > 0 else int(number)


def _seconds_of(text: str) -> int | None:
    if text.startswith("-"):
        return None if text.startswith("--") or _seconds_of(text[1:]) is None else -1
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
