"""Durations and amounts of memory as text with a unit, the same in options, job files, settings and forms.

Pure, and below all other packages, as clients that see only the wire read the same text as the server. JSON has numbers
whose field names carry the unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

MAX_DURATION_S = 366 * 24 * 3600
MAX_MEMORY_MIB = 1024**4  # an EiB: more is a typing error, and does not fit into a database's column
_MEMORY = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?)\s*(?P<unit>(?:[kmgtp]i?)?b?)", re.IGNORECASE | re.ASCII)
_BYTES = {
    "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4, "pi": 1024**5,
    "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "p": 1000**5,
}  # fmt: skip
_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,6})?", re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,7})h)?(?:(\d{1,8})m(?:in)?)?(?:(\d{1,9})s)?", re.ASCII)
_SLURM = re.compile(
    r"(?P<days>\d{1,5})-(?P<hours>\d{1,4})(?::(?P<minutes>\d{1,2})(?::(?P<seconds>\d{1,2}))?)?"
    r"|(?:(?P<h>\d{1,5}):)?(?P<m>\d{1,7}):(?P<s>\d{1,2})",
    re.ASCII,
)


class UnitError(ValueError):
    """Text that is not a quantity, or one out of bounds. The message names the field and says what to write."""


def quoted(text: object, limit: int = 60) -> str:
    """The text in quotes, cut to `limit` characters."""
    shown = str(text)
    return repr(shown if len(shown) <= limit else shown[: limit - 3] + "...")


def parse_duration(text: str, field: str, *, zero: bool = False, max_s: int = MAX_DURATION_S) -> int:
    """Seconds from `90s`, `90m`, `1h30m`, `2d`, or Slurm's `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` and `D-HH:MM:SS`.

    A number without a unit is refused, as it is minutes in Slurm and seconds elsewhere. `zero`: `0` and `0s`
    are durations, too. Raises UnitError.
    """
    stripped = text.strip()
    if zero and stripped == "0":
        return 0
    if _NUMBER.fullmatch(stripped):
        raise UnitError(f"{field} {stripped} has no unit. Write {_with_units(stripped)}.")
    seconds = _seconds_of(stripped)
    if seconds is None:
        raise UnitError(f"{field} {quoted(text)} is not a duration. Write it like 90s, 30m, 1h30m, 2d or 01:30:00.")
    if not (0 if zero else 1) <= seconds <= max_s:
        least = "at least" if zero else "above"
        raise UnitError(f"{field} must be {least} zero and at most {max_s // 86_400} days, not {quoted(text)}.")
    return seconds


def _with_units(number: str) -> str:
    whole = number if number.isdigit() and int(number) else "90"
    return f"{whole}m for minutes or {whole}s for seconds"


def _seconds_of(text: str) -> int | None:
    if text.startswith("-"):
        return None if text.startswith("--") or _seconds_of(text[1:]) is None else -1
    slurm = _SLURM.fullmatch(text)
    if slurm is not None:
        part = {name: int(value or 0) for name, value in slurm.groupdict().items()}
        hours = part["days"] * 24 + part["hours"] + part["h"]
        return (hours * 60 + part["minutes"] + part["m"]) * 60 + part["seconds"] + part["s"]
    match = _DURATION.fullmatch(text.replace(" ", ""))
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds = (int(value or 0) for value in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_memory(text: str | int, field: str) -> int:
    """MiB from `6GiB`, `512MiB`, `6G` (binary, as in Slurm), `1.5GiB`, `2GB` (decimal), or a number of MiB (Slurm).

    Rounded up to a whole MiB. Raises UnitError.
    """
    mib = text if isinstance(text, int) else _mib_of(text.strip())
    if mib is None:
        raise UnitError(f"{field} {quoted(text)} is not an amount of memory. Write it like 6GiB or 512MiB.")
    if not 0 < mib <= MAX_MEMORY_MIB:
        raise UnitError(f"{field} must be above zero and at most 1024 PiB, not {quoted(text)}.")
    return mib


def _mib_of(text: str) -> int | None:
    if text.startswith("-") and _MEMORY.fullmatch(text[1:]):
        return -1  # an amount, though below zero
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


_FIELDS: Mapping[str, tuple[str, Callable[[str, str], int]]] = {
    "time": ("time_limit_s", parse_duration),
    "grace": ("grace_s", partial(parse_duration, zero=True)),
    "backoff": ("backoff_s", partial(parse_duration, zero=True)),
    "starting_deadline": ("starting_deadline_s", partial(parse_duration, zero=True)),
    "health_interval": ("health_interval_s", parse_duration),
    "memory": ("memory_mib", parse_memory),
}
TEXT_FIELDS = frozenset(_FIELDS)
"""Fields that options, job files and forms write as text with a unit. In JSON the field name carries the unit."""


def with_units_in_names(given: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The same with `TEXT_FIELDS` as the numbers that JSON has. `labels`: names in errors. Raises UnitError."""
    fields = {name: value for name, value in given.items() if name not in _FIELDS}
    for name in given.keys() & _FIELDS.keys():
        field, parse = _FIELDS[name]
        if given[name] is not None:
            fields[field] = parse(str(given[name]), (labels or {}).get(name, name))
    return fields


def format_speed(bytes_per_s: float) -> str:
    """`0 B/s`, `1.5 MB/s`: in powers of 1000, as network and disks are sold."""
    value, unit = bytes_per_s, "B/s"
    for larger in ("kB/s", "MB/s", "GB/s"):
        if round(value) < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B/s" or value >= 10 else f"{value:.1f} {unit}"
