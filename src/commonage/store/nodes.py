"""Nodes in the database, each under its site and name. Called by `sql_store`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, delete, select
from sqlalchemy.engine import Connection

from commonage.domain.nodes import Node
from commonage.store import codec
from commonage.store.changes import Changes
from commonage.store.database import Database
from commonage.store.statements import Prepared, upsert
from commonage.store.tables import nodes


class Nodes:
    """The repository of nodes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = Prepared(upsert(nodes, database.dialect), database.dialect)
        one = delete(nodes).where(nodes.c.site == bindparam("of_site"), nodes.c.name == bindparam("of_name"))
        self._delete = Prepared(one, database.dialect)

    def write(self, connection: Connection, changes: Changes) -> None:
        """Insert or replace by site and name, then delete the removed ones."""
        self._upsert.many(connection, changes.nodes)
        self._delete.many(connection, changes.departed)

    async def all(self) -> Sequence[Node]:
        """All nodes, by site and name."""
        rows = await self._database.read(select(*(nodes.c[name] for name in codec.NODE.columns)))
        return sorted((codec.NODE.value(row) for row in rows), key=lambda node: (node.site, node.name))
