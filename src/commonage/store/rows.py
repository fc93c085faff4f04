"""The stored form of domain objects, derived from their dataclasses. Pure; called by the modules of this package.

Each field is a column of its table or part of the JSON column `body`; a field without a place is an error at import.
JSON is read by the strict codec of the domain. Fields that an older program did not write get their defaults, and
fields of a newer one are ignored.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, Table, select

from commonage.domain.classes import ClassMeeting
from commonage.domain.codec import clean, cleaned, from_json, to_json
from commonage.domain.cron_jobs import CronJob
from commonage.domain.images import Image
from commonage.domain.nodes import Allocation, Node, Share
from commonage.domain.offboarding import Offboarding
from commonage.domain.resources import StoredResource
from commonage.domain.tenants import QuotaNotice, Reservation
from commonage.domain.usage import UsageReport
from commonage.domain.workloads import Attempt, Event, Spec, Workload
from commonage.store import tables

T = TypeVar("T")
Row = dict[str, Any]
Secrets = tuple[tuple[str, str], ...]

_ESCAPED = re.compile(r"\\u0000|\\ud[89a-f]")
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def _encode(data: Any) -> str:
    text = _encoder.encode(data)
    return _encoder.encode(cleaned(data)) if _ESCAPED.search(text) else text


class Stored(Generic[T]):
    """Rows of one dataclass. `named` are columns with other names than their fields; fields in `elsewhere` are not in
    this row or in columns of another `Stored`.
    """

    def __init__(
        self, kind: type[T], table: Table, *, named: Mapping[str, str] | None = None, elsewhere: Collection[str] = ()
    ) -> None:
        of_kind: Any = kind
        self.table = table
        hints = typing.get_type_hints(kind)
        self.fields = tuple(field.name for field in fields(of_kind) if field.name not in elsewhere)
        self._kind = kind
        places = {name: (named or {}).get(name, name) for name in self.fields}
        in_columns = [name for name in self.fields if places[name] in table.columns]
        self._body = {name: _json_reader(hints[name]) for name in self.fields if name not in in_columns}
        if self._body and "body" not in table.columns:
            raise TypeError(f"{kind.__name__}: the table {table.name} has no column for {', '.join(self._body)}")
        self.columns = (*(places[name] for name in in_columns), *(["body"] if self._body else []))
        converters = [_converters(hints[name]) for name in in_columns]
        self._writers = [(name, places[name], write) for name, (write, _) in zip(in_columns, converters, strict=True)]
        self._readers = [(name, read) for name, (_, read) in zip(in_columns, converters, strict=True)]

    def select(self) -> Select[Any]:
        return select(*(self.table.c[name] for name in self.columns))

    def row(self, value: T) -> Row:
        """The values of `columns`, by name."""
        row = {
            column: getattr(value, name) if write is None else write(getattr(value, name))
            for name, column, write in self._writers
        }
        if self._body:
            row["body"] = _encode({name: to_json(getattr(value, name)) for name in self._body})
        return row

    def value(self, row: Sequence[Any], **elsewhere: Any) -> T:
        """The object of these values of `columns`; `elsewhere` are its other fields."""
        values = {
            name: value if read is None or value is None else read(value)
            for (name, read), value in zip(self._readers, row, strict=False)
        }
        if self._body:
            body = json.loads(row[len(self._readers)])
            values |= {name: read(body[name]) for name, read in self._body.items() if name in body}
        return self._kind(**values, **elsewhere)


_Convert = Callable[[Any], Any]


def _converters(hint: Any) -> tuple[_Convert | None, _Convert | None]:
    """Functions that write and read a column of this type; None for values that the database takes as they are."""
    kind, _ = _without_none(hint)
    if kind is str:
        return _unless_none(clean), None
    if kind in (int, float):
        return None, None
    if kind is bool:
        return None, bool
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _unless_none(lambda value: value.value), kind
    return (
        _unless_none(lambda value: _encode(to_json(value))),
        lambda text: from_json(kind, json.loads(text), ignore_unknown=True),
    )


def _unless_none(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _json_reader(hint: Any) -> _Convert:
    kind, optional = _without_none(hint)
    return lambda data: None if data is None and optional else from_json(kind, data, ignore_unknown=True)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    [kind] = [member for member in typing.get_args(hint) if member is not type(None)]
    return kind, True


WORKLOAD = Stored(Workload, tables.workloads, elsewhere=("spec", "attempt"))
ATTEMPT = Stored(Attempt, tables.attempts, elsewhere=("allocation",))
ALLOCATION = Stored(Allocation, tables.attempts, named={"at": "allocated_at"}, elsewhere=("attempt_id",))
EVENT = Stored(Event, tables.events)
NODE = Stored(Node, tables.nodes)
USAGE_REPORT = Stored(UsageReport, tables.usage_reports)
RESERVATION = Stored(Reservation, tables.reservations)
CRON_JOB = Stored(CronJob, tables.cron_jobs)
CLASS_MEETING = Stored(ClassMeeting, tables.class_meetings)
IMAGE = Stored(Image, tables.images)
RESOURCE = Stored(StoredResource, tables.resources)
QUOTA_NOTICE = Stored(QuotaNotice, tables.quota_notices)
OFFBOARDING = Stored(Offboarding, tables.offboardings)

ATTEMPT_COLUMNS = (*ATTEMPT.columns, *ALLOCATION.columns)


def spec_to_json(spec: Spec) -> str:
    """Everything except the values of secrets, which are stored separately."""
    return _encoder.encode(to_json(spec.without_secrets()))


def spec_from_json(body: str) -> Spec:
    """The spec that `spec_to_json` wrote, without the values of its secrets."""
    return from_json(Spec, json.loads(body), ignore_unknown=True)


def with_secrets(spec: Spec, body: str) -> Spec:
    """The spec with the values that `secrets_to_json` wrote."""
    values: Any = Secrets
    return replace(spec, secrets=from_json(values, json.loads(body)), dropped_secrets=())


def secrets_to_json(secrets: Secrets) -> str:
    return _encoder.encode(secrets)


def workload_row(workload: Workload, spec_id: str, key: str | None) -> Row:
    """A whole row; `key` is the client's, given to the first member of an array only."""
    spec = workload.spec
    return {
        **_charged_to(spec),
        "kind": spec.kind.value,
        "array_id": spec.array_id,
        "cron_job": spec.cron_job,
        "key": None if key is None else clean(key),
        "name_folded": clean(spec.name).casefold(),
        "spec_id": spec_id,
        **progress_row(workload),
    }


def progress_row(workload: Workload) -> Row:
    """The columns that change in a workload's life, and its own that do not."""
    attempt = workload.attempt
    return {
        **WORKLOAD.row(workload),
        "site": clean(attempt.allocation.site) if attempt else None,
        "node": clean(attempt.allocation.node) if attempt else None,
        "attempt_id": attempt.id if attempt else None,
    }


def attempt_row(attempt: Attempt, spec: Spec) -> Row:
    """An attempt with its allocation; owner, tenant and environment are those of its workload's spec."""
    allocation = attempt.allocation
    return {
        **ATTEMPT.row(attempt),
        **ALLOCATION.row(allocation),
        **_charged_to(spec),
        "gpu_mib": sum(share.memory_mib for share in allocation.shares),
        "gpu_milli": sum(share.compute_milli for share in allocation.shares),
    }


def shares_from_text(text: str) -> list[Share]:
    """The shares of an attempt, from their column alone."""
    return [from_json(Share, one, ignore_unknown=True) for one in json.loads(text)]


def _charged_to(spec: Spec) -> Row:
    return {"owner": clean(spec.owner), "tenant": clean(spec.tenant), "environment": clean(spec.environment)}


def attempt_from_row(row: Sequence[Any]) -> Attempt:
    return ATTEMPT.value(row, allocation=ALLOCATION.value(row[len(ATTEMPT.columns) :], attempt_id=row[0]))
