"""Reservations in the database, each under its id. Called by `sql_store`.

Windows and tenants are columns, the rest is JSON; fields that an older program did not write get their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, select
from sqlalchemy.engine import Connection

from commonage.domain.tenants import Reservation
from commonage.store.codec import Row, clean, clean_or_none, request_from_json, request_to_json
from commonage.store.database import Database
from commonage.store.statements import Prepared, upsert
from commonage.store.tables import reservations

_COLUMNS = ("id", "tenant", "starts_at", "ends_at", "body")
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class Reservations:
    """The repository of reservations."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = Prepared(upsert(reservations, database.dialect), database.dialect)
        by_id = delete(reservations).where(reservations.c.id == bindparam("gone"))
        self._delete = Prepared(by_id, database.dialect)

    def write(self, connection: Connection, rows: Iterable[Row], gone: Iterable[str]) -> None:
        """Insert or replace by id, then delete the removed ones."""
        self._upsert.many(connection, rows)
        self._delete.many(connection, ({"gone": clean(each)} for each in gone))

    async def after(self, at: float) -> Sequence[Reservation]:
        """Reservations that end after `at`, in order of their begin."""
        which = select(*(reservations.c[name] for name in _COLUMNS)).where(reservations.c.ends_at > at)
        rows = await self._database.read(which.order_by(reservations.c.starts_at, reservations.c.id))
        return [_reservation(row) for row in rows]


def reservation_row(reservation: Reservation) -> Row:
    """A whole row."""
    return {
        "id": reservation.id,
        "tenant": clean(reservation.tenant),
        "starts_at": reservation.starts_at,
        "ends_at": reservation.ends_at,
        "body": _encoder.encode(
            {
                "request": request_to_json(reservation.request),
                "count": reservation.count,
                "title": clean(reservation.title),
                "owner": clean_or_none(reservation.owner),
                "by": clean(reservation.by),
            }
        ),
    }


def _reservation(row: Sequence[Any]) -> Reservation:
    name, tenant, starts_at, ends_at, body = row
    read: Mapping[str, Any] = json.loads(body)
    return Reservation(
        id=name,
        tenant=tenant,
        starts_at=starts_at,
        ends_at=ends_at,
        request=request_from_json(read["request"]),
        count=read.get("count", 1),
        title=read.get("title", ""),
        owner=read.get("owner"),
        by=read.get("by", ""),
    )
