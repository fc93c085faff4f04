"""Pieces of statements in which SQLite and PostgreSQL differ, so that the repositories need not care."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    Table,
    Text,
    any_,
    bindparam,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite


def upsert(table: Table, dialect: str) -> postgresql.Insert | sqlite.Insert:
    """Insert whole rows; one of a primary key that is there already takes the other's place."""
    statement = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    keys = [column.name for column in table.primary_key]
    rest = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=rest)


def is_one_of(column: Column[Any], values: Collection[str], dialect: str) -> ColumnElement[bool]:
    """True for rows whose `column` is among `values`: one parameter however many there are, so one prepared plan."""
    if dialect == "postgresql":
        return column == any_(bindparam(None, list(values), type_=ARRAY(Text)))
    each = func.json_each(json.dumps(list(values))).table_valued("value")
    return column.in_(select(each.c.value))


def contains(column: Column[str], part: str, dialect: str) -> ColumnElement[bool]:
    """True where `part` stands anywhere in `column`, character for character: no pattern, so nothing to escape."""
    find = func.strpos if dialect == "postgresql" else func.instr
    return find(column, literal(part, Text)) > 0
