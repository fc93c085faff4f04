"""Types of values with a unit, and the base of the forms. Shared by resources and the server's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializationInfo,
)

from commonage.domain.errors import InvalidInput
from commonage.domain.requests import (
    format_cpus,
    parse_cpus,
    parse_duration,
    parse_labels,
    parse_memory,
)

DOCUMENT = "document"
"""The context of `model_dump` in which quantities are written with their units."""
MEMORY = "an amount of memory, like 64GiB"
SPACE = "an amount of disk space, like 50GiB"
DURATION = "a duration, like 10m"
_ZERO = ("0", "0.0", "0s", "0m", "0h", "0MiB", "0GiB")
_RESERVED_LABELS = ("node", "site", "engine")  # every node has them
T = TypeVar("T")


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
        return handler.generate_schema(Annotated[int, BeforeValidator(self.read), PlainSerializer(self.write)])

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: GetJsonSchemaHandler) -> Any:
        return {"type": ["string", "number"], "description": self.text[0].upper() + self.text[1:]}

    def read(self, value: object) -> object:
        """The number that a text stands for. Raises ValueError, which pydantic reports."""
        if value is None or isinstance(value, bool):
            return value
        if self.zero and str(value).strip() in _ZERO:
            return 0
        return check_domain(lambda: self.parse(value))

    def write(self, value: int, info: SerializationInfo) -> Any:
        return _number_or_text(self.format(value)) if info.context == DOCUMENT else value


def _number_or_text(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _duration(value: object) -> int:
    """A number in the file has no unit, and is refused like its text."""
    return parse_duration(str(value), field="the value")


def write_duration(seconds: int) -> str:
    """`7d`, `10m`, `90s`: in the largest unit that divides it."""
    units = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
    size, unit = next((size, unit) for size, unit in units if seconds % size == 0)
    return f"{seconds // size}{unit}" if seconds else "0"


def _write_memory(mib: int) -> str:
    """`6GiB`, `5.5GiB`, `768MiB`: exact."""
    if not mib:
        return "0"
    return f"{mib / 1024:g}GiB" if mib >= 1024 and mib % 512 == 0 else f"{mib}MiB"


def _devices(value: object) -> int:
    """Thousandths of GPUs for a number of GPUs, such as 2.5."""
    try:
        devices = float(str(value))
    except ValueError:
        raise ValueError("not a number of GPUs; write it like 4 or 2.5") from None
    if not 0 <= devices <= 1_000_000:
        raise ValueError("not a number of GPUs from 0 to a million")
    return round(devices * 1000)


def _labels(value: object) -> object:
    """The names and values that a variable writes as `zone=basement,rack=7`; a file has a table."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("not of the form zone=basement,rack=7")
    return {name.strip(): text.strip() for name, _, text in pairs}


def _known_labels(labels: dict[str, str]) -> dict[str, str]:
    found = dict(check_domain(lambda: parse_labels(labels.items(), field="it")))
    reserved = next((name for name in _RESERVED_LABELS if name in found), None)
    if reserved is not None:
        raise ValueError(f"{reserved} is a label that every node already has")
    return found


Mib = Annotated[int, Quantity(parse_memory, _write_memory, MEMORY)]
MibOrZero = Annotated[int, Quantity(parse_memory, _write_memory, MEMORY, zero=True)]
DiskMib = Annotated[int, Quantity(parse_memory, _write_memory, SPACE)]
DiskMibOrZero = Annotated[int, Quantity(parse_memory, _write_memory, SPACE, zero=True)]
Milli = Annotated[int, Quantity(parse_cpus, format_cpus, "a number of cores, like 8 or 0.5")]
MilliOrZero = Annotated[int, Quantity(parse_cpus, format_cpus, "a number of cores, like 8 or 0.5", zero=True)]
DevicesMilli = Annotated[int, Quantity(_devices, lambda milli: f"{milli / 1000}", "a number of GPUs, like 4 or 2.5")]
Seconds = Annotated[int, Quantity(_duration, write_duration, DURATION)]
SecondsOrZero = Annotated[int, Quantity(_duration, write_duration, DURATION, zero=True)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), Takes("a number that is not negative")]
Labels = Annotated[
    dict[str, str],
    BeforeValidator(_labels),
    AfterValidator(_known_labels),
    Takes("a table of names with values in the file, or zone=basement,rack=7"),
]


class Entry(BaseModel):
    """One table of a list of tables in the settings, such as `[[tenants]]`, or a part of one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Form(Entry):
    """The fields of one resource. Tables of the settings that declare resources have the same fields."""

    name: str


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
