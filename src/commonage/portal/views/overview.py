"""Overview page: allocations on nodes, waiting workloads with their reasons, recent events. Live."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commonage.control.control import Control
from commonage.control.queries.workloads import notices
from commonage.domain.principals import Principal
from commonage.domain.workloads import State
from commonage.portal.auth import Visitor
from commonage.portal.site import Site
from commonage.portal.views import device_rows
from commonage.portal.views.recent_events import recent_events, titles
from commonage.ports.store import Filter

_WAITING = 8
_ACTIVE = 8
_EVENTS = 10
_LIVE = ("alerts", "summary", "totals", "node_rows", "active", "waiting", "events")


def routes(site: Site) -> list[Route]:
    """GET / and its live stream."""
    view = _Overview(site)
    return [
        Route("/", site.page(view.page), methods=["GET"]),
        Route("/live/overview", site.page(view.live), methods=["GET"]),
    ]


class _Overview:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def page(self, request: Request, visitor: Visitor) -> Response:
        values = await gather(self._site.control, visitor.who)
        return self._site.render(request, visitor, "overview.html", {"section": "overview", **values})

    async def live(self, request: Request, visitor: Visitor) -> Response:
        gather_values = partial(gather, self._site.control, visitor.who)
        return self._site.live(request, visitor, "parts/overview.html", _LIVE, gather_values)


async def gather(control: Control, who: Principal) -> dict[str, Any]:
    """All values of the page, as `who` may see them."""
    views = control.node_views.all()
    waiting = await control.queries.workloads(who, Filter(states=(State.QUEUED, State.HELD)), limit=_WAITING)
    active = await control.queries.workloads(who, Filter(states=(State.RUNNING, State.STARTING)), limit=_ACTIVE)
    details = {one.id: control.queries.details(one) for one in waiting.items}
    counts = control.queries.live_counts()
    events = await recent_events(control, who, _EVENTS)
    return {
        "notices": await notices(control.queries, who),
        "home_use": control.homes.of(who),
        "node_rows": device_rows.node_rows(views, who),
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
        "titles": await titles(control, who, (event.workload_id for event in events if event.workload_id)),
    }
