"""Converts dataclasses to JSON and back, from their annotations. Strict: a value of the wrong type is refused.

Used on the link, in the store, and for files that agents write: it needs no library. A missing field takes its default,
so that an older side is understood; an unknown field is refused by name, unless the caller ignores those. Then an
unknown reason is read as `NewerReason`.
"""

from __future__ import annotations

import itertools
import math
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from commonage.domain.errors import InvalidInput
from commonage.domain.reasons import REASONS, Reason
from commonage.domain.reasons.notes import NewerReason

T = TypeVar("T")
Json = Any  # the values that the module `json` reads and writes
_MAX_CODE = 100
MAX_CAUSES = 20
MAX_NUMBER = 2**53
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class Unreadable(InvalidInput):
    """The data is not of the expected type. The message says where."""

    code = "unreadable"


def clean(text: str) -> str:
    """`text` as a database can hold it: U+FFFD for NUL and lone surrogates, which a program's output may contain."""
    return _UNSTORABLE.sub("\ufffd", text)


def cleaned(data: Json) -> Json:
    """The same with all its texts cleaned."""
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, dict):
        return {clean(name): cleaned(value) for name, value in data.items()}
    return [cleaned(value) for value in data] if isinstance(data, list) else data


def to_json(value: object) -> Json:
    """Takes a dataclass, any value allowed in one, or a tuple of those."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Reason):
        return {"code": value.code, "params": _fields_to_json(value)}
    if is_dataclass(value):
        return _fields_to_json(value)
    raise TypeError(f"{type(value).__name__} does not cross the link")


def _fields_to_json(value: Any) -> Json:
    hashable: Any = type(value)
    return {name: to_json(getattr(value, name)) for name in _names(hashable)}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def from_json(kind: type[T], data: Json, *, ignore_unknown: bool = False) -> T:
    """The value of type `kind`; with `ignore_unknown`, the writer may be newer. Raises Unreadable."""
    hashable: Any = kind
    try:
        made: T = _reader(hashable, ignore_unknown)(data)
    except _Wrong as wrong:
        raise Unreadable(f"{kind.__name__}{''.join(reversed(wrong.path))} {wrong.why}") from None
    return made


class _Wrong(Exception):
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path: list[str] = []


_Reader = Callable[[Json], Any]


@cache
def _reader(kind: Any, ignore_unknown: bool) -> _Reader:
    """The reader of this type, cached: reports of a site's nodes are large."""
    origin = typing.get_origin(kind)
    if origin is typing.Union or origin is types.UnionType:
        [only] = [
            member for member in typing.get_args(kind) if member is not type(None)
        ]  # other unions do not cross the link
        inner = _reader(only, ignore_unknown)
        return lambda data: None if data is None else inner(data)
    if origin is tuple:
        return _tuple_reader(typing.get_args(kind), ignore_unknown)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_reader(kind)
    if kind is Reason:
        return lambda data: _read_reason(data, ignore_unknown)
    if is_dataclass(kind):
        return _dataclass_reader(kind, ignore_unknown)
    return _float if kind is float else _plain_reader(kind)


def _float(data: Json) -> float:
    if (type(data) is float and math.isfinite(data)) or (type(data) is int and abs(data) <= MAX_NUMBER):
        return float(data)
    raise _Wrong(f"should be a number, and is {_shown(data)}")


def _plain_reader(kind: Any) -> _Reader:
    if kind not in (str, int, bool):
        raise TypeError(f"{kind} does not cross the link")

    def read(data: Json) -> Any:
        if type(data) is kind:
            return data
        raise _Wrong(f"should be {kind.__name__}, and is {_shown(data)}")

    return read


def _tuple_reader(kinds: tuple[Any, ...], ignore_unknown: bool) -> _Reader:
    of_any_length = len(kinds) == 2 and kinds[1] is ...
    readers = [_reader(kind, ignore_unknown) for kind in kinds if kind is not ...]

    def read(data: Json) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise _Wrong(f"should be a list, and is {_shown(data)}")
        if not of_any_length and len(data) != len(readers):
            raise _Wrong(f"should have {len(readers)} parts, and has {len(data)}")
        items: list[Any] = []
        try:
            for read_item, item in zip(itertools.cycle(readers), data, strict=False):
                items.append(read_item(item))
        except _Wrong as wrong:
            wrong.path.append(f"[{len(items)}]")
            raise
        return tuple(items)

    return read


def _enum_reader(kind: type[Enum]) -> _Reader:
    def read(data: Json) -> Enum:
        try:
            return kind(data)
        except ValueError:
            known = ", ".join(str(member.value) for member in kind)
            raise _Wrong(f"should be one of {known}, and is {_shown(data)}") from None

    return read


def _read_reason(data: Json, ignore_unknown: bool) -> Reason:
    if isinstance(data, dict) and data.keys() == {"code", "params"}:
        _cut_causes(data)
    return _reason_of(data, ignore_unknown)


def _cut_causes(data: Json) -> None:
    """Shorten a chain of causes to `MAX_CAUSES`, in place: a site may send any, and each is read within another."""
    level = [data]
    for _ in range(MAX_CAUSES):
        level = [holder[key] for one in level for holder, key in _causes(one)]
        if not level:
            return
    for one in level:
        for holder, key in list(_causes(one)):
            holder[key] = {"code": NewerReason.__name__, "params": {"reason": str(holder[key]["code"])[:_MAX_CODE]}}


def _causes(data: Json) -> Iterator[tuple[Json, Json]]:
    """Where the causes of this reason are: in a dict or list, and its key there."""
    holders = [data["params"]]
    while holders:
        holder = holders.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, value in items:
            if isinstance(value, dict) and value.keys() == {"code", "params"}:
                yield holder, key
            elif isinstance(value, list):
                holders.append(value)


def _reason_of(data: Json, ignore_unknown: bool) -> Reason:
    if not isinstance(data, dict) or data.keys() != {"code", "params"}:
        raise _Wrong(f"should be a reason, and is {_shown(data)}")
    kind = REASONS.get(data["code"]) if isinstance(data["code"], str) else None
    if kind is None and ignore_unknown and isinstance(data["code"], str):
        return NewerReason(reason=data["code"][:_MAX_CODE])
    if kind is None:
        raise _Wrong(f"has the code {_shown(data['code'])}, which is not known here")
    try:
        hashable: Any = kind
        read: Reason = _reader(hashable, ignore_unknown)(data["params"])
    except _Wrong as wrong:
        wrong.path.append(f".{kind.__name__}")
        raise
    return read


def _dataclass_reader(kind: Any, ignore_unknown: bool) -> _Reader:
    hints = typing.get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name], ignore_unknown) for field in fields(kind)}
    needed = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]

    def read(data: Json) -> Any:
        if not isinstance(data, dict):
            raise _Wrong(f"should be an object, and is {_shown(data)}")
        name = ""
        if ignore_unknown:
            data = {name: value for name, value in data.items() if name in readers}
        try:
            values = {}
            for name, value in data.items():
                values[name] = readers[name](value)
        except _Wrong as wrong:
            wrong.path.append(f".{name}")
            raise
        except KeyError:
            strange = ", ".join(sorted(map(str, data.keys() - readers.keys())))
            raise _Wrong(f"has {strange[:200]}, which is not known here") from None
        for name in needed:
            if name not in values:
                raise _Wrong(f"lacks {name}")
        return kind(**values)

    return read


def _shown(data: Json) -> str:
    text = repr(data)
    return text if len(text) <= 80 else text[:77] + "..."
