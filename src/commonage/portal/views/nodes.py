"""Nodes and images pages: hardware, measurements, faults and images; admins drain, resume and remove nodes. Live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commonage.control.access import access_of
from commonage.control.control import Control
from commonage.control.nodes.node_states import device_of
from commonage.control.queries.visibility import visible_nodes
from commonage.domain.images import Image, environments_of
from commonage.domain.nodes import DeviceKey, Node, NodeKey
from commonage.domain.windows import deadline_of
from commonage.domain.workloads import Kind
from commonage.messages import texts
from commonage.portal.auth import Visitor
from commonage.portal.site import Site, form_text
from commonage.portal.views import device_rows
from commonage.ports.metrics import Point

_WINDOW_S = 3600.0
_POINTS = 60
WIDTH, HEIGHT = 120, 28  # of a sparkline, in its own units


def routes(site: Site) -> list[Route]:
    """GET nodes and images, and their live streams.

    POST nodes/SITE/NAME/drain with `drain` 1 (and `requeue`, `by`) or 0, nodes/SITE/NAME/resume with a `gpu`,
    nodes/SITE/NAME/remove,
    images/TENANT/NAME/remove and images/TENANT/NAME/prepull.
    """
    control = site.control

    async def drain(request: Request, visitor: Visitor) -> Response:
        """`requeue` 1 requeues jobs now. `by` is the deadline for all workloads, in UTC unless it has a time zone."""
        form, key = await request.form(), _node_key(request)
        if form_text(form, "drain") == "1":
            by, requeue = form_text(form, "by"), form_text(form, "requeue") == "1"
            deadline = deadline_of(by, UTC, control.clock.now()) if by else None
            node = await control.drains.drain(visitor.principal, key, requeue=requeue, by=deadline)
        else:
            node = await control.nodes.resume(visitor.principal, key)
        return site.done(request, _drain_message(node), "nodes")

    async def remove_node(request: Request, visitor: Visitor) -> Response:
        key, force = _node_key(request), form_text(await request.form(), "force") == "1"
        message = "; ".join(await control.drains.remove(visitor.principal, key, force=force))
        return site.done(request, message, "nodes")

    async def resume(request: Request, visitor: Visitor) -> Response:
        gpu, key = form_text(await request.form(), "gpu"), _node_key(request)
        device = device_of(await control.nodes.resume(visitor.principal, key, gpu), gpu)
        if device.faults:
            message = f"GPU {device.label} of {key.label} is still faulty. {texts(device.faults)}"
            return site.done(request, message, "nodes", "bad")
        return site.done(request, f"GPU {device.label} of {key.label} is schedulable again", "nodes")

    async def remove_image(request: Request, visitor: Visitor) -> Response:
        view, waiting = await control.images.remove(visitor.principal, _image_name(request))
        held = f"; {len(waiting)} queued workloads are held" if waiting else ""
        return site.done(request, f"Removed {view.image.name}{held}", "images")

    async def prepull(request: Request, visitor: Visitor) -> Response:
        view = await control.images.prepull(visitor.principal, _image_name(request), ())
        return site.done(request, f"Pulling {view.image.name} on {len(view.nodes)} nodes", "images")

    return [
        *site.live_page("nodes", "nodes", ["nodes"], partial(_gather_nodes, control)),
        *site.live_page("images", "nodes", ["images"], partial(_gather_images, control)),
        Route("/nodes/{site}/{name}/drain", site.page(drain), methods=["POST"]),
        Route("/nodes/{site}/{name}/resume", site.page(resume), methods=["POST"]),
        Route("/nodes/{site}/{name}/remove", site.page(remove_node), methods=["POST"]),
        Route("/images/{scope}/{name}/remove", site.page(remove_image), methods=["POST"]),
        Route("/images/{scope}/{name}/prepull", site.page(prepull), methods=["POST"]),
    ]


def _drain_message(node: Node) -> str:
    if not node.drain:
        return f"{node.key.label} is schedulable again"
    deadline = "; owners of running workloads are notified of the deadline" if node.leave_by is not None else ""
    return f"{node.key.label} is draining and takes no new workloads{deadline}"


def _node_key(request: Request) -> NodeKey:
    return NodeKey(request.path_params["site"], request.path_params["name"])


def _image_name(request: Request) -> str:
    return f"{request.path_params['scope']}/{request.path_params['name']}"


async def _gather_nodes(control: Control, _: Request, visitor: Visitor) -> dict[str, Any]:
    """Nodes, and for each GPU the last hour of its measurements as sparklines."""
    access = access_of(visitor.principal, control.settings)
    views = visible_nodes(control.node_views.all(), access)
    now = control.clock.now()
    lines: dict[DeviceKey, dict[str, str]] = {}
    for view in views:
        for device in view.devices:
            key = view.node.device_key(device.device)
            found = await control.queries.metrics(
                visitor.principal,
                f"device:{key}",
                metrics=("gpu_utilisation", "gpu_memory_mib"),
                since=now - _WINDOW_S,
                until=now + 1,
                points=_POINTS,
            )
            tops = {"gpu_utilisation": 1.0, "gpu_memory_mib": float(device.device.memory_mib)}
            lines[key] = _sparklines(found, tops, now)
    return {
        "node_rows": device_rows.node_rows(views, access),
        "lines": lines,
        "simulated": control.live_state.simulated_gpus,
        "environments": control.environments.views(visitor.principal),
        "capabilities": control.node_views.capabilities(access),
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


async def _gather_images(control: Control, _: Request, visitor: Visitor) -> dict[str, Any]:
    """The visible images, each with its environments: (name, title, kind to launch)."""
    views = control.images.visible(visitor.principal)
    return {"images": [{"view": view, "environments": _environments(view.image)} for view in views]}


def _environments(image: Image) -> list[tuple[str, str, Kind]]:
    return [
        (environment.name, environment.title, Kind.SESSION if Kind.SESSION in environment.kinds else Kind.JOB)
        for environment in environments_of(image)
    ]
