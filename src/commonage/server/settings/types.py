"""How the values of settings are read: quantities as people write them, lists, empty variables.

Used by the tables of settings beside it.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from commonage.domain.errors import InvalidInput
from commonage.domain.quantities import parse_cpus, parse_duration, parse_memory
from commonage.engines.containers.daemon.admin_mounts import parse_mount

_SMALLEST_RANGE = 22  # has room for two networks
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


def _duration(value: object) -> int:
    """A number of the file has no unit either, and is refused like its text."""
    return parse_duration(str(value), field="the value")


def listed(value: object) -> object:
    """`alice,bob` of a variable or flag as a list; a file has lists of its own."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def no_empty(value: object) -> object:
    """An empty variable is none: `COMMONAGE_DATABASE_URL=` takes it back."""
    return None if value == "" else value


def _mounts(value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for one in value:
            parse_mount(one)
    except InvalidInput as error:
        raise ValueError(error.message) from error
    return value


def _private_range(value: str) -> str:
    network = ipaddress.ip_network(value)
    if network.version != 4 or network.prefixlen > _SMALLEST_RANGE or not network.is_private:
        raise ValueError(f"not a private IPv4 range of at least a /{_SMALLEST_RANGE}")
    return value


Mib = Annotated[int, quantity(parse_memory)]
Milli = Annotated[int, quantity(parse_cpus)]
Seconds = Annotated[int, quantity(_duration)]
Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
Mounts = Annotated[tuple[str, ...], BeforeValidator(listed), AfterValidator(_mounts)]
PrivateRange = Annotated[str, AfterValidator(_private_range)]
Port = Annotated[int, Field(ge=0, le=65535)]
OptionalPath = Annotated[Path | None, BeforeValidator(no_empty)]
OptionalText = Annotated[str | None, BeforeValidator(no_empty)]
# Of a quota or a pause nothing is an amount, too.
MibOrNone = Annotated[int, quantity(parse_memory, zero=True)]
MilliOrNone = Annotated[int, quantity(parse_cpus, zero=True)]
SecondsOrNone = Annotated[int, quantity(_duration, zero=True)]
