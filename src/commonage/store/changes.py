"""A batch as rows, made before the transaction begins, so that it is short. Pure; called by `sql_store`."""

from __future__ import annotations

from collections.abc import Iterable

from commonage.domain.errors import Conflict, StaleVersion
from commonage.domain.workloads import Spec, Workload
from commonage.ports.store import Batch
from commonage.store import codec


class Changes:
    """The rows of a batch, grouped by table.

    Several updates of one workload are applied in order and the last is written. `versions` are the versions that
    the rows must have before: workload id -> version. `ended` are the ids of workloads that have ended.
    """

    def __init__(self, batch: Batch) -> None:
        self.versions: dict[str, int] = {}
        self.new_specs: list[codec.Row] = []
        self.new: list[codec.Row] = []
        self.new_secrets: list[codec.Row] = []
        self.attempts: dict[str, codec.Row] = {}
        newest = self._follow(batch)
        self._add_new([newest[each.id] for each in batch.inserts])
        self.changed = [{"of_id": name, **codec.progress_row(newest[name])} for name in self.versions]
        self.ended = [name for name in self.versions if newest[name].state.is_terminal]
        self.events = [codec.EVENT.row(event) for event in batch.events]
        self.nodes = [codec.NODE.row(node) for node in {(each.site, each.name): each for each in batch.nodes}.values()]
        self.reservations = [
            codec.RESERVATION.row(each) for each in {each.id: each for each in batch.reservations}.values()
        ]
        self.unreserved = list(batch.unreserved)
        self.images = [codec.IMAGE.row(each) for each in {each.name: each for each in batch.images}.values()]
        self.departed = [{"of_site": codec.clean(site), "of_name": codec.clean(name)} for site, name in batch.departed]
        self.usage_reports = [
            codec.USAGE_REPORT.row(each) for each in {each.attempt_id: each for each in batch.usage_reports}.values()
        ]

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
                self.attempts[workload.attempt.id] = codec.attempt_row(workload.attempt, workload.spec)
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
                self.new_specs.append({"id": spec_id, "body": codec.spec_to_json(spec)})
            self.new.append(codec.workload_row(workload, spec_id, _key_of(spec, keys)))
            if spec.secrets and not workload.state.is_terminal:
                body = secrets_of.get(id(spec)) or codec.secrets_to_json(spec.secrets)
                secrets_of[id(spec)] = body
                self.new_secrets.append({"workload_id": workload.id, "body": body})


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


def stale(workload_id: str, there: int | None, expected: int) -> StaleVersion:
    """The error for a workload that was changed meanwhile; `there` is its version, None if it does not exist."""
    found = "is not there" if there is None else f"is at version {there}"
    return StaleVersion(f"the workload {workload_id} was changed meanwhile: it {found}, this change follows {expected}")
