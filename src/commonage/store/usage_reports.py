"""Usage reports in the database, each under its attempt's id; rewritten while the attempt runs.

Called by `sql_store`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.engine import Connection

from commonage.domain.usage import UsageReport
from commonage.store.codec import USAGE_REPORT, Row, clean
from commonage.store.database import Database
from commonage.store.statements import Prepared, upsert
from commonage.store.tables import usage_reports

_WHOLE = select(*(usage_reports.c[name] for name in USAGE_REPORT.columns))


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

    async def like(self, owner: str, command_hash: str, limit: int) -> Sequence[UsageReport]:
        """Ended ones with this owner and command hash, newest first."""
        which = _WHOLE.where(
            usage_reports.c.owner == clean(owner),
            usage_reports.c.command_hash == clean(command_hash),
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
        return [USAGE_REPORT.value(row) for row in await self._database.read(statement)]
