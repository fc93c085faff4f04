"""Workloads in the database: their specs, their progress, and their secrets while they are needed.

Called by `sql_store`: writes inside its transaction, reads on their own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Select, bindparam, delete, func, insert, select, update
from sqlalchemy.engine import Connection, Dialect

from commonage.domain.errors import NotFound
from commonage.domain.workloads import Spec, State, Workload
from commonage.ports.store import Filter, Page
from commonage.store import codec
from commonage.store.changes import Changes, stale
from commonage.store.cursors import cursor_after, read_cursor
from commonage.store.database import Database
from commonage.store.paging import conditions, newest_first
from commonage.store.statements import Prepared, is_among, many_in_one
from commonage.store.tables import attempts, secrets, specs, workloads

_LIVE: Final = [state.value for state in State if not state.is_terminal]
_SPECS_KEPT: Final = 2048
_OWN_END: Final = 3 + len(codec.WORKLOAD.columns)
_FIXED: Final = frozenset({"id", "submitted_at", "array_index"})

_WHOLE = (
    select(
        workloads.c.spec_id,
        specs.c.body.label("spec"),
        secrets.c.body.label("secrets"),
        *(workloads.c[name] for name in codec.WORKLOAD.columns),
        *(attempts.c[name].label(f"attempt_{name}") for name in codec.ATTEMPT_COLUMNS),
    )
    .join_from(workloads, specs, workloads.c.spec_id == specs.c.id)
    .outerjoin(secrets, secrets.c.workload_id == workloads.c.id)
    .outerjoin(attempts, attempts.c.id == workloads.c.attempt_id)
)


class Workloads:
    """The repository of workloads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements = _Statements(database.dialect)
        # Specs never change and pages are read often, so each is decoded once.
        self._specs: OrderedDict[str, Spec] = OrderedDict()

    # --- writing ---

    def check(self, connection: Connection, changes: Changes) -> None:
        """Lock the rows to be updated. Raises StaleVersion unless each has the version that its update follows."""
        if not changes.versions:
            return
        rows = self._statements.versions.one(connection, {"ids": many_in_one(changes.versions, self._database.dialect)})
        there: dict[str, int] = {row[0]: row[1] for row in rows}
        for name, version in changes.versions.items():
            if there.get(name) != version:
                raise stale(name, there.get(name), version)

    def write(self, connection: Connection, changes: Changes) -> None:
        """Write new and changed workloads, except their attempts."""
        statements = self._statements
        statements.insert_spec.many(connection, changes.new_specs)
        statements.insert.many(connection, changes.new)
        statements.insert_secrets.many(connection, changes.new_secrets)
        statements.update.many(connection, changes.changed)
        if changes.ended:
            ended = many_in_one(changes.ended, self._database.dialect)
            statements.drop_secrets.one(connection, {"ids": ended})

    # --- reading ---

    async def live(self) -> list[Workload]:
        """All workloads that have not ended, oldest first."""
        return await self._read(_WHOLE.where(workloads.c.state.in_(_LIVE)).order_by(workloads.c.id))

    async def one(self, workload_id: str) -> Workload:
        """One workload. Raises NotFound."""
        found = await self._read(_WHOLE.where(workloads.c.id == codec.clean(workload_id)))
        if not found:
            raise NotFound(f"there is no workload {workload_id}", code="workload-not-found")
        return found[0]

    async def by_key(self, owner: str, key: str) -> Workload | None:
        """The workload with this client key, of an array its first member."""
        found = await self._read(
            _WHOLE.where(workloads.c.owner == codec.clean(owner), workloads.c.key == codec.clean(key))
        )
        return found[0] if found else None

    async def page(self, which: Filter, limit: int, cursor: str | None) -> Page[Workload]:
        """A page, newest first."""
        before = read_cursor(cursor, which) if cursor is not None else None
        chosen = newest_first(which, limit + 1, before, self._database.dialect).subquery()
        found = await self._read(_WHOLE.join(chosen, chosen.c.id == workloads.c.id).order_by(workloads.c.id.desc()))
        items = found[:limit]
        return Page(items, cursor_after(items[-1].id, which) if items and len(found) > limit else None)

    async def count(self, which: Filter) -> dict[State, int]:
        """The number of workloads in each state."""
        rows = await self._database.read(
            select(workloads.c.state, func.count())
            .where(*conditions(which, self._database.dialect, with_states=True))
            .group_by(workloads.c.state)
        )
        return {State(state): number for state, number in rows}

    async def last_id(self) -> str | None:
        """The greatest workload id."""
        rows = await self._database.read(select(func.max(workloads.c.id)))
        return rows[0][0] if rows else None

    async def _read(self, statement: Select[Any]) -> list[Workload]:
        rows = await self._database.read(statement)
        with_secrets: dict[tuple[str, str], Spec] = {}
        return [self._decode(row, with_secrets) for row in rows]

    def _decode(self, row: Sequence[Any], with_secrets: dict[tuple[str, str], Spec]) -> Workload:
        spec_id, body, secret = row[:3]
        if secret is None:
            spec = self._spec(spec_id, body)
        else:  # members of an array share one, also after a restart
            spec = with_secrets.get((spec_id, secret)) or codec.spec_from_json(body, secret)
            with_secrets[spec_id, secret] = spec
        own = row[3:_OWN_END]
        attempt = row[_OWN_END:]
        newest = codec.attempt_from_row(attempt) if attempt[0] is not None else None
        return codec.WORKLOAD.value(own, spec=spec, attempt=newest)

    def _spec(self, spec_id: str, body: str) -> Spec:
        spec = self._specs.get(spec_id)
        if spec is None:
            spec = self._specs[spec_id] = codec.spec_from_json(body)
            if len(self._specs) > _SPECS_KEPT:
                self._specs.popitem(last=False)
        else:
            self._specs.move_to_end(spec_id)
        return spec


class _Statements:
    """The write statements, for one kind of database."""

    def __init__(self, dialect: Dialect) -> None:
        progress = [*(name for name in codec.WORKLOAD.columns if name not in _FIXED), "node", "attempt_id"]
        self.versions = Prepared(
            select(workloads.c.id, workloads.c.version)
            .where(is_among(workloads.c.id, "ids", dialect))
            .order_by(workloads.c.id)  # all writers lock in the same order: no deadlock
            .with_for_update(),
            dialect,
        )
        self.insert_spec = Prepared(insert(specs), dialect)
        self.insert = Prepared(insert(workloads), dialect)
        self.insert_secrets = Prepared(insert(secrets), dialect)
        self.update = Prepared(
            update(workloads)
            .where(workloads.c.id == bindparam("of_id"))
            .values({name: bindparam(name) for name in progress}),
            dialect,
        )
        self.drop_secrets = Prepared(delete(secrets).where(is_among(secrets.c.workload_id, "ids", dialect)), dialect)
