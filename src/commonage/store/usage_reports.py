"""Usage reports (usage reports) in the database, each under its attempt's id; rewritten while the attempt runs.

Called by `sql_store`. Fields that queries filter by are columns, the rest is JSON; fields that an older program did
not write get their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from sqlalchemy import Select, select
from sqlalchemy.engine import Connection

from commonage.domain.usage_reports import Figures, UsageReport
from commonage.store.codec import Row, clean
from commonage.store.database import Database
from commonage.store.statements import Prepared, upsert
from commonage.store.tables import usage_reports

_COLUMNS: Final = ("attempt_id", "workload_id", "owner", "likeness", "began_at", "ended_at")
_WHOLE = select(*(usage_reports.c[name] for name in _COLUMNS), usage_reports.c.body)
_ASKED: Final = tuple(each.name for each in fields(UsageReport) if each.name not in (*_COLUMNS, "figures"))
_FIGURES: Final = tuple(each.name for each in fields(Figures))
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class UsageReports:
    """The repository of usage reports."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = Prepared(upsert(usage_reports, database.dialect), database.dialect)

    def write(self, connection: Connection, rows: Iterable[Row]) -> None:
        """Insert or replace by attempt."""
        self._upsert.many(connection, rows)

    async def of(self, workload_id: str) -> Sequence[UsageReport]:
        """The reports of a workload's attempts, oldest first."""
        which = _WHOLE.where(usage_reports.c.workload_id == clean(workload_id))
        return await self._read(which.order_by(usage_reports.c.began_at, usage_reports.c.attempt_id))

    async def like(self, owner: str, likeness: str, limit: int) -> Sequence[UsageReport]:
        """Ended ones with this owner and likeness, newest first."""
        which = _WHOLE.where(
            usage_reports.c.owner == clean(owner),
            usage_reports.c.likeness == clean(likeness),
            usage_reports.c.ended_at.is_not(None),
        )
        return await self._read(
            which.order_by(usage_reports.c.ended_at.desc(), usage_reports.c.attempt_id.desc()).limit(limit)
        )

    async def open(self) -> Sequence[UsageReport]:
        """Reports that have not ended, oldest first."""
        which = _WHOLE.where(usage_reports.c.ended_at.is_(None))
        return await self._read(which.order_by(usage_reports.c.began_at, usage_reports.c.attempt_id))

    async def _read(self, statement: Select[Any]) -> Sequence[UsageReport]:
        return [_usage_report(row) for row in await self._database.read(statement)]


def usage_report_row(usage_report: UsageReport) -> Row:
    """A whole row."""
    body = {name: getattr(usage_report, name) for name in _ASKED}
    return {
        **{name: getattr(usage_report, name) for name in _COLUMNS},
        "owner": clean(usage_report.owner),
        "body": _encoder.encode({**body, "figures": {name: getattr(usage_report.figures, name) for name in _FIGURES}}),
    }


def _usage_report(row: Sequence[Any]) -> UsageReport:
    read: Mapping[str, Any] = json.loads(row[len(_COLUMNS)])
    known = {name: read[name] for name in _ASKED if name in read}
    figures = {name: value for name, value in read["figures"].items() if name in _FIGURES}
    return UsageReport(**dict(zip(_COLUMNS, row, strict=False)), **known, figures=Figures(**figures))
