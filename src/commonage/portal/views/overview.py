"""Overview page: allocations on nodes, waiting workloads with their reasons, recent events. Live."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from commonage.control.access import access_of
from commonage.control.control import Control
from commonage.control.queries.visibility import visible_nodes
from commonage.control.queries.workloads import notices
from commonage.domain.errors import NotFound
from commonage.domain.principals import Principal
from commonage.domain.workloads import Event, State
from commonage.portal.auth import Visitor
from commonage.portal.labels import title_of
from commonage.portal.site import Site
from commonage.portal.views import device_rows
from commonage.ports.store import Filter

_WAITING = 8
_ACTIVE = 8
_EVENTS = 10
_LIVE = ("alerts", "summary", "totals", "node_rows", "active", "waiting", "events")


def routes(site: Site) -> list[Route]:
    return site.live_page("overview", "overview", _LIVE, partial(_gather, site.control), path="/")


async def _gather(control: Control, _: Request, visitor: Visitor) -> dict[str, Any]:
    principal = visitor.principal
    access = access_of(visitor.principal, control.settings)
    views = visible_nodes(control.node_views.all(), access)
    waiting = await control.queries.workloads(principal, Filter(states=(State.QUEUED, State.HELD)), limit=_WAITING)
    active = await control.queries.workloads(principal, Filter(states=(State.RUNNING, State.STARTING)), limit=_ACTIVE)
    details = {one.id: control.queries.details(one) for one in waiting.items}
    counts = control.queries.live_counts()
    events = await _recent_events(control, principal, _EVENTS)
    return {
        "notices": await notices(control.queries, principal),
        "home_use": control.homes.of(principal),
        "quotas": [one for one in control.quota_uses.visible(principal) if one.is_near],
        "node_rows": device_rows.node_rows(views, access),
        "totals": device_rows.totals(views),
        "simulated": control.live_state.simulated_gpus,
        # The next to start comes first.
        "waiting": sorted(waiting.items, key=lambda one: (details[one.id].position or 1 << 30, one.id)),
        "more_waiting": waiting.next_cursor is not None,
        "active": active.items,
        "more_active": active.next_cursor is not None,
        "details": details,
        "running": counts.get(State.RUNNING, 0),
        "starting": counts.get(State.STARTING, 0),
        "queued": control.queries.queue_length(),
        "held": counts.get(State.HELD, 0),
        "events": events,
        "titles": await titles(control, principal, (event.workload_id for event in events if event.workload_id)),
    }


_STEPS = (200, 2_000, 20_000)
_PAGE = 500


async def _recent_events(control: Control, principal: Principal, want: int) -> Sequence[Event]:
    """At most `want` visible events from the last twenty thousand, newest first.

    The store returns events from a number on, so this looks back in growing steps.
    """
    last = await control.store.last_event_seq()
    found: list[Event] = []
    for step in _STEPS:
        found = await _since(control, principal, max(0, last - step))
        if len(found) >= want or step >= last:
            break
    return found[-want:][::-1]


async def titles(control: Control, principal: Principal, workload_ids: Iterable[str]) -> dict[str, str]:
    """The titles of these workloads; those that are gone or hidden from `principal` are left out."""
    found = {}
    for workload_id in set(workload_ids):
        try:
            found[workload_id] = title_of(await control.queries.workload(principal, workload_id))
        except NotFound:
            continue
    return found


async def _since(control: Control, principal: Principal, after: int) -> list[Event]:
    found: list[Event] = []
    while True:
        page = await control.queries.events(principal, after=after, limit=_PAGE)
        found += page
        if len(page) < _PAGE:
            return found
        after = page[-1].seq
