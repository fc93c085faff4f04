"""Attempts in the database, and usage, which is a sum over them. Called by `sql_store`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import case, func, literal, select
from sqlalchemy.engine import Connection

from commonage.domain.errors import InvalidInput
from commonage.domain.tenants import Amounts
from commonage.domain.usage import PastAllocation, Usage
from commonage.domain.workloads import Attempt
from commonage.store import codec
from commonage.store.changes import Changes
from commonage.store.database import Database
from commonage.store.statements import Prepared, upsert
from commonage.store.tables import attempts

_SUBJECTS = {
    "owner": attempts.c.owner,
    "tenant": attempts.c.tenant,
    "workload": attempts.c.workload_id,
    "environment": attempts.c.environment,
}
_HOUR_S = 3600.0


class Attempts:
    """The repository of attempts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = Prepared(upsert(attempts, database.dialect), database.dialect)

    def write(self, connection: Connection, changes: Changes) -> None:
        """Insert or replace by id."""
        self._upsert.many(connection, changes.attempts.values())

    async def of(self, workload_id: str) -> list[Attempt]:
        """All attempts of a workload, oldest first."""
        rows = await self._database.read(
            select(*(attempts.c[name] for name in codec.ATTEMPT_COLUMNS))
            .where(attempts.c.workload_id == codec.clean(workload_id))
            .order_by(attempts.c.number)
        )
        return [codec.attempt_from_row(row) for row in rows]

    async def past_holds(self, since: float, limit: int) -> list[PastAllocation]:
        """Allocations of attempts that ended at `since` or later, newest first."""
        columns = attempts.c
        rows = await self._database.read(
            select(
                columns.id, columns.tenant, columns.owner, columns.cpus_milli, columns.memory_mib, columns.gpu_milli,
                columns.gpu_mib, columns.allocated_at, columns.ended_at,
            )
            .where(columns.ended_at >= since)
            .order_by(columns.ended_at.desc(), columns.id.desc())
            .limit(limit)
        )  # fmt: skip
        return [PastAllocation(row[0], row[1], row[2], Amounts(*row[3:7]), row[7], row[8]) for row in rows]

    async def usage(
        self, since: float, until: float, by: str, *, owner: str | None, workload_id: str | None
    ) -> Sequence[Usage]:
        """Allocated resources within [since, until), by subject. A share counts by its VRAM and by its compute."""
        subject = _SUBJECTS.get(by)
        if subject is None:
            raise InvalidInput(
                f"usage is summed by {', '.join(_SUBJECTS)}, not by {by!r}", field="by", code="invalid-by"
            )
        if not since < until:
            return []
        columns = attempts.c
        begun = case((columns.allocated_at < since, literal(since)), else_=columns.allocated_at)
        ended = case((columns.ended_at < until, columns.ended_at), else_=literal(until))
        held_s = ended - begun
        statement = select(
            func.min(subject),
            func.count(columns.workload_id.distinct()),
            func.sum(columns.gpu_mib * held_s),
            func.sum(columns.gpu_milli * held_s),
            func.sum(columns.cpus_milli * held_s),
            func.sum(columns.memory_mib * held_s),
        ).where(
            columns.allocated_at < until,
            columns.ended_at.is_(None) | ((columns.ended_at > since) & (columns.ended_at > columns.allocated_at)),
        )
        if owner is not None:
            statement = statement.where(columns.owner == codec.clean(owner))
        if workload_id is not None:
            statement = statement.where(columns.workload_id == codec.clean(workload_id))
        # By an expression, so that SQLite looks for the window's attempts by `ended_at` instead of walking all of them
        # in the order of their subjects.
        rows = await self._database.read(statement.group_by(subject.concat("")))
        return [
            Usage(
                subject=row[0],
                workloads=row[1],
                gpu_gib_h=row[2] / 1024 / _HOUR_S,
                gpu_h=row[3] / 1000 / _HOUR_S,
                cpu_h=row[4] / 1000 / _HOUR_S,
                memory_gib_h=row[5] / 1024 / _HOUR_S,
            )
            for row in sorted(rows, key=lambda row: str(row[0]))
        ]
