"""Conditions on many values with one parameter: one statement, and one plan, for any number of values."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import ARRAY, Column, ColumnElement, Text, any_, bindparam, func, select
from sqlalchemy.engine import Dialect


def is_among(column: Column[Any], name: str, dialect: Dialect) -> ColumnElement[bool]:
    """True for rows whose `column` is one of the parameter `name`, made by `many_in_one`."""
    if dialect.name == "postgresql":
        return column == any_(bindparam(name, type_=ARRAY(Text)))
    each = func.json_each(bindparam(name, type_=Text)).table_valued("value")
    return column.in_(select(each.c.value))


def many_in_one(values: Collection[str], dialect: Dialect) -> list[str] | str:
    return list(values) if dialect.name == "postgresql" else json.dumps(list(values))
