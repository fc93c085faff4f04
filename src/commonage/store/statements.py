"""Statements compiled once and run often, and the constructs in which SQLite and PostgreSQL differ.

Used by the repositories, so that they are the same for both.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import ARRAY, Column, ColumnElement, Table, Text, any_, bindparam, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, CursorResult, Dialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import ClauseElement

from commonage.store.codec import Row


class Prepared:
    """A statement compiled once. Small commits are frequent: compiling and binding each time would cost more than
    writing.
    """

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler) and compiled.positiontup
        self._sql = compiled.string
        self._values = _tuple_of(compiled.positiontup)

    def many(self, connection: Connection, rows: Iterable[Row]) -> None:
        """Run it once for each row; does nothing without rows."""
        values = [self._values(row) for row in rows]
        if values:
            connection.exec_driver_sql(self._sql, values)

    def one(self, connection: Connection, row: Row) -> CursorResult[*tuple[Any, ...]]:
        """Run it with these values; its result."""
        return connection.exec_driver_sql(self._sql, self._values(row))


def _tuple_of(names: Sequence[str]) -> Any:
    """A function that returns the values of `names` in a dictionary, as a tuple."""
    if len(names) == 1:
        return lambda row: (row[names[0]],)
    return itemgetter(*names)


def upsert(table: Table, dialect: Dialect) -> postgresql.Insert | sqlite.Insert:
    """Insert whole rows; a row with an existing primary key replaces the old one."""
    statement = postgresql.insert(table) if dialect.name == "postgresql" else sqlite.insert(table)
    keys = [column.name for column in table.primary_key]
    rest = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=rest)


def is_among(column: Column[Any], name: str, dialect: Dialect) -> ColumnElement[bool]:
    """True for rows whose `column` is one of the parameter `name`, made by `many_in_one`: one plan for any number."""
    if dialect.name == "postgresql":
        return column == any_(bindparam(name, type_=ARRAY(Text)))
    each = func.json_each(bindparam(name, type_=Text)).table_valued("value")
    return column.in_(select(each.c.value))


def many_in_one(values: Collection[str], dialect: Dialect) -> list[str] | str:
    """The value of a parameter of `is_among`."""
    return list(values) if dialect.name == "postgresql" else json.dumps(list(values))


def contains(column: Column[str], part: str, dialect: Dialect) -> ColumnElement[bool]:
    """True if `column` contains `part`, character for character: no pattern, so nothing to escape."""
    find = func.strpos if dialect.name == "postgresql" else func.instr
    return find(column, literal(part, Text)) > 0
