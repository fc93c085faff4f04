"""The durable store. Used by control. An implementation must pass `commonage.testing.store.contract`.

There is one write call, `commit(batch)`: all of a batch or nothing, durable when it returns. All other calls read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from commonage.domain.classes import ClassMeeting
from commonage.domain.cron_jobs import CronJob
from commonage.domain.images import Image
from commonage.domain.nodes import Node, NodeKey
from commonage.domain.offboarding import Offboarding, Subject
from commonage.domain.resources import StoredResource
from commonage.domain.tenants import QuotaNotice, Reservation
from commonage.domain.usage import GpuTime, PastAllocation, Usage, UsageReport
from commonage.domain.workloads import Attempt, Event, Kind, State, Workload

T = TypeVar("T")


@dataclass(slots=True)
class Batch:
    """Changes that belong together.

    `inserts` are new workloads (version 1). `updates` carry the version they were read with plus one; the row must
    still have the former; several updates of one workload follow each other. A workload's `attempt` is written with it:
    inserted or replaced by its id; `usage_reports` likewise. `events` already have their `seq`. `nodes` are inserted or
    replaced by (site, name), `reservations`, `cron_jobs` and `class_meetings` by
    their id, `images` by their name, `quota_notices` by
    their bound; `departed` names nodes, `unreserved` reservations, `removed_cron_jobs` and
    `removed_class_meetings` such rows to delete.
    `resources` carry the version they were read with plus one, like `updates`; a new one has version 1. `offboardings`
    are inserted or replaced by their id.

    `reassigned` are those of `updates` whose owner or tenant changed. Their earlier attempts, and the newest one, stay
    with the owner and tenant that they ran for. One without a client key gives up the key that it had.

    Members of an array that share a client key come in one batch; the first one has it. The secrets of a spec are
    deleted when its workload has ended.

    `expired` are ids of ended workloads to delete, with their attempts and usage reports: in the same transaction their
    usage is added to daily totals. One that has not ended, or is gone, is left out. `expired_events` are the seqs of
    events to delete.
    """

    inserts: list[Workload] = field(default_factory=list)
    updates: list[Workload] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    usage_reports: list[UsageReport] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    unreserved: list[str] = field(default_factory=list)
    cron_jobs: list[CronJob] = field(default_factory=list)
    removed_cron_jobs: list[str] = field(default_factory=list)
    class_meetings: list[ClassMeeting] = field(default_factory=list)
    removed_class_meetings: list[str] = field(default_factory=list)
    departed: list[NodeKey] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    resources: list[StoredResource] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    expired_events: list[int] = field(default_factory=list)
    quota_notices: list[QuotaNotice] = field(default_factory=list)
    reassigned: list[Workload] = field(default_factory=list)
    offboardings: list[Offboarding] = field(default_factory=list)

    def __bool__(self) -> bool:
        work = self.inserts or self.updates or self.events or self.expired or self.expired_events
        rest = self.nodes or self.departed or self.usage_reports or self.reservations or self.unreserved or self.images
        cron_jobs = self.cron_jobs or self.removed_cron_jobs
        classes = self.class_meetings or self.removed_class_meetings
        return bool(work or rest or cron_jobs or classes or self.quota_notices or self.resources or self.offboardings)


@dataclass(frozen=True, slots=True)
class Visible:
    """Selects what one user may see: what the `owner` owns, what belongs to one of `tenants`, and of events also those
    without an owner of one of the tenants in `shared`.
    """

    owner: str
    tenants: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    def has(self, owner: str | None, tenant: str | None) -> bool:
        return owner == self.owner or tenant in self.tenants or (owner is None and tenant in self.shared)


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects workloads: every field that is not None must match. `text` is part of a name or the start of an id."""

    owner: str | None = None
    tenant: str | None = None
    kinds: Collection[Kind] | None = None
    states: Collection[State] | None = None
    site: str | None = None
    node: str | None = None
    array_id: str | None = None
    cron_job: str | None = None
    environment: str | None = None
    text: str | None = None
    submitted_after: float | None = None
    visible: Visible | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list, newest first; `next_cursor` requests the next part, None at the end."""

    items: Sequence[T]
    next_cursor: str | None


class Store(Protocol):
    """Durable storage. Raises StaleVersion, Conflict(code="key-taken"), NotFound, Unavailable; no errors of its own."""

    async def open(self) -> None:
        """Connect. The schema must be up to date (see `upgrade` in the store package)."""

    async def close(self) -> None: ...

    async def commit(self, batch: Batch) -> None:
        """Write all of it or nothing; durable when this returns.

        Raises StaleVersion when an update's version does not follow the row's, Conflict(code="key-taken") when an
        insert's (owner, key) exists already, Conflict when its id or an event's seq does. After Unavailable the outcome
        is unknown: a connection that broke at the very end may have written it.
        """

    async def live(self) -> Sequence[Workload]:
        """All workloads that have not ended, oldest first."""

    async def workload(self, workload_id: str) -> Workload:
        """One workload, with its newest attempt. Raises NotFound."""

    async def workload_by_key(self, owner: str, key: str) -> Workload | None: ...

    async def workloads(self, which: Filter, *, limit: int, cursor: str | None = None) -> Page[Workload]:
        """Newest first. A broken cursor, or one of another list, raises InvalidInput(code="invalid-cursor")."""

    async def count(self, which: Filter) -> dict[State, int]:
        """Number of workloads in each state; states without any are absent."""

    async def attempts(self, workload_id: str) -> Sequence[Attempt]:
        """All its attempts, oldest first."""

    async def events(
        self, *, after: int = 0, workload_id: str | None = None, visible: Visible | None = None, limit: int = 500
    ) -> Sequence[Event]:
        """Events with seq > `after`, oldest first."""

    async def last_event_seq(self) -> int:
        """The newest event's seq, 0 without events."""

    async def last_workload_id(self) -> str | None:
        """The greatest workload id, None without workloads."""

    async def usage(
        self,
        *,
        since: float,
        until: float,
        by: str,
        visible: Visible | None = None,
        workload_id: str | None = None,
    ) -> Sequence[Usage]:
        """Allocated resources within [since, until), summed by `by`: "owner", "tenant", "workload" or "environment".

        An attempt that still runs counts up to `until`. Of deleted workloads only daily totals (UTC) are known: a day
        that is partly within the period counts by that part, and they are in no sum by workload.
        """

    async def expired(self, *, before: float, needed: Collection[str], limit: int) -> Sequence[str]:
        """Ids of workloads that ended before a time, oldest end first.

        `needed` are ids of workloads and arrays: those, and the members of those arrays, are left out.
        """

    async def reclaim(self) -> bool:
        """Give a bounded amount of unused space back to the file system, if much is unused; True if more is left.

        Databases that do so by themselves do nothing.
        """

    async def past_holds(self, *, since: float, limit: int) -> Sequence[PastAllocation]:
        """Former allocations of attempts that ended at `since` or later, the last end first."""

    async def gpu_times(self, *, since: float) -> Sequence[GpuTime]:
        """GPU time from `since` of attempts that ended later, summed by tenant, owner, environment and model."""

    async def nodes(self) -> Sequence[Node]:
        """Every node ever seen and not removed."""

    async def usage_reports(self, workload_id: str) -> Sequence[UsageReport]:
        """Usage reports of its measured attempts, oldest first; that of a running one as last written."""

    async def usage_reports_like(self, owner: str, command_hash: str, *, limit: int) -> Sequence[UsageReport]:
        """Reports of ended attempts of this owner and command hash, newest first."""

    async def open_usage_reports(self) -> Sequence[UsageReport]:
        """Reports that are not closed, oldest first."""

    async def reservations(self, *, after: float) -> Sequence[Reservation]:
        """Those whose window ends after that time, ordered by start."""

    async def cron_jobs(self) -> Sequence[CronJob]:
        """All cron jobs, by id."""

    async def class_meetings(self) -> Sequence[ClassMeeting]:
        """All meetings of classes that are not removed, by id."""

    async def quota_notices(self, *, since: float) -> Sequence[QuotaNotice]:
        """The newest notice about each bound whose period began at `since` or later, by tenant, scope and name."""

    async def images(self) -> Sequence[Image]:
        """All images that were ever in the catalogue, including removed ones, by name."""

    async def resources(self) -> Sequence[StoredResource]:
        """All platform resources, including deleted ones, by kind and name."""

    async def offboardings(self) -> Sequence[Offboarding]:
        """All renamings and removals of users and tenants, by id."""

    async def rename(self, subject: Subject, name: str, to: str, *, limit: int) -> bool:
        """Give ended workloads with their attempts and usage reports, events, totals and past reservations a new name.

        At most `limit` workloads or events, in one transaction. True if more may be left. Live workloads stay: see
        `Batch.reassigned`.
        """
