"""Writes the rows of a batch, with statements that are compiled once. Called by `sql_store` in its transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Boolean, Table, bindparam, case, delete, insert, null, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, CursorResult, Dialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import ClauseElement

from commonage.domain.errors import StaleVersion
from commonage.store.changes import Changes, stale
from commonage.store.expiry import delete_workloads
from commonage.store.many import is_among, many_in_one
from commonage.store.rows import WORKLOAD, Row
from commonage.store.tables import (
    attempts,
    class_meetings,
    cron_jobs,
    events,
    images,
    nodes,
    offboardings,
    quota_notices,
    reservations,
    resources,
    secrets,
    specs,
    usage_reports,
    workloads,
)

_FIXED: Final = frozenset({"id", "submitted_at", "array_index"})
_CHARGED: Final = frozenset({"owner", "tenant", "environment"})


class Writer:
    def __init__(self, dialect: Dialect) -> None:
        def prepared(statement: ClauseElement) -> _Prepared:
            return _Prepared(statement, dialect)

        def upsert(table: Table) -> _Prepared:
            return prepared(_upsert(table, dialect))

        progress = [*(name for name in WORKLOAD.columns if name not in _FIXED), "site", "node", "attempt_id"]
        self._dialect = dialect
        self._versions = prepared(
            select(workloads.c.id, workloads.c.version)
            .where(is_among(workloads.c.id, "ids", dialect))
            .order_by(workloads.c.id)  # all writers lock in the same order: no deadlock
            .with_for_update()
        )
        self._insert_specs = prepared(insert(specs))
        self._insert_workloads = prepared(insert(workloads))
        self._insert_secrets = prepared(insert(secrets))
        self._update_workloads = prepared(
            update(workloads)
            .where(workloads.c.id == bindparam("of_id"))
            .values({name: bindparam(name) for name in progress})
        )
        self._delete_secrets = prepared(delete(secrets).where(is_among(secrets.c.workload_id, "ids", dialect)))
        # An attempt stays with the owner and tenant that it ran for, even if its workload is handed over.
        self._upsert_attempts = prepared(_upsert(attempts, dialect, fixed=_CHARGED))
        keeps_key = bindparam("keeps_key", type_=Boolean)
        self._reassign = prepared(
            update(workloads)
            .where(workloads.c.id == bindparam("of_id"))
            .values(
                owner=bindparam("owner"),
                tenant=bindparam("tenant"),
                key=case((keeps_key, workloads.c.key), else_=null()),
            )
        )
        self._insert_events = prepared(insert(events))
        self._delete_events = prepared(delete(events).where(events.c.seq == bindparam("of_seq")))
        self._upsert_nodes = upsert(nodes)
        self._delete_nodes = prepared(
            delete(nodes).where(nodes.c.site == bindparam("of_site"), nodes.c.name == bindparam("of_name"))
        )
        self._upsert_usage_reports = upsert(usage_reports)
        self._upsert_reservations = upsert(reservations)
        self._delete_reservations = prepared(delete(reservations).where(reservations.c.id == bindparam("of_id")))
        self._upsert_cron_jobs = upsert(cron_jobs)
        self._delete_cron_jobs = prepared(delete(cron_jobs).where(cron_jobs.c.id == bindparam("of_id")))
        self._upsert_class_meetings = upsert(class_meetings)
        self._delete_class_meetings = prepared(delete(class_meetings).where(class_meetings.c.id == bindparam("of_id")))
        self._upsert_images = upsert(images)
        resource_key = (resources.c.kind == bindparam("kind"), resources.c.name == bindparam("name"))
        self._resource_version = prepared(select(resources.c.version).where(*resource_key).with_for_update())
        self._upsert_resources = upsert(resources)
        self._upsert_quota_notices = upsert(quota_notices)
        self._upsert_offboardings = upsert(offboardings)

    def write(self, connection: Connection, changes: Changes) -> None:
        """Raises StaleVersion unless each updated workload has the version that its update follows."""
        self._check_versions(connection, changes.versions)
        self._insert_specs.many(connection, changes.new_specs)
        self._insert_workloads.many(connection, changes.new)
        self._insert_secrets.many(connection, changes.new_secrets)
        self._update_workloads.many(connection, changes.changed)
        self._reassign.many(connection, changes.reassigned)
        if changes.ended:
            self._delete_secrets.one(connection, {"ids": many_in_one(changes.ended, self._dialect)})
        self._upsert_attempts.many(connection, changes.attempts.values())
        self._insert_events.many(connection, changes.events)
        self._upsert_nodes.many(connection, changes.nodes)
        self._delete_nodes.many(connection, changes.departed)
        self._upsert_usage_reports.many(connection, changes.usage_reports)
        self._upsert_reservations.many(connection, changes.reservations)
        self._delete_reservations.many(connection, changes.unreserved)
        self._upsert_cron_jobs.many(connection, changes.cron_jobs)
        self._delete_cron_jobs.many(connection, changes.removed_cron_jobs)
        self._upsert_class_meetings.many(connection, changes.class_meetings)
        self._delete_class_meetings.many(connection, changes.removed_class_meetings)
        self._upsert_images.many(connection, changes.images)
        for row in changes.resources:
            self._check_resource(connection, row)
            self._upsert_resources.many(connection, [row])
        if changes.expired:
            delete_workloads(connection, changes.expired)
        self._delete_events.many(connection, changes.expired_events)
        self._upsert_quota_notices.many(connection, changes.quota_notices)
        self._upsert_offboardings.many(connection, changes.offboardings)

    def _check_versions(self, connection: Connection, expected: dict[str, int]) -> None:
        if not expected:
            return
        rows = self._versions.one(connection, {"ids": many_in_one(expected, self._dialect)})
        actual: dict[str, int] = {row[0]: row[1] for row in rows}
        for workload_id, version in expected.items():
            if actual.get(workload_id) != version:
                raise stale(workload_id, actual.get(workload_id), version)

    def _check_resource(self, connection: Connection, row: Row) -> None:
        found = self._resource_version.one(connection, row).scalar_one_or_none()
        if (found or 0) != row["before"]:
            raise StaleVersion(
                f"{row['kind']} {row['name']} was changed meanwhile: it is at version {found or 0}, this change "
                f"follows {row['before']}"
            )


class _Prepared:
    """A statement compiled once. Small commits are frequent: compiling and binding each time would cost more than
    writing.
    """

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler) and compiled.positiontup
        self._sql = compiled.string
        names = compiled.positiontup
        # Alone, `itemgetter` does not return a tuple.
        self._values: Any = itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)

    def many(self, connection: Connection, rows: Iterable[Row]) -> None:
        """Run it once for each row; does nothing without rows."""
        values = [self._values(row) for row in rows]
        if values:
            connection.exec_driver_sql(self._sql, values)

    def one(self, connection: Connection, row: Row) -> CursorResult[*tuple[Any, ...]]:
        return connection.exec_driver_sql(self._sql, self._values(row))


def _upsert(table: Table, dialect: Dialect, fixed: Collection[str] = frozenset()) -> postgresql.Insert | sqlite.Insert:
    """Insert whole rows; a row with an existing primary key replaces the old one, except for its `fixed` columns."""
    statement = postgresql.insert(table) if dialect.name == "postgresql" else sqlite.insert(table)
    keys = [column.name for column in table.primary_key]
    kept = {*keys, *fixed}
    rest = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in kept}
    return statement.on_conflict_do_update(index_elements=keys, set_=rest)
