"""Turns the writer's queued changes, in their order, into one batch by stepping on the newest states.

Called by the writer alone; reads the live state, changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from commonage.control.state.feed import event_of
from commonage.control.state.live_state import LiveState
from commonage.domain.classes import ClassMeeting
from commonage.domain.cron_jobs import CronJob
from commonage.domain.images import Image
from commonage.domain.lifecycle import Effect, Reassigned, Record, Trigger, step
from commonage.domain.nodes import Node
from commonage.domain.offboarding import Offboarding
from commonage.domain.reasons import notes
from commonage.domain.resources import StoredResource
from commonage.domain.tenants import QuotaNotice, Reservation
from commonage.domain.usage import UsageReport
from commonage.domain.workloads import Event, EventKind, Workload
from commonage.ports.store import Batch


class Rows(TypedDict, total=False):
    """Rows that are written with a change; each field is added to the one of the same name in `Batch`."""

    events: Sequence[Event]
    nodes: Sequence[Node]
    departed: Sequence[tuple[str, str]]
    usage_reports: Sequence[UsageReport]
    reservations: Sequence[Reservation]
    unreserved: Sequence[str]
    cron_jobs: Sequence[CronJob]
    removed_cron_jobs: Sequence[str]
    class_meetings: Sequence[ClassMeeting]
    removed_class_meetings: Sequence[str]
    images: Sequence[Image]
    resources: Sequence[StoredResource]
    expired: Sequence[str]
    expired_events: Sequence[int]
    quota_notices: Sequence[QuotaNotice]
    offboardings: Sequence[Offboarding]


@dataclass(slots=True)
class Change:
    """One entry of the writer's queue: new workloads, a happening, or other rows; `done` is the caller's result."""

    done: asyncio.Future[Workload | None]
    inserts: Sequence[Workload] = ()
    workload_id: str | None = None
    trigger: Trigger | None = None
    rows: Rows = field(default_factory=Rows)

    def answer(self, draft: Draft) -> None:
        if not self.done.done():
            self.done.set_result(draft.latest.get(self.workload_id) if self.workload_id else None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # callers of `note` need not retrieve the error


@dataclass(slots=True)
class Draft:
    batch: Batch = field(default_factory=Batch)
    latest: dict[str, Workload] = field(default_factory=dict)
    effects: list[tuple[str, Effect]] = field(default_factory=list)
    updated: dict[str, Workload] = field(default_factory=dict)

    @property
    def first(self) -> Workload | None:
        """One workload that the store contains if the batch was written."""
        return next(iter([*self.batch.inserts, *self.batch.updates]), None)


def draft_of(changes: Sequence[Change], live_state: LiveState, now: float, first_seq: int) -> Draft:
    """Build one batch from all changes, in their order; its events are numbered from `first_seq`."""
    draft = Draft()
    for change in changes:
        for name, rows in change.rows.items():
            getattr(draft.batch, name).extend(rows)
        for workload in change.inserts:
            draft.batch.inserts.append(workload)
            draft.latest[workload.id] = workload
        if change.inserts:
            draft.batch.events.append(_submitted(change.inserts, now))
        if change.workload_id is not None and change.trigger is not None:
            _take_step(draft, live_state, change.workload_id, change.trigger, now)
    draft.batch.updates.extend(draft.updated.values())
    _keep_needed(draft.batch, live_state)
    draft.batch.events = [replace(event, seq=first_seq + index) for index, event in enumerate(draft.batch.events)]
    return draft


def _keep_needed(batch: Batch, live_state: LiveState) -> None:
    """Delete no workload that a live one depends on, even if that was submitted a moment ago."""
    if batch.expired:
        new = {dependency.workload_id for workload in batch.inserts for dependency in workload.spec.depends_on}
        batch.expired = [each for each in batch.expired if each not in new and not live_state.dependents_of(each)]


def _take_step(draft: Draft, live_state: LiveState, workload_id: str, trigger: Trigger, now: float) -> None:
    on_live_state = live_state.get(workload_id)
    before = draft.latest.get(workload_id, on_live_state)
    if before is None:
        return
    outcome = step(before, trigger, now)
    after = outcome.workload
    draft.latest[workload_id] = after
    draft.effects.extend((workload_id, effect) for effect in outcome.effects if not isinstance(effect, Record))
    draft.batch.events.extend(
        event_of(after if effect.state is None else replace(after, state=effect.state), effect.kind, now, effect.reason)
        for effect in outcome.effects
        if isinstance(effect, Record)
    )
    if after is not before:
        # The row is written once per batch, even after several steps: its version rises by one.
        version = on_live_state.version + 1 if on_live_state is not None else before.version
        draft.latest[workload_id] = after = replace(after, version=version)
        if on_live_state is not None:
            draft.updated[workload_id] = after
            if isinstance(trigger, Reassigned):
                draft.batch.reassigned.append(after)
        else:
            draft.batch.inserts = [after if one.id == workload_id else one for one in draft.batch.inserts]


def _submitted(workloads: Sequence[Workload], now: float) -> Event:
    first = workloads[0]
    submitted = notes.Submitted(count=len(workloads), request=str(first.spec.request))
    return event_of(first, EventKind.SUBMITTED, now, submitted)
