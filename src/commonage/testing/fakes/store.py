"""The store port in memory, for tests without a database. It satisfies the whole contract except durability.

`trouble` makes every call fail; committed data survives `close` and `open` of the same object, so that a test can
restart the control plane.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commonage.domain.classes import ClassMeeting
from commonage.domain.cron_jobs import CronJob
from commonage.domain.errors import CommonageError, Conflict, InvalidInput, NotFound, StaleVersion, Unavailable
from commonage.domain.images import Image
from commonage.domain.nodes import Node, NodeKey
from commonage.domain.offboarding import Offboarding, Subject
from commonage.domain.reasons.waiting import QuotaScope
from commonage.domain.resources import StoredResource
from commonage.domain.tenants import Amounts, QuotaNotice, Reservation
from commonage.domain.usage import (
    DAY_S,
    DailyUsage,
    GpuTime,
    HeldByAttempt,
    PastAllocation,
    Usage,
    UsageReport,
    daily_usage,
)
from commonage.domain.workloads import Attempt, Event, State, Workload
from commonage.ports.store import Batch, Filter, Page, Visible
from commonage.store.cursors import cursor_after, read_cursor

_Payer = tuple[str, str]  # owner and tenant
_SUBJECTS: dict[str, Callable[[Workload, _Payer], str]] = {
    "owner": lambda _, payer: payer[0],
    "tenant": lambda _, payer: payer[1],
    "workload": lambda workload, _: workload.id,
    "environment": lambda workload, _: workload.spec.environment,
}


@dataclass
class Shelf:
    """The content of a store; `numbers` are those of the events, `keys` map (owner, client key) to a workload's id.

    `payers` are the owner and tenant that each attempt ran for.
    """

    workloads: dict[str, Workload] = field(default_factory=dict)
    attempts: dict[str, dict[str, Attempt]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    nodes: dict[NodeKey, Node] = field(default_factory=dict)
    keys: dict[tuple[str, str], str] = field(default_factory=dict)
    usage_reports: dict[str, UsageReport] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    cron_jobs: dict[str, CronJob] = field(default_factory=dict)
    class_meetings: dict[str, ClassMeeting] = field(default_factory=dict)
    resources: dict[tuple[str, str], StoredResource] = field(default_factory=dict)
    images: dict[str, Image] = field(default_factory=dict)
    totals: list[DailyUsage] = field(default_factory=list)
    quota_notices: dict[tuple[str, ...], QuotaNotice] = field(default_factory=dict)
    payers: dict[str, _Payer] = field(default_factory=dict)
    offboardings: dict[str, Offboarding] = field(default_factory=dict)

    def payer(self, workload: Workload, attempt: Attempt) -> _Payer:
        return self.payers.get(attempt.id, (workload.spec.owner, workload.spec.tenant))


class MemoryStore:
    """A Store that lives as long as the object. Deliberately broken subclasses, which test the contract,
    override parts.
    """

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.trouble: CommonageError | None = None  # raised by every call while it is set
        self.commits = 0  # number of batches written
        self._open = False

    async def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        """Refuse calls until it is opened again."""
        self._open = False

    async def _turn(self) -> None:
        """Yield to other tasks, as a real database would, and raise `trouble` if set."""
        await asyncio.sleep(0)
        if self.trouble is not None:
            raise self.trouble
        if not self._open:
            raise Unavailable("the store is not open")

    async def commit(self, batch: Batch) -> None:
        await self._turn()
        self.check(batch)
        self.write(batch)
        self.commits += 1

    def check(self, batch: Batch) -> None:
        """Raise what `commit` raises, writing nothing."""
        versions: dict[str, int] = {}
        keys: dict[tuple[str, str], Workload] = {}
        for workload in batch.inserts:
            if workload.id in versions or workload.id in self.shelf.workloads:
                raise Conflict(f"the workload {workload.id} is there already")
            versions[workload.id] = workload.version
            self._check_key(workload, keys)
        for workload in batch.updates:
            self.check_version(workload, versions)
        resources = {key: one.version for key, one in self.shelf.resources.items()}
        for resource in batch.resources:
            if resources.get(resource.key, 0) != resource.version - 1:
                raise StaleVersion(f"{resource.kind} {resource.name} was changed meanwhile")
            resources[resource.key] = resource.version
        numbers = {event.seq for event in batch.events}
        if len(numbers) != len(batch.events) or not numbers.isdisjoint(self.shelf.numbers):
            raise Conflict("an event of this number is there already")

    def check_version(self, workload: Workload, versions: dict[str, int]) -> None:
        """Raise StaleVersion unless `workload` follows the version in `versions` (of this batch) or in the store."""
        there = self.shelf.workloads.get(workload.id)
        before = versions.get(workload.id, there.version if there else None)
        if before is None or before != workload.version - 1:
            raise StaleVersion(
                f"the workload {workload.id} was changed meanwhile: it is at version {before}, "
                f"this change follows {workload.version - 1}"
            )
        versions[workload.id] = workload.version

    def _check_key(self, workload: Workload, keys: dict[tuple[str, str], Workload]) -> None:
        """Raise Conflict unless its key is free; members of one array in the same batch share theirs."""
        spec = workload.spec
        if spec.key is None:
            return
        first = keys.setdefault((spec.owner, spec.key), workload)
        together = first is workload or (spec.array_id is not None and first.spec.array_id == spec.array_id)
        if not together or (spec.owner, spec.key) in self.shelf.keys:
            raise Conflict(f"the key {spec.key!r} was used before by {spec.owner}", code="key-taken")

    def write(self, batch: Batch) -> None:
        shelf = self.shelf
        for workload in [*batch.inserts, *batch.updates]:
            shelf.workloads[workload.id] = _without_secrets_at_the_end(workload)
            if workload.attempt is not None:
                shelf.attempts.setdefault(workload.id, {})[workload.attempt.id] = workload.attempt
                shelf.payers.setdefault(workload.attempt.id, (workload.spec.owner, workload.spec.tenant))
        for workload in batch.inserts:
            if workload.spec.key is not None:
                shelf.keys.setdefault((workload.spec.owner, workload.spec.key), workload.id)
        self.reassign(batch.reassigned)
        shelf.offboardings.update((each.id, each) for each in batch.offboardings)
        for event in batch.events:
            insort(shelf.events, event, key=lambda each: each.seq)
            shelf.numbers.add(event.seq)
        for node in batch.nodes:
            shelf.nodes[node.key] = node
        for departed in batch.departed:
            shelf.nodes.pop(departed, None)
        shelf.usage_reports.update((each.attempt_id, each) for each in batch.usage_reports)
        shelf.reservations.update((each.id, each) for each in batch.reservations)
        for gone in batch.unreserved:
            shelf.reservations.pop(gone, None)
        self.write_cron_jobs(batch)
        shelf.resources.update((each.key, each) for each in batch.resources)
        for notice in batch.quota_notices:
            shelf.quota_notices[notice.tenant, notice.scope, notice.name, notice.resource] = notice
        shelf.images.update((each.name, each) for each in batch.images)
        self.expire(batch)

    def write_cron_jobs(self, batch: Batch) -> None:
        self.shelf.cron_jobs.update((each.id, each) for each in batch.cron_jobs)
        for gone in batch.removed_cron_jobs:
            self.shelf.cron_jobs.pop(gone, None)
        self.shelf.class_meetings.update((each.id, each) for each in batch.class_meetings)
        for gone in batch.removed_class_meetings:
            self.shelf.class_meetings.pop(gone, None)

    def reassign(self, workloads: Iterable[Workload]) -> None:
        """Their keys get the new owner, or are removed."""
        for workload in workloads:
            keys = {key: each for key, each in self.shelf.keys.items() if each != workload.id}
            if workload.spec.key is not None and len(keys) < len(self.shelf.keys):
                keys[workload.spec.owner, workload.spec.key] = workload.id
            self.shelf.keys = keys

    def expire(self, batch: Batch) -> None:
        for workload_id in batch.expired:
            self.expire_workload(workload_id)
        shelf = self.shelf
        shelf.events = [event for event in shelf.events if event.seq not in batch.expired_events]
        shelf.numbers.difference_update(batch.expired_events)

    def expire_workload(self, workload_id: str) -> None:
        """Delete one ended workload, and add its usage to the totals."""
        shelf, workload = self.shelf, self.shelf.workloads.get(workload_id)
        if workload is None or not workload.state.is_terminal:
            return
        del shelf.workloads[workload_id]
        shelf.totals += daily_usage(
            _held_by(workload, attempt, shelf.payer(workload, attempt))
            for attempt in shelf.attempts.pop(workload_id, {}).values()
        )
        shelf.keys = {key: first for key, first in shelf.keys.items() if first != workload_id}
        reports = shelf.usage_reports.items()
        shelf.usage_reports = {key: each for key, each in reports if each.workload_id != workload_id}

    async def expired(self, *, before: float, needed: Collection[str], limit: int) -> Sequence[str]:
        await self._turn()
        found = [
            each
            for each in self.shelf.workloads.values()
            if each.state.is_terminal and each.since < before and not {each.id, each.spec.array_id} & set(needed)
        ]
        return [each.id for each in sorted(found, key=lambda each: (each.since, each.id))[:limit]]

    async def reclaim(self) -> bool:
        await self._turn()
        return False

    async def live(self) -> Sequence[Workload]:
        await self._turn()
        living = (each for each in self.shelf.workloads.values() if not each.state.is_terminal)
        return sorted(living, key=lambda each: each.id)

    async def workload(self, workload_id: str) -> Workload:
        await self._turn()
        found = self.shelf.workloads.get(workload_id)
        if found is None:
            raise NotFound(f"there is no workload {workload_id}", code="workload-not-found")
        return found

    async def workload_by_key(self, owner: str, key: str) -> Workload | None:
        await self._turn()
        found = self.shelf.keys.get((owner, key))
        return self.shelf.workloads[found] if found is not None else None

    async def workloads(self, which: Filter, *, limit: int, cursor: str | None = None) -> Page[Workload]:
        await self._turn()
        before = read_cursor(cursor, which) if cursor is not None else None
        found = sorted(
            (each for each in self._matching(which) if before is None or each.id < before),
            key=lambda each: each.id,
            reverse=True,
        )
        page = found[:limit]
        return Page(page, cursor_after(page[-1].id, which) if len(found) > len(page) and page else None)

    async def count(self, which: Filter) -> dict[State, int]:
        await self._turn()
        counts: dict[State, int] = {}
        for workload in self._matching(which):
            counts[workload.state] = counts.get(workload.state, 0) + 1
        return counts

    def _matching(self, which: Filter) -> Iterable[Workload]:
        return (workload for workload in self.shelf.workloads.values() if matches(workload, which))

    async def attempts(self, workload_id: str) -> Sequence[Attempt]:
        await self._turn()
        return sorted(self.shelf.attempts.get(workload_id, {}).values(), key=lambda each: each.number)

    async def events(
        self, *, after: int = 0, workload_id: str | None = None, visible: Visible | None = None, limit: int = 500
    ) -> Sequence[Event]:
        await self._turn()
        found = [
            event
            for event in self.shelf.events
            if event.seq > after
            and (workload_id is None or event.workload_id == workload_id)
            and (visible is None or visible.has(event.owner, event.tenant))
        ]
        return found[:limit]

    async def last_event_seq(self) -> int:
        await self._turn()
        return self.shelf.events[-1].seq if self.shelf.events else 0

    async def last_workload_id(self) -> str | None:
        await self._turn()
        return max(self.shelf.workloads, default=None)

    async def usage(
        self,
        *,
        since: float,
        until: float,
        by: str,
        visible: Visible | None = None,
        workload_id: str | None = None,
    ) -> Sequence[Usage]:
        """The resources held within [since, until)."""
        await self._turn()
        if by not in _SUBJECTS:
            raise InvalidInput(
                f"usage is summed by {', '.join(_SUBJECTS)}, not by {by!r}", field="by", code="invalid-by"
            )
        sums: dict[str, Usage] = {}
        for workload in self.shelf.workloads.values():
            if workload_id not in (None, workload.id):
                continue
            parts: dict[str, list[Attempt]] = {}
            for attempt in self.shelf.attempts.get(workload.id, {}).values():
                payer = self.shelf.payer(workload, attempt)
                if visible is None or visible.has(*payer):
                    parts.setdefault(_SUBJECTS[by](workload, payer), []).append(attempt)
            for subject, attempts in parts.items():
                held = _held(workload, attempts, since, until)
                if held is not None:
                    sums[subject] = _added(sums.get(subject, Usage(subject, 0, 0, 0, 0, 0)), held)
        for day in self.shelf.totals if by != "workload" and workload_id is None else ():
            begun, ended = max(since, day.day * DAY_S), min(until, (day.day + 1) * DAY_S)
            if (visible is None or visible.has(day.owner, day.tenant)) and begun < ended:
                subject = getattr(day, by)
                number = day.workloads if day.day == since // DAY_S else day.began
                part = _part_of(day, number, (ended - begun) / DAY_S)
                sums[subject] = _added(sums.get(subject, Usage(subject, 0, 0, 0, 0, 0)), part)
        return [sums[subject] for subject in sorted(sums)]

    async def gpu_times(self, *, since: float) -> Sequence[GpuTime]:
        await self._turn()
        sums: defaultdict[tuple[str, str, str, str], float] = defaultdict(float)
        for workload in self.shelf.workloads.values():
            for one in self.shelf.attempts.get(workload.id, {}).values():
                if one.ended_at is not None and one.ended_at > max(since, one.allocation.at):
                    owner, tenant = self.shelf.payer(workload, one)
                    for share in one.allocation.shares:
                        key = (tenant, owner, workload.spec.environment, share.model)
                        sums[key] += share.compute_milli * (one.ended_at - max(since, one.allocation.at))
        return [GpuTime(*key, milli_s) for key, milli_s in sorted(sums.items())]

    async def past_holds(self, *, since: float, limit: int) -> Sequence[PastAllocation]:
        """Past allocations of ended attempts, newest first."""
        await self._turn()
        found = [
            PastAllocation(
                one.id,
                self.shelf.payer(workload, one)[1],
                self.shelf.payer(workload, one)[0],
                Amounts.of(one.allocation),
                one.allocation.at,
                one.ended_at,
            )
            for workload in self.shelf.workloads.values()
            for one in self.shelf.attempts.get(workload.id, {}).values()
            if one.ended_at is not None and one.ended_at >= since
        ]
        return sorted(found, key=lambda each: (each.ended_at, each.attempt_id), reverse=True)[:limit]

    async def nodes(self) -> Sequence[Node]:
        await self._turn()
        return [self.shelf.nodes[key] for key in sorted(self.shelf.nodes)]

    async def usage_reports(self, workload_id: str) -> Sequence[UsageReport]:
        await self._turn()
        found = (each for each in self.shelf.usage_reports.values() if each.workload_id == workload_id)
        return sorted(found, key=lambda each: (each.began_at, each.attempt_id))

    async def usage_reports_like(self, owner: str, command_hash: str, *, limit: int) -> Sequence[UsageReport]:
        """Ended usage reports of the same work, newest first."""
        await self._turn()
        found = [
            each
            for each in self.shelf.usage_reports.values()
            if each.ended_at is not None and (each.owner, each.command_hash) == (owner, command_hash)
        ]
        return sorted(found, key=lambda each: (each.ended_at, each.attempt_id), reverse=True)[:limit]

    async def open_usage_reports(self) -> Sequence[UsageReport]:
        """Usage reports of attempts that have not ended."""
        await self._turn()
        found = (each for each in self.shelf.usage_reports.values() if each.ended_at is None)
        return sorted(found, key=lambda each: (each.began_at, each.attempt_id))

    async def resources(self) -> Sequence[StoredResource]:
        await self._turn()
        return [self.shelf.resources[key] for key in sorted(self.shelf.resources)]

    async def offboardings(self) -> Sequence[Offboarding]:
        await self._turn()
        return [self.shelf.offboardings[key] for key in sorted(self.shelf.offboardings)]

    async def rename(self, subject: Subject, name: str, to: str, *, limit: int) -> bool:
        await self._turn()
        shelf, of_user = self.shelf, subject is Subject.USER

        def renamed(owner: str | None, tenant: str | None) -> dict[str, Any]:
            """The fields with the new name."""
            return {"owner": to if of_user and owner == name else owner,
                    "tenant": to if not of_user and tenant == name else tenant}  # fmt: skip

        found = [
            each for each in shelf.workloads.values() if name == (each.spec.owner if of_user else each.spec.tenant)
        ]
        some = [each for each in found if each.state.is_terminal][:limit]
        for each in some:
            spec = replace(each.spec, **renamed(each.spec.owner, each.spec.tenant))
            shelf.workloads[each.id] = replace(each, spec=spec)
        if some:
            return True
        shelf.payers = {
            key: (fields["owner"], fields["tenant"])
            for key, payer in shelf.payers.items()
            for fields in [renamed(*payer)]
        }
        if of_user:
            shelf.keys = {(to if owner == name else owner, key): each for (owner, key), each in shelf.keys.items()}
            reports = shelf.usage_reports.items()
            shelf.usage_reports = {key: replace(one, owner=renamed(one.owner, None)["owner"]) for key, one in reports}
        shelf.events = [replace(one, **renamed(one.owner, one.tenant)) for one in shelf.events]
        shelf.totals = [replace(one, **renamed(one.owner, one.tenant)) for one in shelf.totals]
        notices = shelf.quota_notices.items()
        shelf.quota_notices = {key: one for key, one in notices if not _is_about(one, subject, name)}
        return False

    async def reservations(self, *, after: float) -> Sequence[Reservation]:
        await self._turn()
        found = (each for each in self.shelf.reservations.values() if each.ends_at > after)
        return sorted(found, key=lambda each: (each.starts_at, each.id))

    async def cron_jobs(self) -> Sequence[CronJob]:
        await self._turn()
        return [self.shelf.cron_jobs[key] for key in sorted(self.shelf.cron_jobs)]

    async def class_meetings(self) -> Sequence[ClassMeeting]:
        await self._turn()
        return [self.shelf.class_meetings[key] for key in sorted(self.shelf.class_meetings)]

    async def quota_notices(self, *, since: float) -> Sequence[QuotaNotice]:
        await self._turn()
        return [one for _, one in sorted(self.shelf.quota_notices.items()) if one.period_at >= since]

    async def images(self) -> Sequence[Image]:
        await self._turn()
        return [self.shelf.images[name] for name in sorted(self.shelf.images)]


def _is_about(notice: QuotaNotice, subject: Subject, name: str) -> bool:
    if subject is Subject.TENANT:
        return notice.tenant == name
    return notice.scope is QuotaScope.USER and notice.name == name


def matches(workload: Workload, which: Filter) -> bool:
    """True if every field of `which` that is set matches."""
    spec = workload.spec
    asked: list[tuple[object, object]] = [
        (which.owner, spec.owner),
        (which.tenant, spec.tenant),
        (which.site, workload.attempt.allocation.site if workload.attempt else None),
        (which.node, workload.attempt.allocation.node if workload.attempt else None),
        (which.array_id, spec.array_id),
        (which.cron_job, spec.cron_job),
        (which.environment, spec.environment),
    ]
    return (
        all(wanted is None or wanted == there for wanted, there in asked)
        and (which.kinds is None or spec.kind in which.kinds)
        and (which.states is None or workload.state in which.states)
        and (which.submitted_after is None or workload.submitted_at > which.submitted_after)
        and (which.visible is None or which.visible.has(spec.owner, spec.tenant))
        and (which.text is None or _has_text(workload, which.text))
    )


def _has_text(workload: Workload, text: str) -> bool:
    return text.casefold() in workload.spec.name.casefold() or workload.id.startswith(text.casefold())


def _without_secrets_at_the_end(workload: Workload) -> Workload:
    if workload.state.is_terminal and workload.spec.secrets:
        return replace(workload, spec=workload.spec.without_secrets())
    return workload


def _held(workload: Workload, attempts: Iterable[Attempt], since: float, until: float) -> Usage | None:
    """The resources that one workload held within the window; None if nothing."""
    held = Usage(workload.id, 1, 0, 0, 0, 0)
    any_time = False
    for attempt in attempts:
        begun, ended = attempt.occupied_s
        hours = (min(until, until if ended is None else ended) - max(since, begun)) / 3600
        if hours <= 0:
            continue
        any_time = True
        allocation = attempt.allocation
        held = replace(
            held,
            gpu_gib_h=held.gpu_gib_h + sum(share.memory_mib for share in allocation.shares) / 1024 * hours,
            gpu_h=held.gpu_h + sum(share.compute_milli for share in allocation.shares) / 1000 * hours,
            cpu_h=held.cpu_h + allocation.cpus_milli / 1000 * hours,
            memory_gib_h=held.memory_gib_h + allocation.memory_mib / 1024 * hours,
        )
    return held if any_time else None


def _held_by(workload: Workload, attempt: Attempt, payer: _Payer) -> HeldByAttempt:
    allocation, (owner, tenant) = attempt.allocation, payer
    return HeldByAttempt(
        workload.id,
        tenant,
        owner,
        workload.spec.environment,
        sum(share.memory_mib for share in allocation.shares),
        sum(share.compute_milli for share in allocation.shares),
        allocation.cpus_milli,
        allocation.memory_mib,
        allocation.at,
        workload.since if attempt.ended_at is None else attempt.ended_at,
    )


def _part_of(day: DailyUsage, workloads: int, part: float) -> Usage:
    hours = part / 3600
    return Usage(
        day.owner,
        workloads,
        day.gpu_mib_s / 1024 * hours,
        day.gpu_milli_s / 1000 * hours,
        day.cpus_milli_s / 1000 * hours,
        day.memory_mib_s / 1024 * hours,
    )


def _added(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.subject,
        one.workloads + other.workloads,
        one.gpu_gib_h + other.gpu_gib_h,
        one.gpu_h + other.gpu_h,
        one.cpu_h + other.cpu_h,
        one.memory_gib_h + other.memory_gib_h,
    )
