"""Parts of a setting: its description, the types of its values, and the text that names the allowed values.

Used by the files with the sections. Parsing, `commonage config`, error texts and the reference page all read these.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.fields import FieldInfo

from commonage.domain.requests import parse_duration
from commonage.engines.settings import parse_mount
from commonage.resources.fields import Quantity, Takes, check_domain, write_duration

_MIN_PREFIX = 22  # has room for two networks
_MAX_RETENTION_S = 36_500 * 86_400
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Row:
    """Further properties of a setting. `takes` overrides the type's text."""

    takes: str = ""
    flag: str | None = None
    secret: bool = False


def setting(default: Any, description: str, takes: str = "", *, flag: str | None = None, secret: bool = False) -> Any:
    """A setting. `flag` is its option of `commonage up`; a `secret` is hidden where settings are printed."""
    row: Any = {"row": Row(takes, flag, secret)}
    return Field(default, description=description, json_schema_extra=row)


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


def _retention(value: object) -> int:
    return parse_duration(str(value), field="the value", max_s=_MAX_RETENTION_S)


def split_list(value: object) -> object:
    """The list that a variable or flag writes as `alice,bob`; a file has lists."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def no_empty(value: object) -> object:
    """None for an empty variable: `COMMONAGE_DATABASE_URL=` restores the default."""
    return None if value == "" else value


def _mounts(value: tuple[str, ...]) -> tuple[str, ...]:
    check_domain(lambda: [parse_mount(one) for one in value])
    return value


def _networks(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(ipaddress.ip_network(one)) for one in value)


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


RetentionSeconds = Annotated[
    int, Quantity(_retention, write_duration, "a duration of at least an hour, like 90d"), Field(ge=3600)
]
Days = Annotated[int, Field(ge=0, le=36_500), Takes("a number of days")]
Names = Annotated[tuple[str, ...], BeforeValidator(split_list), Takes("names, separated by commas")]
Networks = Annotated[
    tuple[str, ...],
    BeforeValidator(split_list),
    AfterValidator(_networks),
    Takes("addresses or networks like 10.0.0.0/8, separated by commas"),
]
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
