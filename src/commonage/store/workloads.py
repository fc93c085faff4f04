"""Reads workloads: their specs, their progress, and their secrets while they are needed. Called by `sql_store`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Select, func, select

from commonage.domain.codec import clean
from commonage.domain.errors import NotFound
from commonage.domain.workloads import Spec, State, Workload
from commonage.ports.store import Filter, Page
from commonage.store.cursors import cursor_after, read_cursor
from commonage.store.database import Database
from commonage.store.many import is_among, many_in_one
from commonage.store.paging import conditions_of, newest_first
from commonage.store.rows import ATTEMPT_COLUMNS, WORKLOAD, attempt_from_row, spec_from_json, with_secrets
from commonage.store.tables import attempts, secrets, specs, workloads

_LIVE: Final = [state.value for state in State if not state.is_terminal]
_SPECS_KEPT: Final = 2048
_OWN_BEGIN: Final = 4
_OWN_END: Final = _OWN_BEGIN + len(WORKLOAD.columns)

_SpecKey = tuple[str, str, str]  # spec id, owner, tenant

# Without the body of the spec, which is read once for all members of an array.
_WHOLE = (
    select(
        workloads.c.spec_id,
        secrets.c.body.label("secrets"),
        workloads.c.owner,
        workloads.c.tenant,
        *(workloads.c[name] for name in WORKLOAD.columns),
        *(attempts.c[name].label(f"attempt_{name}") for name in ATTEMPT_COLUMNS),
    )
    .outerjoin_from(workloads, secrets, secrets.c.workload_id == workloads.c.id)
    .outerjoin(attempts, attempts.c.id == workloads.c.attempt_id)
)


class Workloads:
    def __init__(self, database: Database) -> None:
        self._database = database
        # Specs change only their owner and tenant, and pages are read often, so each is decoded once.
        self._specs: OrderedDict[_SpecKey, Spec] = OrderedDict()

    async def live(self) -> list[Workload]:
        """All workloads that have not ended, oldest first."""
        return await self._read(_WHOLE.where(workloads.c.state.in_(_LIVE)).order_by(workloads.c.id))

    async def one(self, workload_id: str) -> Workload:
        matches = await self._read(_WHOLE.where(workloads.c.id == clean(workload_id)))
        if not matches:
            raise NotFound(f"there is no workload {workload_id}", code="workload-not-found")
        return matches[0]

    async def by_key(self, owner: str, key: str) -> Workload | None:
        """The workload with this client key, of an array its first member."""
        matches = await self._read(_WHOLE.where(workloads.c.owner == clean(owner), workloads.c.key == clean(key)))
        return matches[0] if matches else None

    async def page(self, which: Filter, limit: int, cursor: str | None) -> Page[Workload]:
        before = read_cursor(cursor, which) if cursor is not None else None
        chosen = newest_first(which, limit + 1, before, self._database.dialect).subquery()
        rest = await self._read(_WHOLE.join(chosen, chosen.c.id == workloads.c.id).order_by(workloads.c.id.desc()))
        items = rest[:limit]
        return Page(items, cursor_after(items[-1].id, which) if items and len(rest) > limit else None)

    async def count(self, which: Filter) -> dict[State, int]:
        rows = await self._database.read(
            select(workloads.c.state, func.count())
            .where(*conditions_of(which, self._database.dialect, with_states=True))
            .group_by(workloads.c.state)
        )
        return {State(state): number for state, number in rows}

    async def last_id(self) -> str | None:
        rows = await self._database.read(select(func.max(workloads.c.id)))
        return rows[0][0] if rows else None

    async def _read(self, statement: Select[Any]) -> list[Workload]:
        rows = await self._database.read(statement)
        found = await self._specs_of({(spec_id, owner, tenant) for spec_id, _, owner, tenant, *_ in rows})
        shared: dict[tuple[_SpecKey, str], Spec] = {}  # members of an array share one, also after a restart
        read: list[Workload] = []
        for row in rows:
            spec_id, secret, *charged = row[:_OWN_BEGIN]
            key: _SpecKey = (spec_id, *charged)
            spec = found.get(key)
            if spec is None:
                continue  # it was deleted after the first query
            if secret is not None:
                spec = shared.get((key, secret)) or with_secrets(spec, secret)
                shared[key, secret] = spec
            attempt = row[_OWN_END:]
            newest = attempt_from_row(attempt) if attempt[0] is not None else None
            read.append(WORKLOAD.value(row[_OWN_BEGIN:_OWN_END], spec=spec, attempt=newest))
        return read

    async def _specs_of(self, keys: Set[_SpecKey]) -> dict[_SpecKey, Spec]:
        found = {key: self._specs[key] for key in keys if key in self._specs}
        missing = keys - found.keys()
        dialect = self._database.dialect
        ids = many_in_one({spec_id for spec_id, *_ in missing}, dialect)
        chosen = select(specs.c.id, specs.c.body).where(is_among(specs.c.id, "ids", dialect)).params(ids=ids)
        rows = await self._database.read(chosen) if missing else []
        bodies = {row[0]: row[1] for row in rows}
        found |= {key: _charged(spec_from_json(bodies[key[0]]), key) for key in missing if key[0] in bodies}
        for key, spec in found.items():
            self._specs[key] = spec
            self._specs.move_to_end(key)
        while len(self._specs) > _SPECS_KEPT:
            self._specs.popitem(last=False)
        return found


def _charged(spec: Spec, key: _SpecKey) -> Spec:
    """The spec with the owner and tenant of the workload's row."""
    _, owner, tenant = key
    return (
        spec
        if (clean(spec.owner), clean(spec.tenant)) == (owner, tenant)
        else replace(spec, owner=owner, tenant=tenant)
    )
