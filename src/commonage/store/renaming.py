"""Gives history a new name, in bounded transactions. Called by `sql_store`.

Workloads are found by an index; their attempts, usage reports and events follow in the same transaction. Repeating it
after a crash continues with the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

from sqlalchemy import Table, delete, select, text, update
from sqlalchemy.engine import Connection

from commonage.domain.offboarding import Subject
from commonage.domain.usage import DailyUsage
from commonage.store.expiry import add_to_totals
from commonage.store.many import is_among, many_in_one
from commonage.store.tables import (
    ENDED,
    attempts,
    events,
    quota_notices,
    reservations,
    usage_reports,
    usage_totals,
    workloads,
)

_COLUMNS: Final = {Subject.USER: "owner", Subject.TENANT: "tenant"}
_TOTALS: Final = [field.name for field in fields(DailyUsage)]


@dataclass(frozen=True, slots=True)
class Renaming:
    subject: Subject
    name: str
    to: str
    limit: int

    def run(self, connection: Connection) -> bool:
        """True if more may be left."""
        if self._workloads(connection) or self._rest(connection) or self._totals(connection):
            return True
        if self.subject is Subject.TENANT:
            # Former attempts and events of live workloads, events of images: few, but not in an index.
            for table in (attempts, events, reservations):
                self._rename(connection, table)
        connection.execute(delete(quota_notices).where(*self._noticed))
        return False

    @property
    def _column(self) -> str:
        return _COLUMNS[self.subject]

    @property
    def _noticed(self) -> list[Any]:
        """Notices of quotas are made again where they still hold."""
        columns = quota_notices.c
        if self.subject is Subject.TENANT:
            return [columns.tenant == self.name]
        return [columns.scope == "user", columns.name == self.name]

    def _rename(self, connection: Connection, table: Table, *which: Any, **values: Any) -> int:
        column = table.c[self._column]
        statement = update(table).where(column == self.name, *which).values({self._column: self.to})
        return connection.execute(statement, values).rowcount

    def _workloads(self, connection: Connection) -> bool:
        found = (
            select(workloads.c.id)
            .where(workloads.c[self._column] == self.name, text(ENDED))
            .order_by(workloads.c.id)
            .limit(self.limit)
            .with_for_update()
        )
        ids = [row[0] for row in connection.execute(found)]
        if not ids:
            return False
        dialect = connection.dialect
        some = {"ids": many_in_one(ids, dialect)}
        self._rename(connection, workloads, is_among(workloads.c.id, "ids", dialect), **some)
        for table in (attempts, events, usage_reports):
            if self._column in table.c:
                self._rename(connection, table, is_among(table.c.workload_id, "ids", dialect), **some)
        return True

    def _rest(self, connection: Connection) -> bool:
        """Everything else that an index finds: of live workloads, and events without one."""
        if self.subject is Subject.TENANT:
            return self._some(connection, events, events.c.seq, events.c.owner.is_(None))
        parts = ((events, events.c.seq), (attempts, attempts.c.id), (usage_reports, usage_reports.c.attempt_id))
        return any(self._some(connection, table, key) for table, key in parts)

    def _some(self, connection: Connection, table: Table, key: Any, *which: Any) -> bool:
        found = select(key).where(table.c[self._column] == self.name, *which).limit(self.limit)
        return bool(self._rename(connection, table, key.in_(found.scalar_subquery())))

    def _totals(self, connection: Connection) -> bool:
        columns = usage_totals.c
        which = columns[self._column] == self.name
        rows = connection.execute(
            select(*(columns[name] for name in _TOTALS)).where(which).limit(self.limit)
        ).fetchall()
        if not rows:
            return False
        totals = [DailyUsage(*row) for row in rows]
        name: dict[str, Any] = {self._column: self.to}
        add_to_totals(connection, [replace(one, **name) for one in totals])
        for one in totals:
            key = [columns[name] == getattr(one, name) for name in (column.name for column in usage_totals.primary_key)]
            connection.execute(delete(usage_totals).where(*key))
        return True
