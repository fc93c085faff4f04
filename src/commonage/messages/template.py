"""How parameters of reasons look in sentences: by the unit that their names end in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from commonage.domain.reasons import Reason
from commonage.domain.requests import format_cpus, format_duration, format_memory
from commonage.domain.time_zones import utc

Say = Callable[[Reason], str]
"""`messages.text`: the sentences for a cause."""
Text = str | Callable[[Any, Say], str]
"""A sentence with parameters in braces, or a function of the reason where it depends on them."""
Texts = Mapping[type[Reason], Text]


def moment(at: float) -> str:
    """`2026-11-23 14:05 UTC`."""
    return f"{utc(at):%Y-%m-%d %H:%M} UTC"


def count(number: int, noun: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def sentence(error: str) -> str:
    """The message of another program as a sentence: first letter upper case, with a full stop."""
    error = error.strip()
    return f"{error[:1].upper()}{error[1:]}" + ("" if error.endswith((".", "!", "?")) else ".")


_UNITS: Mapping[str, Callable[[Any], str]] = {
    "_mib": format_memory,
    "cpus_milli": format_cpus,
    "_milli": lambda milli: f"{milli / 10:g}%",
    "_s": format_duration,
    "_at": moment,
}


class Params(Mapping[str, str]):
    """The parameters of a reason as `str.format_map` wants them."""

    def __init__(self, reason: Reason, say: Say) -> None:
        self._reason, self._say = reason, say

    def __getitem__(self, name: str) -> str:
        value = getattr(self._reason, name)
        if isinstance(value, Reason):
            return self._say(value)
        if isinstance(value, Enum):
            return str(value.value)
        for ending, show in _UNITS.items():
            if name.endswith(ending) and isinstance(value, int | float):
                return show(value)
        return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def __iter__(self) -> Iterator[str]:
        return iter(type(self._reason).__dataclass_fields__)

    def __len__(self) -> int:
        return len(type(self._reason).__dataclass_fields__)
