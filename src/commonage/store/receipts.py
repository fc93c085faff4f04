"""Usage reports (receipts) in the database, each under its attempt's id; rewritten while the attempt runs.

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

from commonage.domain.receipts import Figures, Receipt
from commonage.store.codec import Row, clean
from commonage.store.database import Database
from commonage.store.statements import Prepared, upsert
from commonage.store.tables import receipts

_COLUMNS: Final = ("attempt_id", "workload_id", "owner", "likeness", "began_at", "ended_at")
_WHOLE = select(*(receipts.c[name] for name in _COLUMNS), receipts.c.body)
_ASKED: Final = tuple(each.name for each in fields(Receipt) if each.name not in (*_COLUMNS, "figures"))
_FIGURES: Final = tuple(each.name for each in fields(Figures))
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class Receipts:
    """The repository of usage reports."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = Prepared(upsert(receipts, database.dialect), database.dialect)

    def write(self, connection: Connection, rows: Iterable[Row]) -> None:
        """Insert or replace by attempt."""
        self._upsert.many(connection, rows)

    async def of(self, workload_id: str) -> Sequence[Receipt]:
        """The reports of a workload's attempts, oldest first."""
        which = _WHOLE.where(receipts.c.workload_id == clean(workload_id))
        return await self._read(which.order_by(receipts.c.began_at, receipts.c.attempt_id))

    async def like(self, owner: str, likeness: str, limit: int) -> Sequence[Receipt]:
        """Ended ones with this owner and likeness, newest first."""
        which = _WHOLE.where(
            receipts.c.owner == clean(owner), receipts.c.likeness == clean(likeness), receipts.c.ended_at.is_not(None)
        )
        return await self._read(which.order_by(receipts.c.ended_at.desc(), receipts.c.attempt_id.desc()).limit(limit))

    async def open(self) -> Sequence[Receipt]:
        """Reports that have not ended, oldest first."""
        which = _WHOLE.where(receipts.c.ended_at.is_(None))
        return await self._read(which.order_by(receipts.c.began_at, receipts.c.attempt_id))

    async def _read(self, statement: Select[Any]) -> Sequence[Receipt]:
        return [_receipt(row) for row in await self._database.read(statement)]


def receipt_row(receipt: Receipt) -> Row:
    """A whole row."""
    body = {name: getattr(receipt, name) for name in _ASKED}
    return {
        **{name: getattr(receipt, name) for name in _COLUMNS},
        "owner": clean(receipt.owner),
        "body": _encoder.encode({**body, "figures": {name: getattr(receipt.figures, name) for name in _FIGURES}}),
    }


def _receipt(row: Sequence[Any]) -> Receipt:
    read: Mapping[str, Any] = json.loads(row[len(_COLUMNS)])
    known = {name: read[name] for name in _ASKED if name in read}
    figures = {name: value for name, value in read["figures"].items() if name in _FIGURES}
    return Receipt(**dict(zip(_COLUMNS, row, strict=False)), **known, figures=Figures(**figures))
