"""Events in the database: appended, never changed. Called by `sql_store`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, insert, select
from sqlalchemy.engine import Connection

from commonage.domain.workloads import Event
from commonage.store import codec
from commonage.store.changes import Changes
from commonage.store.database import Database
from commonage.store.statements import Prepared
from commonage.store.tables import events

_LARGEST_SEQ = 2**63 - 1


class Events:
    """The repository of events."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._insert = Prepared(insert(events), database.dialect)

    def write(self, connection: Connection, changes: Changes) -> None:
        """Append."""
        self._insert.many(connection, changes.events)

    async def after(self, seq: int, *, workload_id: str | None, owner: str | None, limit: int) -> Sequence[Event]:
        """Events with a greater seq, oldest first."""
        statement = select(*(events.c[name] for name in codec.EVENT.columns))
        # A client may send any number; no database compares one of more than 64 bits.
        statement = statement.where(events.c.seq > max(-_LARGEST_SEQ, min(seq, _LARGEST_SEQ)))
        if workload_id is not None:
            statement = statement.where(events.c.workload_id == codec.clean(workload_id))
        if owner is not None:
            statement = statement.where(events.c.owner == codec.clean(owner))
        rows = await self._database.read(statement.order_by(events.c.seq).limit(limit))
        return [codec.EVENT.value(row) for row in rows]

    async def last_seq(self) -> int:
        """The seq of the newest event, 0 if there are no events."""
        rows = await self._database.read(select(func.max(events.c.seq)))
        return rows[0][0] or 0
