"""The statement that sums usage: attempts of workloads that are kept, and daily totals of deleted ones.

One statement, so that a workload that is deleted meanwhile is counted once. Called by `sql_store`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Select, case, func, literal, select, union_all

from commonage.domain.codec import clean
from commonage.domain.usage import DAY_S, Usage
from commonage.ports.store import Visible
from commonage.store.paging import is_visible
from commonage.store.tables import attempts, usage_totals

_HOUR_S: Final = 3600.0
SUBJECTS: Final = {
    "owner": attempts.c.owner,
    "tenant": attempts.c.tenant,
    "workload": attempts.c.workload_id,
    "environment": attempts.c.environment,
}


def usage_statement(since: float, until: float, by: str, visible: Visible | None, workload_id: str | None) -> Any:
    """Resources times seconds within [since, until), by subject. A deleted workload is in no sum by workload."""
    parts = [_of_attempts(since, until, by)]
    if by != "workload" and workload_id is None:
        parts.append(_of_totals(since, until, by))
    if visible is not None:
        tables = [part.get_final_froms()[0].c for part in parts]
        parts = [
            part.where(is_visible(table.owner, table.tenant, visible))
            for part, table in zip(parts, tables, strict=True)
        ]
    if workload_id is not None:
        parts = [part.where(attempts.c.workload_id == clean(workload_id)) for part in parts]
    return union_all(*parts)


def usage_of(rows: Iterable[Sequence[Any]]) -> list[Usage]:
    sums: dict[str, list[float]] = {}
    for subject, *figures in rows:
        before = sums.get(subject, [0.0] * len(figures))
        sums[subject] = [one + float(other) for one, other in zip(before, figures, strict=True)]
    return [
        Usage(
            subject=subject,
            workloads=round(workloads),
            gpu_gib_h=gpu_mib_s / 1024 / _HOUR_S,
            gpu_h=gpu_milli_s / 1000 / _HOUR_S,
            cpu_h=cpus_milli_s / 1000 / _HOUR_S,
            memory_gib_h=memory_mib_s / 1024 / _HOUR_S,
        )
        for subject, (workloads, gpu_mib_s, gpu_milli_s, cpus_milli_s, memory_mib_s) in sorted(sums.items())
    ]


def _of_attempts(since: float, until: float, by: str) -> Select[Any]:
    """A share counts by its VRAM and by its compute."""
    columns, subject = attempts.c, SUBJECTS[by]
    begun = case((columns.allocated_at < since, literal(since)), else_=columns.allocated_at)
    ended = case((columns.ended_at < until, columns.ended_at), else_=literal(until))
    amounts = (columns.gpu_mib, columns.gpu_milli, columns.cpus_milli, columns.memory_mib)
    sums: list[Any] = [func.sum(amount * (ended - begun)) for amount in amounts]
    return (
        select(func.min(subject), func.count(columns.workload_id.distinct()), *sums)
        .where(
            columns.allocated_at < until,
            columns.ended_at.is_(None) | ((columns.ended_at > since) & (columns.ended_at > columns.allocated_at)),
        )
        # By an expression, so that SQLite looks for the window's attempts by `ended_at` instead of walking all of them
        # in the order of their subjects.
        .group_by(subject.concat(""))
    )


def _of_totals(since: float, until: float, by: str) -> Select[Any]:
    """A day that is only partly within the window counts by that part."""
    columns = usage_totals.c
    first, last = math.floor(since / DAY_S), math.ceil(until / DAY_S) - 1
    begin, end = columns.day * DAY_S, (columns.day + 1) * DAY_S
    begun = case((begin < since, literal(since)), else_=begin)
    ended = case((end > until, literal(until)), else_=end)
    part = (ended - begun) / float(DAY_S)
    amounts = (columns.gpu_mib_s, columns.gpu_milli_s, columns.cpus_milli_s, columns.memory_mib_s)
    subject = columns[by]
    return (
        select(
            func.min(subject),
            func.sum(case((columns.day == first, columns.workloads), else_=columns.began)),
            *(func.sum(amount * part) for amount in amounts),
        )
        .where(columns.day >= first, columns.day <= last)
        .group_by(subject)
    )
