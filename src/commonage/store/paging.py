"""Lists of workloads: from a filter to statements that an index answers. Called by `workloads`.

Newest first by id, a page at a time. With a filter each state is walked along the index (column, state, id) and the
walks are merged: the database need not sort, or estimate the number of matches.
"""

from __future__ import annotations

from sqlalchemy import Column, ColumnElement, Select, Text, false, func, literal, or_, select, union_all
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.selectable import CompoundSelect

from commonage.domain.codec import clean
from commonage.domain.workloads import State
from commonage.ports.store import Filter, Visible
from commonage.store.tables import workloads


def conditions_of(which: Filter, dialect: Dialect, *, with_states: bool) -> list[ColumnElement[bool]]:
    """The conditions of `which` on a row; on its state only with `with_states`."""
    columns = workloads.c
    equal = {
        columns.owner: which.owner,
        columns.tenant: which.tenant,
        columns.site: which.site,
        columns.node: which.node,
        columns.array_id: which.array_id,
        columns.cron_job: which.cron_job,
        columns.environment: which.environment,
    }
    terms: list[ColumnElement[bool]] = [column == clean(value) for column, value in equal.items() if value is not None]
    if which.kinds is not None:
        terms.append(columns.kind.in_(sorted({kind.value for kind in which.kinds})))
    if with_states and which.states is not None:
        terms.append(columns.state.in_(sorted({state.value for state in which.states})))
    if which.submitted_after is not None:
        terms.append(columns.submitted_at > which.submitted_after)
    if which.text is not None:
        text = clean(which.text).casefold()
        terms.append(_contains(columns.name_folded, text, dialect) | (func.substr(columns.id, 1, len(text)) == text))
    if which.visible is not None:
        terms.append(is_visible(columns.owner, columns.tenant, which.visible))
    return terms


def is_visible(owner: ColumnElement[str], tenant: ColumnElement[str], visible: Visible) -> ColumnElement[bool]:
    """The condition on a row that has an owner and a tenant."""
    own = owner == clean(visible.owner)
    return or_(own, tenant.in_(sorted(map(clean, visible.tenants)))) if visible.tenants else own


def newest_first(
    which: Filter, limit: int, before: str | None, dialect: Dialect
) -> Select[tuple[str]] | CompoundSelect[tuple[str]]:
    """The newest `limit` ids that match `which`, older than `before`."""
    demands = conditions_of(which, dialect, with_states=False)
    if before is not None:
        demands.append(workloads.c.id < before)
    lanes = _lanes(which)
    if lanes is None:
        return _walk(limit, *conditions_of(which, dialect, with_states=True), *demands)
    if len(lanes) < 2:
        return _walk(limit, *demands, *(lanes[0] if lanes else [false()]))
    # SQLite takes an ordered select into a union only inside another select.
    walks = [select(_walk(limit, *demands, *lane).subquery().c.id) for lane in lanes]
    merged = union_all(*walks).subquery()
    return select(merged.c.id).order_by(merged.c.id.desc()).limit(limit)


def _walk(limit: int, *demands: ColumnElement[bool]) -> Select[tuple[str]]:
    return select(workloads.c.id).where(*demands).order_by(workloads.c.id.desc()).limit(limit)


def _lanes(which: Filter) -> list[list[ColumnElement[bool]]] | None:
    """The index walks to merge; None if a single walk over ids, a site, a node, an array or a cron job is best."""
    if any(value is not None for value in (which.site, which.node, which.array_id, which.cron_job)):
        return None
    states = sorted(State if which.states is None else set(which.states))
    by_state = [[workloads.c.state == state.value] for state in states]
    if any(value is not None for value in (which.owner, which.tenant, which.environment)):
        return by_state
    if which.kinds is not None:
        kinds = sorted(set(which.kinds))
        return [[workloads.c.kind == kind.value, *lane] for kind in kinds for lane in by_state]
    return None if which.states is None else by_state


def _contains(column: Column[str], part: str, dialect: Dialect) -> ColumnElement[bool]:
    """True if `column` contains `part`, character for character: no pattern, so nothing to escape."""
    find = func.strpos if dialect.name == "postgresql" else func.instr
    return find(column, literal(part, Text)) > 0
