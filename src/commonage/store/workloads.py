"""Reads workloads: their specs, their progress, and their secrets while they are needed. Called by `sql_store`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Select, func, select

from commonage.domain.codec import clean
from commonage.domain.errors import NotFound
from commonage.domain.workloads import Spec, State, Workload
from commonage.ports.store import Filter, Page
from commonage.store.cursors import cursor_after, read_cursor
from commonage.store.database import Database
from commonage.store.paging import conditions_of, newest_first
from commonage.store.rows import ATTEMPT_COLUMNS, WORKLOAD, attempt_from_row, spec_from_json
from commonage.store.tables import attempts, secrets, specs, workloads

_LIVE: Final = [state.value for state in State if not state.is_terminal]
_SPECS_KEPT: Final = 2048
_OWN_BEGIN: Final = 5
_OWN_END: Final = _OWN_BEGIN + len(WORKLOAD.columns)

_SpecKey = tuple[str, str, str]  # spec id, owner, tenant

_WHOLE = (
    select(
        workloads.c.spec_id,
        specs.c.body.label("spec"),
        secrets.c.body.label("secrets"),
        workloads.c.owner,
        workloads.c.tenant,
        *(workloads.c[name] for name in WORKLOAD.columns),
        *(attempts.c[name].label(f"attempt_{name}") for name in ATTEMPT_COLUMNS),
    )
    .join_from(workloads, specs, workloads.c.spec_id == specs.c.id)
    .outerjoin(secrets, secrets.c.workload_id == workloads.c.id)
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
        with_secrets: dict[tuple[_SpecKey, str], Spec] = {}
        return [self._decode(row, with_secrets) for row in rows]

    def _decode(self, row: Sequence[Any], with_secrets: dict[tuple[_SpecKey, str], Spec]) -> Workload:
        spec_id, body, secret, *charged = row[:_OWN_BEGIN]
        key: _SpecKey = (spec_id, *charged)
        if secret is None:
            spec = self._spec(key, body)
        else:  # members of an array share one, also after a restart
            spec = with_secrets.get((key, secret)) or _charged(spec_from_json(body, secret), key)
            with_secrets[key, secret] = spec
        attempt = row[_OWN_END:]
        newest = attempt_from_row(attempt) if attempt[0] is not None else None
        return WORKLOAD.value(row[_OWN_BEGIN:_OWN_END], spec=spec, attempt=newest)

    def _spec(self, key: _SpecKey, body: str) -> Spec:
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = _charged(spec_from_json(body), key)
            if len(self._specs) > _SPECS_KEPT:
                self._specs.popitem(last=False)
        else:
            self._specs.move_to_end(key)
        return spec


def _charged(spec: Spec, key: _SpecKey) -> Spec:
    """The spec with the owner and tenant of the workload's row."""
    _, owner, tenant = key
    return (
        spec
        if (clean(spec.owner), clean(spec.tenant)) == (owner, tenant)
        else replace(spec, owner=owner, tenant=tenant)
    )
