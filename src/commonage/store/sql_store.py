"""The store port on SQLite and PostgreSQL. Made by `server.bootstrap`.

A batch is turned into rows first, then written in one short transaction: versions are checked with the rows locked,
and every table gets its rows in one statement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Executable, Select, case, func, literal, select

from commonage.domain.classes import ClassMeeting
from commonage.domain.codec import clean
from commonage.domain.cron_jobs import CronJob
from commonage.domain.errors import InvalidInput, Unavailable
from commonage.domain.images import Image
from commonage.domain.nodes import Node
from commonage.domain.offboarding import Offboarding, Subject
from commonage.domain.resources import StoredResource
from commonage.domain.tenants import Amounts, QuotaNotice, Reservation
from commonage.domain.usage import GpuTime, PastAllocation, Usage, UsageReport
from commonage.domain.workloads import Attempt, Event, State, Workload
from commonage.ports.store import Batch, Filter, Page, Visible
from commonage.store.changes import Changes
from commonage.store.database import Database, connect
from commonage.store.expiry import expired
from commonage.store.renaming import Renaming
from commonage.store.rows import (
    ATTEMPT_COLUMNS,
    CLASS_MEETING,
    CRON_JOB,
    EVENT,
    IMAGE,
    NODE,
    OFFBOARDING,
    QUOTA_NOTICE,
    RESERVATION,
    RESOURCE,
    USAGE_REPORT,
    Stored,
    attempt_from_row,
    shares_from_text,
)
from commonage.store.tables import (
    attempts,
    class_meetings,
    cron_jobs,
    events,
    images,
    offboardings,
    quota_notices,
    reservations,
    resources,
    usage_reports,
)
from commonage.store.upgrade import require_current
from commonage.store.urls import database_url
from commonage.store.usage import SUBJECTS, usage_of, usage_statement
from commonage.store.workloads import Workloads
from commonage.store.writer import Writer

T = TypeVar("T")

_LARGEST_SEQ = 2**63 - 1


class SqlStore:
    """A Store in the database at `url` (`sqlite:///…` or `postgresql://…`). One for each process."""

    def __init__(self, url: str) -> None:
        self._url = database_url(url)
        self._open: _Open | None = None

    async def open(self) -> None:
        """Connect. Raises Unavailable, and Conflict when the schema is not the one of this program."""
        await require_current(self._url)
        self._open = _Open(connect(self._url))

    async def close(self) -> None:
        """End the transactions that have begun, then disconnect."""
        if self._open is not None:
            await self._open.database.close()
            self._open = None

    @property
    def _parts(self) -> _Open:
        if self._open is None:
            raise Unavailable("the database is not open")
        return self._open

    async def commit(self, batch: Batch) -> None:
        """Write all or nothing; durable on return."""
        parts = self._parts
        if batch:
            changes = Changes(batch)
            await parts.database.write(lambda connection: parts.writer.write(connection, changes))

    async def live(self) -> Sequence[Workload]:
        return await self._parts.workloads.live()

    async def workload(self, workload_id: str) -> Workload:
        return await self._parts.workloads.one(workload_id)

    async def workload_by_key(self, owner: str, key: str) -> Workload | None:
        return await self._parts.workloads.by_key(owner, key)

    async def workloads(self, which: Filter, *, limit: int, cursor: str | None = None) -> Page[Workload]:
        return await self._parts.workloads.page(which, limit, cursor)

    async def count(self, which: Filter) -> dict[State, int]:
        return await self._parts.workloads.count(which)

    async def last_workload_id(self) -> str | None:
        return await self._parts.workloads.last_id()

    async def attempts(self, workload_id: str) -> Sequence[Attempt]:
        columns = (attempts.c[name] for name in ATTEMPT_COLUMNS)
        of_workload = select(*columns).where(attempts.c.workload_id == clean(workload_id))
        return [attempt_from_row(row) for row in await self._rows(of_workload.order_by(attempts.c.number))]

    async def events(
        self, *, after: int = 0, workload_id: str | None = None, visible: Visible | None = None, limit: int = 500
    ) -> Sequence[Event]:
        # A client may send any number; no database compares one of more than 64 bits.
        later = EVENT.select().where(events.c.seq > max(-_LARGEST_SEQ, min(after, _LARGEST_SEQ)))
        if workload_id is not None:
            later = later.where(events.c.workload_id == clean(workload_id))
        if visible is None:
            return await self._read(EVENT, later.order_by(events.c.seq).limit(limit))
        # Each part is a walk along an index.
        parts = [
            await self._read(EVENT, later.where(*part).order_by(events.c.seq).limit(limit))
            for part in _parts_of_events(visible)
        ]
        return sorted(chain(*parts), key=lambda event: event.seq)[:limit]

    async def last_event_seq(self) -> int:
        rows = await self._rows(select(func.max(events.c.seq)))
        return rows[0][0] or 0

    async def expired(self, *, before: float, needed: Collection[str], limit: int) -> Sequence[str]:
        parts = self._parts
        return [row[0] for row in await self._rows(expired(before, needed, limit, parts.database.dialect))]

    async def reclaim(self) -> bool:
        return await self._parts.database.reclaim()

    async def past_holds(self, *, since: float, limit: int) -> Sequence[PastAllocation]:
        columns = attempts.c
        ended = (
            select(
                columns.id, columns.tenant, columns.owner, columns.cpus_milli, columns.memory_mib, columns.gpu_milli,
                columns.gpu_mib, columns.allocated_at, columns.ended_at,
            )
            .where(columns.ended_at >= since)
            .order_by(columns.ended_at.desc(), columns.id.desc())
            .limit(limit)
        )  # fmt: skip
        rows = await self._rows(ended)
        return [PastAllocation(row[0], row[1], row[2], Amounts(*row[3:7]), row[7], row[8]) for row in rows]

    async def gpu_times(self, *, since: float) -> Sequence[GpuTime]:
        columns = attempts.c
        begun = case((columns.allocated_at < since, literal(since)), else_=columns.allocated_at)
        keys = (columns.tenant, columns.owner, columns.environment, columns.shares)
        statement = (
            select(*keys, func.sum(columns.ended_at - begun))
            .where(columns.ended_at > since, columns.ended_at > columns.allocated_at, columns.gpu_milli > 0)
            .group_by(*keys)
        )
        sums: defaultdict[tuple[str, str, str, str], float] = defaultdict(float)
        for tenant, owner, environment, shares, seconds in await self._rows(statement):
            for share in shares_from_text(shares):
                sums[tenant, owner, environment, share.model] += share.compute_milli * seconds
        return [GpuTime(*key, milli_s) for key, milli_s in sorted(sums.items())]

    async def usage(
        self,
        *,
        since: float,
        until: float,
        by: str,
        visible: Visible | None = None,
        workload_id: str | None = None,
    ) -> Sequence[Usage]:
        if by not in SUBJECTS:
            raise InvalidInput(
                f"usage is summed by {', '.join(SUBJECTS)}, not by {by!r}", field="by", code="invalid-by"
            )
        if not since < until:
            return []
        return usage_of(await self._rows(usage_statement(since, until, by, visible, workload_id)))

    async def nodes(self) -> Sequence[Node]:
        return sorted(await self._read(NODE, NODE.select()), key=lambda node: node.key)

    async def usage_reports(self, workload_id: str) -> Sequence[UsageReport]:
        of_workload = USAGE_REPORT.select().where(usage_reports.c.workload_id == clean(workload_id))
        return await self._read(
            USAGE_REPORT, of_workload.order_by(usage_reports.c.began_at, usage_reports.c.attempt_id)
        )

    async def usage_reports_like(self, owner: str, command_hash: str, *, limit: int) -> Sequence[UsageReport]:
        columns = usage_reports.c
        ended = USAGE_REPORT.select().where(
            columns.owner == clean(owner), columns.command_hash == clean(command_hash), columns.ended_at.is_not(None)
        )
        newest = ended.order_by(columns.ended_at.desc(), columns.attempt_id.desc()).limit(limit)
        return await self._read(USAGE_REPORT, newest)

    async def open_usage_reports(self) -> Sequence[UsageReport]:
        not_ended = USAGE_REPORT.select().where(usage_reports.c.ended_at.is_(None))
        return await self._read(USAGE_REPORT, not_ended.order_by(usage_reports.c.began_at, usage_reports.c.attempt_id))

    async def reservations(self, *, after: float) -> Sequence[Reservation]:
        ending_later = RESERVATION.select().where(reservations.c.ends_at > after)
        return await self._read(RESERVATION, ending_later.order_by(reservations.c.starts_at, reservations.c.id))

    async def cron_jobs(self) -> Sequence[CronJob]:
        return await self._read(CRON_JOB, CRON_JOB.select().order_by(cron_jobs.c.id))

    async def images(self) -> Sequence[Image]:
        return await self._read(IMAGE, IMAGE.select().order_by(images.c.name))

    async def resources(self) -> Sequence[StoredResource]:
        return await self._read(RESOURCE, RESOURCE.select().order_by(resources.c.kind, resources.c.name))

    async def class_meetings(self) -> Sequence[ClassMeeting]:
        return await self._read(CLASS_MEETING, CLASS_MEETING.select().order_by(class_meetings.c.id))

    async def quota_notices(self, *, since: float) -> Sequence[QuotaNotice]:
        later = QUOTA_NOTICE.select().where(quota_notices.c.period_at >= since)
        return sorted(
            await self._read(QUOTA_NOTICE, later), key=lambda one: (one.tenant, one.scope, one.name, one.resource)
        )

    async def offboardings(self) -> Sequence[Offboarding]:
        return await self._read(OFFBOARDING, OFFBOARDING.select().order_by(offboardings.c.id))

    async def rename(self, subject: Subject, name: str, to: str, *, limit: int) -> bool:
        renaming = Renaming(subject, clean(name), clean(to), limit)
        return await self._parts.database.write(renaming.run)

    async def _read(self, stored: Stored[T], statement: Select[Any]) -> list[T]:
        return [stored.value(row) for row in await self._rows(statement)]

    async def _rows(self, statement: Executable) -> Sequence[Sequence[Any]]:
        return await self._parts.database.read(statement)


class _Open:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.workloads = Workloads(database)
        self.writer = Writer(database.dialect)


def _parts_of_events(visible: Visible) -> list[list[ColumnElement[bool]]]:
    """The visible events in parts that have none in common."""
    owner, tenant, mine = events.c.owner, events.c.tenant, clean(visible.owner)
    seen, shared = set(map(clean, visible.tenants)), set(map(clean, visible.shared))
    of_others = [[tenant == name, owner.is_(None) | (owner != mine)] for name in sorted(seen)]
    of_nobody = [[tenant == name, owner.is_(None)] for name in sorted(shared - seen)]
    return [[owner == mine], *of_others, *of_nobody]
