"""Images of the catalogue in the database, each under its name. Called by `sql_store`.

Removed images stay, to explain why they are unavailable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.engine import Connection

from commonage.domain.images import Image
from commonage.store.codec import IMAGE, Row
from commonage.store.database import Database
from commonage.store.statements import Prepared, upsert
from commonage.store.tables import images


class Images:
    """The repository of images."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = Prepared(upsert(images, database.dialect), database.dialect)

    def write(self, connection: Connection, rows: Iterable[Row]) -> None:
        """Insert or replace by name."""
        self._upsert.many(connection, rows)

    async def all(self) -> Sequence[Image]:
        """All images, including removed ones, by name."""
        which = select(*(images.c[name] for name in IMAGE.columns)).order_by(images.c.name)
        return [IMAGE.value(row) for row in await self._database.read(which)]
