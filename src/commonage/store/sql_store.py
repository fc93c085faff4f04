"""The store port on SQLite and PostgreSQL. Made by `server.bootstrap`; composed of the repositories of this package.

A batch is turned into rows first, then written in one short transaction: versions are checked with the rows locked,
and every table gets its rows in one statement.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.engine import Connection

from commonage.domain.errors import Unavailable
from commonage.domain.images import Image
from commonage.domain.nodes import Node
from commonage.domain.tenants import Reservation
from commonage.domain.usage import PastAllocation, Usage, UsageReport
from commonage.domain.workloads import Attempt, Event, State, Workload
from commonage.ports.store import Batch, Filter, Page
from commonage.store.attempts import Attempts
from commonage.store.changes import Changes
from commonage.store.database import Database, connect
from commonage.store.events import Events
from commonage.store.images import Images
from commonage.store.nodes import Nodes
from commonage.store.reservations import Reservations
from commonage.store.upgrade import require_current
from commonage.store.urls import database_url
from commonage.store.usage_reports import UsageReports
from commonage.store.workloads import Workloads


class SqlStore:
    """A Store in the database at `url` (`sqlite:///…` or `postgresql://…`). One for each process."""

    def __init__(self, url: str) -> None:
        self._url = database_url(url)
        self._open: _Parts | None = None

    async def open(self) -> None:
        """Connect. Raises Unavailable, and Conflict when the schema is not the one of this program."""
        await require_current(self._url)
        self._open = _Parts(connect(self._url))

    async def close(self) -> None:
        """End the transactions that have begun, then disconnect."""
        if self._open is not None:
            await self._open.database.close()
            self._open = None

    @property
    def _parts(self) -> _Parts:
        if self._open is None:
            raise Unavailable("the database is not open")
        return self._open

    async def commit(self, batch: Batch) -> None:
        """Write all or nothing; durable on return."""
        parts = self._parts
        if batch:
            await parts.write(Changes(batch))

    async def live(self) -> Sequence[Workload]:
        """Workloads that have not ended, oldest first."""
        return await self._parts.workloads.live()

    async def workload(self, workload_id: str) -> Workload:
        """One workload. Raises NotFound."""
        return await self._parts.workloads.one(workload_id)

    async def workload_by_key(self, owner: str, key: str) -> Workload | None:
        """The workload with this client key."""
        return await self._parts.workloads.by_key(owner, key)

    async def workloads(self, which: Filter, *, limit: int, cursor: str | None = None) -> Page[Workload]:
        """A page, newest first."""
        return await self._parts.workloads.page(which, limit, cursor)

    async def count(self, which: Filter) -> dict[State, int]:
        """The number of workloads in each state."""
        return await self._parts.workloads.count(which)

    async def attempts(self, workload_id: str) -> Sequence[Attempt]:
        """The attempts of the workload, oldest first."""
        return await self._parts.attempts.of(workload_id)

    async def events(
        self, *, after: int = 0, workload_id: str | None = None, owner: str | None = None, limit: int = 500
    ) -> Sequence[Event]:
        """Events, oldest first."""
        return await self._parts.events.after(after, workload_id=workload_id, owner=owner, limit=limit)

    async def last_event_seq(self) -> int:
        """The number of the newest event."""
        return await self._parts.events.last_seq()

    async def last_workload_id(self) -> str | None:
        """The greatest workload id."""
        return await self._parts.workloads.last_id()

    async def usage(
        self, *, since: float, until: float, by: str, owner: str | None = None, workload_id: str | None = None
    ) -> Sequence[Usage]:
        """Allocated resources within [since, until)."""
        return await self._parts.attempts.usage(since, until, by, owner=owner, workload_id=workload_id)

    async def past_holds(self, *, since: float, limit: int) -> Sequence[PastAllocation]:
        """Allocations of ended attempts, newest first."""
        return await self._parts.attempts.past_holds(since, limit)

    async def nodes(self) -> Sequence[Node]:
        """All nodes, by site and name."""
        return await self._parts.nodes.all()

    async def usage_reports(self, workload_id: str) -> Sequence[UsageReport]:
        """Usage reports of the workload's attempts, oldest first."""
        return await self._parts.usage_reports.of(workload_id)

    async def usage_reports_like(self, owner: str, command_hash: str, *, limit: int) -> Sequence[UsageReport]:
        """Ended ones with the same command hash, newest first."""
        return await self._parts.usage_reports.like(owner, command_hash, limit)

    async def open_usage_reports(self) -> Sequence[UsageReport]:
        """Usage reports that have not ended."""
        return await self._parts.usage_reports.open()

    async def reservations(self, *, after: float) -> Sequence[Reservation]:
        """Reservations that end after `after`, in order of their begin."""
        return await self._parts.reservations.after(after)

    async def images(self) -> Sequence[Image]:
        """All images, by name."""
        return await self._parts.images.all()


class _Parts:
    """The parts of an open store."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.workloads = Workloads(database)
        self.attempts = Attempts(database)
        self.events = Events(database)
        self.nodes = Nodes(database)
        self.usage_reports = UsageReports(database)
        self.reservations = Reservations(database)
        self.images = Images(database)

    async def write(self, changes: Changes) -> None:
        """Write all changes in one transaction."""

        def work(connection: Connection) -> None:
            self.workloads.check(connection, changes)
            self.workloads.write(connection, changes)
            self.attempts.write(connection, changes)
            self.events.write(connection, changes)
            self.nodes.write(connection, changes)
            self.usage_reports.write(connection, changes.usage_reports)
            self.reservations.write(connection, changes.reservations, changes.unreserved)
            self.images.write(connection, changes.images)

        await self.database.write(work)
