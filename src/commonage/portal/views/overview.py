"""The front page: use of the nodes, waiting workloads with their reasons, recent events. Live."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commonage.control.control import Control
from commonage.control.queries.notices import notices
from commonage.domain.principals import Principal
from commonage.domain.workloads import State
from commonage.portal import live
from commonage.portal.auth import Visitor
from commonage.portal.site import Site
from commonage.portal.views import device_rows
from commonage.portal.views.recent_events import recent_events, titles
from commonage.ports.store import Filter

_WAITING = 8
_ACTIVE = 8
_EVENTS = 10
_PARTS = "parts/overview.html"
_LIVE = ("told", "spoken", "totals", "node_rows", "active", "waiting", "events")


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
        control = self._site.control
        draw_part = self._site.parts(visitor, _PARTS)

        async def draw() -> live.Parts:
            values = await gather(control, visitor.who)
            return {name: draw_part(name, values) for name in _LIVE}

        changes = control.look.follow(visitor.who)
        return self._site.stream(request, visitor, live.updates(control.clock, changes, live.only_changed(draw)))


async def gather(control: Control, who: Principal) -> dict[str, Any]:
    """All values of the page, as `who` may see them."""
    views = control.node_pool.nodes()
    waiting = await control.look.workloads(who, Filter(states=(State.QUEUED, State.HELD)), limit=_WAITING)
    active = await control.look.workloads(who, Filter(states=(State.RUNNING, State.STARTING)), limit=_ACTIVE)
    standings = {one.id: control.look.standing(one) for one in waiting.items}
    counts = control.look.live_counts()
    events = await recent_events(control, who, _EVENTS)
    return {
        "notices": await notices(control.look, who),
        "home_use": control.homes.of(who),
        "node_rows": device_rows.node_rows(views, who),
        "totals": device_rows.totals(views),
        "simulated": control.node_pool.simulated_gpus,
        # The next to start comes first.
        "waiting": sorted(waiting.items, key=lambda one: (standings[one.id].position or 1 << 30, one.id)),
        "more_waiting": waiting.next_cursor is not None,
        "active": active.items,
        "more_active": active.next_cursor is not None,
        "standings": standings,
        "running": counts.get(State.RUNNING, 0),
        "starting": counts.get(State.STARTING, 0),
        "queued": control.look.queue_length(),
        "held": counts.get(State.HELD, 0),
        "events": events,
        "titles": await titles(control, who, (event.workload_id for event in events if event.workload_id)),
    }
