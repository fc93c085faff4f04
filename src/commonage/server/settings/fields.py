"""Parts of a setting: its description, the types of its values, and the text that names the allowed values.

Used by the files with the sections. Parsing, `commonage config`, error texts and the reference page all read these.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.fields import FieldInfo

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import format_cpus, parse_cpus, parse_duration, parse_memory
from commonage.engines.settings import parse_mount

_ZERO = ("0", "0.0", "0s", "0m", "0h", "0MiB", "0GiB")
_MIN_PREFIX = 22  # has room for two networks
_MAX_RETENTION_S = 36_500 * 86_400
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*", re.ASCII)
MEMORY = "an amount of memory, like 64GiB"
SPACE = "an amount of disk space, like 50GiB"
DURATION = "a duration, like 10m"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """Properties of a setting besides type, default and description. `takes` overrides the type's text."""

    takes: str = ""
    flag: str | None = None
    secret: bool = False


def setting(default: Any, description: str, takes: str = "", *, flag: str | None = None, secret: bool = False) -> Any:
    """A setting. `flag` is its option of `commonage up`; a `secret` is hidden where settings are printed."""
    row: Any = {"row": Row(takes, flag, secret)}
    return Field(default, description=description, json_schema_extra=row)


@dataclass(frozen=True, slots=True)
class Takes:
    """Describes the values of a type; completes "it takes …"."""

    text: str


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity with a unit: a parser of the domain and the inverse. `zero`: 0 is allowed, too."""

    parse: Callable[[Any], int]
    format: Callable[[int], str]
    text: str
    zero: bool = False

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(Annotated[int, BeforeValidator(self.read)])

    def read(self, value: object) -> object:
        """The number that a text stands for. Raises ValueError, which pydantic reports."""
        if value is None or isinstance(value, bool):
            return value
        if self.zero and str(value).strip() in _ZERO:
            return 0
        return check_domain(lambda: self.parse(value))


def takes_of(field: FieldInfo) -> str:
    """The text of what a setting takes: its own, else that of its type."""
    row: Row = field.json_schema_extra["row"]  # type: ignore[index, assignment]  # every setting is made by `setting`
    if row.takes:
        return row.takes
    if field.annotation is bool:
        return "true or false"
    if get_origin(field.annotation) is Literal:
        *names, last = get_args(field.annotation)
        return f"{', '.join(names)} or {last}"
    found = next(one for one in metadata_of(field) if isinstance(one, Takes | Quantity))
    return f"{found.text}, or 0" if isinstance(found, Quantity) and found.zero else found.text


def metadata_of(field: FieldInfo) -> list[Any]:
    optional = [part for one in get_args(field.annotation) for part in get_args(one)[1:]]
    return [*field.metadata, *optional]


def quantity_of(field: FieldInfo) -> Quantity | None:
    return next((one for one in metadata_of(field) if isinstance(one, Quantity)), None)


def _duration(value: object) -> int:
    """A number in the file has no unit, and is refused like its text."""
    return parse_duration(str(value), field="the value")


def _retention(value: object) -> int:
    return parse_duration(str(value), field="the value", max_s=_MAX_RETENTION_S)


def _write_duration(seconds: int) -> str:
    """`7d`, `10m`, `90s`: in the largest unit that divides it."""
    units = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
    size, unit = next((size, unit) for size, unit in units if seconds % size == 0)
    return f"{seconds // size}{unit}" if seconds else "0"


def _write_memory(mib: int) -> str:
    """`6GiB`, `5.5GiB`, `768MiB`: exact."""
    if not mib:
        return "0"
    return f"{mib / 1024:g}GiB" if mib >= 1024 and mib % 512 == 0 else f"{mib}MiB"


def split_list(value: object) -> object:
    """The list that a variable or flag writes as `alice,bob`; a file has lists."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def no_empty(value: object) -> object:
    """None for an empty variable: `COMMONAGE_DATABASE_URL=` restores the default."""
    return None if value == "" else value


def _mounts(value: tuple[str, ...]) -> tuple[str, ...]:
    check_domain(lambda: [parse_mount(one) for one in value])
    return value


def _private_range(value: str) -> str:
    network = ipaddress.ip_network(value)
    if network.version != 4 or network.prefixlen > _MIN_PREFIX or not network.is_private:
        raise ValueError(f"not a private IPv4 range of at least a /{_MIN_PREFIX}")
    return value


def _ip_address(value: str) -> str:
    try:
        return str(ipaddress.ip_address("127.0.0.1" if value == "localhost" else value.strip("[]")))
    except ValueError:
        raise ValueError("not an IP address") from None


def host_name(value: str | None) -> str | None:
    if value is not None and not _HOST.fullmatch(value):
        raise ValueError("not a host name or an IPv4 address, without port")
    return None if value is None else value.lower()


def host_or_address(value: str | None) -> str | None:
    if value is None or _HOST.fullmatch(value):
        return value
    try:
        return str(ipaddress.ip_address(value.strip("[]")))
    except ValueError:
        raise ValueError("not a host name or an IP address, without port") from None


Mib = Annotated[int, Quantity(parse_memory, _write_memory, MEMORY)]
MibOrZero = Annotated[int, Quantity(parse_memory, _write_memory, MEMORY, zero=True)]
DiskMib = Annotated[int, Quantity(parse_memory, _write_memory, SPACE)]
DiskMibOrZero = Annotated[int, Quantity(parse_memory, _write_memory, SPACE, zero=True)]
Milli = Annotated[int, Quantity(parse_cpus, format_cpus, "a number of cores, like 8 or 0.5")]
MilliOrZero = Annotated[int, Quantity(parse_cpus, format_cpus, "a number of cores, like 8 or 0.5", zero=True)]
Seconds = Annotated[int, Quantity(_duration, _write_duration, DURATION)]
RetentionSeconds = Annotated[
    int, Quantity(_retention, _write_duration, "a duration of at least an hour, like 90d"), Field(ge=3600)
]
SecondsOrZero = Annotated[int, Quantity(_duration, _write_duration, DURATION, zero=True)]
Days = Annotated[int, Field(ge=0, le=36_500), Takes("a number of days")]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), Takes("a number that is not negative")]
Names = Annotated[tuple[str, ...], BeforeValidator(split_list), Takes("names, separated by commas")]
Mounts = Annotated[
    tuple[str, ...],
    BeforeValidator(split_list),
    AfterValidator(_mounts),
    Takes("/folder/here:/folder/inside, separated by commas"),
]
PrivateRange = Annotated[str, AfterValidator(_private_range), Takes("a private range like 10.213.0.0/16")]
IpAddress = Annotated[str, AfterValidator(_ip_address), Takes("an IP address of this machine")]
Port = Annotated[int, Field(ge=1, le=65535), Takes("a port from 1 to 65535")]
PortOrFree = Annotated[int, Field(ge=0, le=65535), Takes("a port from 1 to 65535, or 0 for a free one")]
OptionalPath = Annotated[Path | None, BeforeValidator(no_empty)]
OptionalText = Annotated[str | None, BeforeValidator(no_empty)]


class Entry(BaseModel):
    """One table of a list of tables in the file, such as `[[tenants]]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def _unique(entries: tuple[N, ...]) -> tuple[N, ...]:
    names = [one.name for one in entries]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"{repeated!r} is defined twice")
    return entries


UNIQUE_NAMES = AfterValidator(_unique)


def check_domain(check: Callable[[], T]) -> T:
    """The result of a check of the domain. Raises ValueError with the message of InvalidInput."""
    try:
        return check()
    except InvalidInput as error:
        raise ValueError(error.message) from error
