"""Dataclasses to JSON and back, by their own annotations. Strict: what is not exactly of its type is refused.

For what crosses the link, and for files that agents write: it needs no library. A field that is missing takes its
default, so that an older side can be understood; one that is not known is refused, and named.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from commonage.domain.errors import InvalidInput

T = TypeVar("T")
Json = Any
"""What `json` takes and gives."""


class Unreadable(InvalidInput):
    """What came is not of the type that was due. The message says where."""

    code = "unreadable"


def to_json(value: object) -> Json:
    """Of a dataclass, of what may be in one, or of a tuple of those."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [to_json(one) for one in value]
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} does not cross the link")


def from_json(kind: type[T], data: Json) -> T:
    """The dataclass. Raises Unreadable."""
    made: T = _read(kind, data, kind.__name__)
    return made


def _read(kind: Any, data: Json, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is typing.Union or origin is types.UnionType:
        return _read_optional(kind, data, where)
    if origin is tuple:
        return _read_tuple(typing.get_args(kind), data, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _read_enum(kind, data, where)
    if is_dataclass(kind):
        return _read_dataclass(kind, data, where)
    return _read_plain(kind, data, where)


def _read_plain(kind: Any, data: Json, where: str) -> Any:
    if kind is float and type(data) in (int, float) and math.isfinite(data):
        return float(data)
    if kind in (str, int, bool) and type(data) is kind:
        return data
    raise Unreadable(f"{where} should be {getattr(kind, '__name__', kind)}, and is {_shown(data)}")


def _read_optional(kind: Any, data: Json, where: str) -> Any:
    inner = [one for one in typing.get_args(kind) if one is not type(None)]
    if data is None and len(inner) < len(typing.get_args(kind)):
        return None
    [only] = inner  # no other unions cross the link
    return _read(only, data, where)


def _read_tuple(kinds: tuple[Any, ...], data: Json, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise Unreadable(f"{where} should be a list, and is {_shown(data)}")
    if len(kinds) == 2 and kinds[1] is ...:
        kinds = (kinds[0],) * len(data)
    if len(kinds) != len(data):
        raise Unreadable(f"{where} should have {len(kinds)} parts, and has {len(data)}")
    return tuple(_read(kind, one, f"{where}[{at}]") for at, (kind, one) in enumerate(zip(kinds, data, strict=True)))


def _read_enum(kind: type[Enum], data: Json, where: str) -> Enum:
    try:
        return kind(data)
    except ValueError:
        known = ", ".join(str(one.value) for one in kind)
        raise Unreadable(f"{where} should be one of {known}, and is {_shown(data)}") from None


def _read_dataclass(kind: Any, data: Json, where: str) -> Any:
    if not isinstance(data, dict):
        raise Unreadable(f"{where} should be an object, and is {_shown(data)}")
    known = _fields_of(kind)
    if strange := sorted(map(str, data.keys() - known.keys())):
        raise Unreadable(f"{where} has {', '.join(strange)[:200]}, which is not known here")
    found = {}
    for name, (hint, field) in known.items():
        if name in data:
            found[name] = _read(hint, data[name], f"{where}.{name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise Unreadable(f"{where} lacks {name}")
    return kind(**found)


@cache
def _fields_of(kind: Any) -> Mapping[str, tuple[Any, Field[Any]]]:
    hints = typing.get_type_hints(kind)
    return {field.name: (hints[field.name], field) for field in fields(kind)}


def _shown(data: Json) -> str:
    text = repr(data)
    return text if len(text) <= 80 else text[:77] + "..."
