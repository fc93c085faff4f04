"""How the values of settings are read: quantities as people write them, lists, empty variables.

Used by the tables of settings beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from commonage.domain.errors import InvalidInput
from commonage.domain.quantities import parse_cpus, parse_duration, parse_memory

_NOTHING = ("0", "0.0", "0s", "0m", "0h", "0MiB", "0GiB")


def quantity(parse: Any, *, zero: bool = False) -> BeforeValidator:
    """Read a quantity with one of the domain's parsers; pydantic wants a ValueError. `zero`: nothing is an amount."""

    def read(value: object) -> object:
        if value is None or isinstance(value, bool):
            return value
        if zero and str(value).strip() in _NOTHING:
            return 0
        try:
            return parse(value)
        except InvalidInput as error:
            raise ValueError(error.message) from error

    return BeforeValidator(read)


def listed(value: object) -> object:
    """`alice,bob` of a variable or flag as a list; a file has lists of its own."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def no_empty(value: object) -> object:
    """An empty variable is none: `COMMONAGE_DATABASE_URL=` takes it back."""
    return None if value == "" else value


Mib = Annotated[int, quantity(parse_memory)]
Milli = Annotated[int, quantity(parse_cpus)]
Seconds = Annotated[int, quantity(parse_duration)]
Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
Port = Annotated[int, Field(ge=0, le=65535)]
OptionalPath = Annotated[Path | None, BeforeValidator(no_empty)]
OptionalText = Annotated[str | None, BeforeValidator(no_empty)]
# Of a quota or a pause nothing is an amount, too.
MibOrNone = Annotated[int, quantity(parse_memory, zero=True)]
MilliOrNone = Annotated[int, quantity(parse_cpus, zero=True)]
SecondsOrNone = Annotated[int, quantity(parse_duration, zero=True)]
