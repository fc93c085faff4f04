"""Converts a batch to rows before the transaction begins, to keep it short. Pure; called by `sql_store`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from commonage.domain.codec import clean
from commonage.domain.errors import Conflict, StaleVersion
from commonage.domain.workloads import Spec, Workload
from commonage.ports.store import Batch
from commonage.store.rows import (
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
    Row,
    Stored,
    attempt_row,
    progress_row,
    secrets_to_json,
    spec_to_json,
    workload_row,
)

T = TypeVar("T")


class Changes:
    """The rows of a batch, grouped by table.

    Several updates of one workload are applied in order and the last is written. `versions` are the versions that
    the rows must have before: workload id -> version. `ended` are the ids of workloads that have ended.
    """

    def __init__(self, batch: Batch) -> None:
        self.versions: dict[str, int] = {}
        self.new_specs: list[Row] = []
        self.new: list[Row] = []
        self.new_secrets: list[Row] = []
        self.attempts: dict[str, Row] = {}
        newest = self._follow(batch)
        self._add_new([newest[each.id] for each in batch.inserts])
        self.changed = [{"of_id": name, **progress_row(newest[name])} for name in self.versions]
        self.ended = [name for name in self.versions if newest[name].state.is_terminal]
        self.events = [EVENT.row(event) for event in batch.events]
        self.nodes = _last_rows(NODE, batch.nodes, lambda node: node.key)
        self.departed = [{"of_site": clean(site), "of_name": clean(name)} for site, name in batch.departed]
        self.reservations = _last_rows(RESERVATION, batch.reservations, lambda reservation: reservation.id)
        self.unreserved = [{"of_id": clean(reservation_id)} for reservation_id in batch.unreserved]
        self.cron_jobs = _last_rows(CRON_JOB, batch.cron_jobs, lambda cron_job: cron_job.id)
        self.removed_cron_jobs = [{"of_id": clean(cron_job_id)} for cron_job_id in batch.removed_cron_jobs]
        self.class_meetings = _last_rows(CLASS_MEETING, batch.class_meetings, lambda meeting: meeting.id)
        self.removed_class_meetings = [{"of_id": clean(meeting_id)} for meeting_id in batch.removed_class_meetings]
        self.quota_notices = _last_rows(
            QUOTA_NOTICE, batch.quota_notices, lambda one: (one.tenant, one.scope, one.name, one.resource)
        )
        self.images = _last_rows(IMAGE, batch.images, lambda image: image.name)
        self.resources = [{**RESOURCE.row(one), "before": one.version - 1} for one in batch.resources]
        self.offboardings = _last_rows(OFFBOARDING, batch.offboardings, lambda one: one.id)
        self.reassigned = [_reassigned(newest[one.id]) for one in batch.reassigned]
        self.expired = [clean(workload_id) for workload_id in batch.expired]
        self.expired_events = [{"of_seq": seq} for seq in batch.expired_events]
        self.usage_reports = _last_rows(USAGE_REPORT, batch.usage_reports, lambda report: report.attempt_id)

    def _follow(self, batch: Batch) -> dict[str, Workload]:
        """The last state of each workload in the batch. Raises StaleVersion, or Conflict for a duplicate new id."""
        newest: dict[str, Workload] = {}
        for workload in batch.inserts:
            if workload.id in newest:
                raise Conflict(f"the workload {workload.id} is there already")
            newest[workload.id] = workload
        for workload in batch.updates:
            before = newest.get(workload.id)
            if before is None:
                self.versions[workload.id] = workload.version - 1
            elif before.version != workload.version - 1:
                raise stale(workload.id, before.version, workload.version - 1)
            newest[workload.id] = workload
        for workload in (*batch.inserts, *batch.updates):
            if workload.attempt is not None:
                self.attempts[workload.attempt.id] = attempt_row(workload.attempt, workload.spec)
        return newest

    def _add_new(self, inserts: Iterable[Workload]) -> None:
        # By identity: members of an array share one object, and comparing thousands of specs would cost more.
        spec_ids: dict[int, str] = {}
        secrets_of: dict[int, str] = {}
        keys: dict[tuple[str, str], Spec] = {}
        for workload in inserts:
            spec = workload.spec
            spec_id = spec_ids.setdefault(id(spec), workload.id)
            if spec_id == workload.id:
                self.new_specs.append({"id": spec_id, "body": spec_to_json(spec)})
            self.new.append(workload_row(workload, spec_id, _key_of(spec, keys)))
            if spec.secrets and not workload.state.is_terminal:
                body = secrets_of.get(id(spec)) or secrets_to_json(spec.secrets)
                secrets_of[id(spec)] = body
                self.new_secrets.append({"workload_id": workload.id, "body": body})


def _reassigned(workload: Workload) -> Row:
    spec = workload.spec
    return {
        "of_id": workload.id,
        "owner": clean(spec.owner),
        "tenant": clean(spec.tenant),
        "keeps_key": spec.key is not None,
    }


def _last_rows(stored: Stored[T], values: Iterable[T], key: Callable[[T], Any]) -> list[Row]:
    """The rows of the values; of several with the same key only the last."""
    return [stored.row(value) for value in {key(value): value for value in values}.values()]


def _key_of(spec: Spec, keys: dict[tuple[str, str], Spec]) -> str | None:
    """The client key to write, which must be unique: of an array only the first member has it.

    Raises Conflict for a duplicate key.
    """
    if spec.key is None:
        return None
    first = keys.get((spec.owner, spec.key))
    if first is None:
        keys[spec.owner, spec.key] = spec
        return spec.key
    if spec.array_id is None or first.array_id != spec.array_id:
        raise Conflict(f"the key {spec.key!r} was used before by {spec.owner}", code="key-taken")
    return None


def stale(workload_id: str, actual: int | None, expected: int) -> StaleVersion:
    """The error for a workload that a concurrent write changed; `actual` is its version, None if it does not exist."""
    state = "is not there" if actual is None else f"is at version {actual}"
    return StaleVersion(f"the workload {workload_id} was changed meanwhile: it {state}, this change follows {expected}")
