"""The tables of the samples, for `sql_metrics`. They are private to it: other code uses the metrics port.

A figure is in exactly one of three tables: raw, or, when it is old, as part of its minute, later of its hour.
Measurements can be repeated, so these tables are created if missing, not migrated.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text

metadata = MetaData()

# Raised when the meaning of a column changes; a program does not touch tables of a newer one.
VERSION = 2

_Id = BigInteger().with_variant(Integer(), "sqlite")

about = Table("samples_about", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

series = Table(
    "samples_series",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("subject", Text, nullable=False),
    Column("metric", Text, nullable=False),
)
Index("uq_samples_series", series.c.subject, series.c.metric, unique=True)

raw = Table(
    "samples_raw",
    metadata,
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Double, primary_key=True),
    Column("value", Double, nullable=False),
    sqlite_with_rowid=False,
)


def _rolled_up(name: str) -> Table:
    """`at` is the start of the minute or hour, `total` the sum of its `number` figures."""
    return Table(
        name,
        metadata,
        Column("series_id", BigInteger, primary_key=True, autoincrement=False),
        Column("at", Double, primary_key=True),
        Column("number", BigInteger, nullable=False),
        Column("total", Double, nullable=False),
        Column("least", Double, nullable=False),
        Column("most", Double, nullable=False),
        sqlite_with_rowid=False,
    )


minutes = _rolled_up("samples_minute")
hours = _rolled_up("samples_hour")
