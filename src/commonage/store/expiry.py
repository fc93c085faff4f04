"""Deletes ended workloads, and adds their usage to the daily totals. Called by `writer`, in its transaction.

So totals are neither lost nor added twice, whenever the process is killed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from sqlalchemy import Select, and_, delete, func, or_, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Dialect

from commonage.domain.codec import clean
from commonage.domain.usage import DailyUsage, HeldByAttempt, daily_usage
from commonage.store.many import is_among, many_in_one
from commonage.store.tables import ENDED, attempts, secrets, specs, usage_reports, usage_totals, workloads

_ADDED: Final = [field.name for field in fields(DailyUsage) if field.name not in usage_totals.primary_key.columns]


def expired(before: float, needed: Collection[str], limit: int, dialect: Dialect) -> Select[Any]:
    """Selects ids of workloads that ended before a time, oldest end first; see the store port."""
    columns, ids = workloads.c, many_in_one([clean(each) for each in needed], dialect)
    # Without statistics SQLite thinks that a state has few rows: it would read and sort all of them for each batch.
    ended = f"likelihood({ENDED}, 0.9)" if dialect.name == "sqlite" else ENDED
    return (
        select(columns.id)
        .where(
            text(ended),
            columns.since < before,
            ~is_among(columns.id, "needed", dialect),
            or_(columns.array_id.is_(None), ~is_among(columns.array_id, "needed", dialect)),
        )
        .order_by(columns.since, columns.id)
        .limit(limit)
        .params(needed=ids)
    )


def delete_workloads(connection: Connection, ids: Collection[str]) -> None:
    """Delete these, except those that have not ended or are gone already."""
    dialect = connection.dialect
    ended = and_(is_among(workloads.c.id, "ids", dialect), text(ENDED))
    locked = select(workloads.c.id, workloads.c.spec_id).where(ended).order_by(workloads.c.id).with_for_update()
    rows = connection.execute(locked, {"ids": many_in_one(ids, dialect)}).fetchall()
    if not rows:
        return
    gone = {"ids": many_in_one([row[0] for row in rows], dialect)}
    add_to_totals(connection, _held(connection, gone))
    for table in (usage_reports, secrets, attempts):
        connection.execute(delete(table).where(is_among(table.c.workload_id, "ids", dialect)), gone)
    connection.execute(delete(workloads).where(is_among(workloads.c.id, "ids", dialect)), gone)
    unused = ~select(workloads.c.id).where(workloads.c.spec_id == specs.c.id).exists()
    of_gone = {"ids": many_in_one({row[1] for row in rows}, dialect)}
    connection.execute(delete(specs).where(is_among(specs.c.id, "ids", dialect), unused), of_gone)


def _held(connection: Connection, gone: dict[str, Any]) -> list[DailyUsage]:
    columns = attempts.c
    rows: Sequence[Sequence[Any]] = connection.execute(
        select(
            columns.workload_id, columns.tenant, columns.owner, columns.environment, columns.gpu_mib,
            columns.gpu_milli, columns.cpus_milli, columns.memory_mib, columns.allocated_at,
            func.coalesce(columns.ended_at, workloads.c.since),
        )
        .join_from(attempts, workloads, columns.workload_id == workloads.c.id)
        .where(is_among(columns.workload_id, "ids", connection.dialect)),
        gone,
    ).fetchall()  # fmt: skip
    return daily_usage(HeldByAttempt(*row) for row in rows)


def add_to_totals(connection: Connection, totals: list[DailyUsage]) -> None:
    if not totals:
        return
    is_postgres = connection.dialect.name == "postgresql"
    statement = postgresql.insert(usage_totals) if is_postgres else sqlite.insert(usage_totals)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=list(usage_totals.primary_key.columns),
            set_={name: usage_totals.c[name] + statement.excluded[name] for name in _ADDED},
        ),
        [asdict(each) for each in sorted(totals, key=lambda each: (each.day, each.tenant, each.owner))],
    )
