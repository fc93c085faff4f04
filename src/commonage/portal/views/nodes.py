"""Nodes page: hardware, measurements and faults of nodes and GPUs; admins drain, resume and remove nodes. Live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commonage.control.control import Control
from commonage.control.nodes.node_states import device_of
from commonage.control.windows import deadline_of
from commonage.domain.nodes import Node
from commonage.domain.principals import Principal
from commonage.messages import texts
from commonage.portal.auth import Visitor
from commonage.portal.site import Site, form_text
from commonage.portal.views import device_rows
from commonage.ports.metrics import Point

_WINDOW_S = 3600.0
_POINTS = 60
WIDTH, HEIGHT = 120, 28  # of a sparkline, in its own units


def routes(site: Site) -> list[Route]:
    """GET nodes and its live stream; POST nodes/NAME/drain with `drain` 1 (and `requeue`, `by`) or 0,
    nodes/NAME/resume with a `gpu`, and nodes/NAME/remove.
    """
    view = _Nodes(site)
    return [
        Route("/nodes", site.page(view.page), methods=["GET"]),
        Route("/live/nodes", site.page(view.live), methods=["GET"]),
        Route("/nodes/{name}/drain", site.page(view.drain), methods=["POST"]),
        Route("/nodes/{name}/resume", site.page(view.resume), methods=["POST"]),
        Route("/nodes/{name}/remove", site.page(view.remove), methods=["POST"]),
    ]


class _Nodes:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def page(self, request: Request, visitor: Visitor) -> Response:
        values = await gather(self._site.control, visitor.who)
        return self._site.render(request, visitor, "nodes.html", {"section": "nodes", **values})

    async def live(self, request: Request, visitor: Visitor) -> Response:
        gather_values = partial(gather, self._site.control, visitor.who)
        return self._site.live(request, visitor, "parts/nodes.html", ["nodes"], gather_values)

    async def drain(self, request: Request, visitor: Visitor) -> Response:
        nodes, name = self._site.control.nodes, request.path_params["name"]
        if form_text(await request.form(), "drain") == "1":
            node = await self._drained(request, visitor, name)
        else:
            node = await nodes.resume(visitor.who, name)
        return self._site.done(request, _drain_message(node), "nodes")

    async def _drained(self, request: Request, visitor: Visitor, name: str) -> Node:
        """`requeue` 1 requeues jobs now. `by` is the deadline for all workloads, in UTC unless it has a time zone."""
        form, control = await request.form(), self._site.control
        by = form_text(form, "by")
        deadline = deadline_of(by, UTC, control.clock.now()) if by else None
        requeue = form_text(form, "requeue") == "1"
        return await control.drains.drain(visitor.who, name, requeue=requeue, by=deadline)

    async def remove(self, request: Request, visitor: Visitor) -> Response:
        name, force = request.path_params["name"], form_text(await request.form(), "force") == "1"
        message = "; ".join(await self._site.control.drains.remove(visitor.who, name, force=force))
        return self._site.done(request, message, "nodes")

    async def resume(self, request: Request, visitor: Visitor) -> Response:
        gpu = form_text(await request.form(), "gpu")
        nodes, name = self._site.control.nodes, request.path_params["name"]
        device = device_of(await nodes.resume(visitor.who, name, gpu), gpu)
        if device.faults:
            message = f"GPU {device.label} of {name} is still faulty. {texts(device.faults)}"
            return self._site.done(request, message, "nodes", "bad")
        return self._site.done(request, f"GPU {device.label} of {name} is schedulable again", "nodes")


def _drain_message(node: Node) -> str:
    if not node.drain:
        return f"{node.name} is schedulable again"
    deadline = "; owners of running workloads are notified of the deadline" if node.leave_by is not None else ""
    return f"{node.name} is draining and takes no new workloads{deadline}"


async def gather(control: Control, who: Principal) -> dict[str, Any]:
    """Nodes, and for each GPU the last hour of its measurements as sparklines."""
    views = control.node_views.all()
    now = control.clock.now()
    lines: dict[str, dict[str, str]] = {}
    for view in views:
        for device in view.devices:
            found = await control.queries.metrics(
                who,
                f"device:{device.device.uuid}",
                metrics=("gpu_utilisation", "gpu_memory_mib"),
                since=now - _WINDOW_S,
                until=now + 1,
                points=_POINTS,
            )
            tops = {"gpu_utilisation": 1.0, "gpu_memory_mib": float(device.device.memory_mib)}
            lines[device.device.uuid] = _sparklines(found, tops, now)
    return {
        "node_rows": device_rows.node_rows(views, who),
        "lines": lines,
        "simulated": control.live_state.simulated_gpus,
        "environments": control.environments.views(who),
        "capabilities": control.node_views.capabilities(),
    }


def _sparklines(found: Mapping[str, Sequence[Point]], tops: Mapping[str, float], now: float) -> dict[str, str]:
    return {metric: sparkline(points, tops[metric], now) for metric, points in found.items() if len(points) > 1}


def sparkline(points: Sequence[Point], top: float, now: float) -> str:
    """The points of an SVG polyline: the last hour from left to right, 0 at the bottom, `top` at the top."""
    placed = []
    for point in points:
        x = WIDTH * (1 - (now - point.at) / _WINDOW_S)
        y = HEIGHT * (1 - min(1.0, max(0.0, point.mean / top if top else 0.0)))
        placed.append(f"{max(0.0, x):.1f},{1 + y * (HEIGHT - 2) / HEIGHT:.1f}")
    return " ".join(placed)
