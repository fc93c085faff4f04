"""Routes of nodes: the nodes, what they measured, and letting them take work or not."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import encode
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.api.spans import span_of
from commonage.control.node_pool import NodeView
from commonage.control.reservations.windows import deadline_of, zone_of
from commonage.domain.errors import NotFound
from commonage.domain.principals import Scope
from commonage.wire.joining import DoneOut
from commonage.wire.platform import NodeList, NodeOut
from commonage.wire.queries import DrainQuery, MetricsQuery, RemoveQuery, ResumeQuery
from commonage.wire.workloads import MetricsOut

router = APIRouter(route_class=Guarded, tags=["nodes"])

_OF_NODES = ("allocated_cpu_cores", "allocated_memory_mib", "disk_free_mib")
_OF_DEVICES = ("gpu_memory_mib", "gpu_utilisation", "power_w", "temperature_c")


@router.get("/nodes", summary="The nodes, their GPUs, and what is free", response_model=NodeList, responses=problems())
async def list_nodes(request: Request) -> Response:
    """Every node ever seen and not removed, by name."""
    who = caller(request)
    who.need(Scope.READ)
    return answer(NodeList(items=[encode.node(view, who) for view in context(request).control.node_pool.nodes()]))


@router.get(
    "/nodes/{site}/{name}/metrics",
    summary="What a node and its GPUs measured",
    response_model=MetricsOut,
    responses=problems("node-not-found", "invalid-parameter", "unknown-field"),
)
async def metrics(request: Request, site: str, name: str, query: Annotated[MetricsQuery, Query()]) -> Response:
    """Of the last hour if not said otherwise. Subjects are `node:NAME` and `device:UUID`."""
    control, who = context(request).control, caller(request)
    who.need(Scope.READ)
    view = _view(request, site, name)
    since, until = span_of(query, control.clock.now())
    subjects = {f"node:{name}": _OF_NODES, **{f"device:{one.device.uuid}": _OF_DEVICES for one in view.devices}}
    found = []
    for subject, names in subjects.items():
        points = await control.look.metrics(who, subject, metrics=names, since=since, until=until, points=query.points)
        found += encode.series(subject, points)
    return answer(MetricsOut(since=since, until=until, series=found))


@router.post(
    "/nodes/{site}/{name}/drain",
    summary="Let a node take no more work",
    response_model=NodeOut,
    responses=problems("node-not-found", "invalid-time", "invalid-input", "invalid-parameter", "unknown-field"),
)
async def drain(request: Request, site: str, name: str, query: Annotated[DrainQuery, Query()]) -> Response:
    """Nothing new is placed. What runs there goes on, unless `requeue` or a deadline says otherwise. For admins.

    Whoever is concerned is told by an event of the workload.
    """
    control, who = context(request).control, caller(request)
    who.need(Scope.ADMIN)
    _view(request, site, name)
    by = None if query.by is None else deadline_of(query.by, zone_of(query.time_zone), control.clock.now())
    await control.drains.drain(who, name, requeue=query.requeue, by=by)
    return answer(encode.node(_view(request, site, name), who))


@router.delete(
    "/nodes/{site}/{name}",
    summary="Know a node no more",
    response_model=DoneOut,
    responses=problems("node-not-found", "node-in-use", "invalid-parameter", "unknown-field"),
)
async def remove(request: Request, site: str, name: str, query: Annotated[RemoveQuery, Query()]) -> Response:
    """One that is not ready, and on which nothing runs; the problem says what does. One that reports later is back.

    Where nodes join, all that let it in is taken back: its certificate, its place in the Swarm, and all join tokens.
    With `force` what is still counted as running on a lost node counts as lost. For admins.
    """
    control, who = context(request).control, caller(request)
    who.need(Scope.ADMIN)
    if name in control.live_state.nodes:  # one that is known no more may still be let in
        _view(request, site, name)
    return answer(DoneOut(done=list(await control.drains.remove(who, name, force=query.force))))


@router.post(
    "/nodes/{site}/{name}/resume",
    summary="Let a node take work again",
    response_model=NodeOut,
    responses=problems("node-not-found", "device-not-found", "invalid-parameter", "unknown-field"),
)
async def resume(request: Request, site: str, name: str, query: Annotated[ResumeQuery, Query()]) -> Response:
    """The opposite of drain; faults of its GPUs that are only remembered are forgotten. For admins.

    With `gpu` only the faults of that one are forgotten. What is still wrong shows again at once.
    """
    who = caller(request)
    who.need(Scope.ADMIN)
    _view(request, site, name)
    await context(request).control.node_pool.resume(who, name, query.gpu)
    return answer(encode.node(_view(request, site, name), who))


def _view(request: Request, site: str, name: str) -> NodeView:
    views = context(request).control.node_pool.nodes()
    for view in views:
        if (view.node.site, view.node.name) == (site, name):
            return view
    there = ", ".join(f"{view.node.site}/{view.node.name}" for view in views[:20]) or "none"
    raise NotFound(f"there is no node {site[:60]}/{name[:60]}; there are: {there}", code="node-not-found")
