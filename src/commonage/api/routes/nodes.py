"""Routes of nodes and node pools: show, drain, resume and remove nodes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill, reason
from commonage.api.routing import QUERY, Guarded, answer, caller, context, problems
from commonage.control.nodes.node_states import reasons_for
from commonage.control.queries.node_views import DeviceView, NodeView
from commonage.control.usage.attribution import unattributed
from commonage.control.windows import deadline_of, zone_of
from commonage.domain.errors import NotFound
from commonage.domain.nodes import NodePoolView
from commonage.domain.principals import Principal, Scope
from commonage.wire.nodes import (
    DeviceOut,
    DoneOut,
    DrainQuery,
    NodeList,
    NodeOut,
    NodePoolList,
    NodePoolOut,
    PeerOut,
    PoolNodeOut,
    RemoveQuery,
    ResumeQuery,
    UnavailableOut,
)

router = APIRouter(route_class=Guarded, tags=["nodes"])


@router.get("/nodes", summary="List nodes", response_model=NodeList, responses=problems())
async def list_nodes(request: Request) -> Response:
    """All nodes by name, with their GPUs and free resources. Lost nodes stay until they are removed."""
    principal = caller(request)
    principal.need(Scope.READ)
    views = context(request).control.node_views.all()
    return answer(NodeList(items=[node_out(view, principal) for view in views]))


@router.post(
    "/nodes/{site}/{name}/drain",
    summary="Drain a node",
    response_model=NodeOut,
    responses=problems("node-not-found", "invalid-time", "invalid-input", *QUERY),
)
async def drain(request: Request, site: str, name: str, query: Annotated[DrainQuery, Query()]) -> Response:
    """Start no more workloads on the node. Running ones continue, unless you set `requeue` or a deadline. For admins.

    Owners of affected workloads get an event.
    """
    control, principal = context(request).control, caller(request)
    principal.need(Scope.ADMIN)
    find_node(request, site, name)
    by = None if query.by is None else deadline_of(query.by, zone_of(query.time_zone), control.clock.now())
    await control.drains.drain(principal, name, requeue=query.requeue, by=by)
    return answer(node_out(find_node(request, site, name), principal))


@router.delete(
    "/nodes/{site}/{name}",
    summary="Remove a node",
    response_model=DoneOut,
    responses=problems("node-not-found", "node-in-use", *QUERY),
)
async def remove(request: Request, site: str, name: str, query: Annotated[RemoveQuery, Query()]) -> Response:
    """Remove a node that is lost, or drained and empty. A node that reports again later is added again. For admins.

    Where nodes join, this also revokes its certificate, its place in the Swarm, and all join tokens. With `force`,
    workloads that still count as running on a lost node become lost.
    """
    control, principal = context(request).control, caller(request)
    principal.need(Scope.ADMIN)
    if name in control.live_state.nodes:  # a node that is no longer listed may still have a certificate
        find_node(request, site, name)
    return answer(DoneOut(done=list(await control.drains.remove(principal, name, force=query.force))))


@router.post(
    "/nodes/{site}/{name}/resume",
    summary="Resume a node",
    response_model=NodeOut,
    responses=problems("node-not-found", "device-not-found", *QUERY),
)
async def resume(request: Request, site: str, name: str, query: Annotated[ResumeQuery, Query()]) -> Response:
    """Undo a drain, and clear remembered faults of the GPUs; a fault that persists is reported again. For admins.

    With `gpu`, clear only the faults of that GPU.
    """
    principal = caller(request)
    principal.need(Scope.ADMIN)
    find_node(request, site, name)
    await context(request).control.nodes.resume(principal, name, query.gpu)
    return answer(node_out(find_node(request, site, name), principal))


@router.get("/node-pools", summary="List node pools", response_model=NodePoolList, responses=problems())
async def list_node_pools(request: Request) -> Response:
    """Rented nodes, the next steps of each pool's policy with the reason, and the cost per hour. For admins."""
    control = context(request).control
    currency = control.settings.prices.currency
    views = control.node_pools.views(caller(request))
    return answer(NodePoolList(items=[_node_pool_out(view, currency) for view in views]))


def find_node(request: Request, site: str, name: str) -> NodeView:
    """The node. Raises NotFound, which lists the nodes."""
    views = context(request).control.node_views.all()
    for view in views:
        if (view.node.site, view.node.name) == (site, name):
            return view
    known = ", ".join(f"{view.node.site}/{view.node.name}" for view in views[:20]) or "none"
    raise NotFound(f"there is no node {site[:60]}/{name[:60]}; there are: {known}", code="node-not-found")


def node_out(view: NodeView, principal: Principal) -> NodeOut:
    """The node and its free resources, as the principal may see them."""
    return fill(
        NodeOut,
        view,
        view.node,
        view.node.report,
        reasons=[reason(one) for one in reasons_for(view.node, principal)],
        devices=[device_out(one) for one in view.devices],
        labels=dict(view.node.report.labels),
    )


def device_out(view: DeviceView) -> DeviceOut:
    """The GPU with its last sample and its faults."""
    device = view.device
    notices = [*device.notices, *([unattributed(device, view.unattributed)] if view.unattributed else [])]
    return fill(
        DeviceOut,
        view,
        device,
        unavailable=[UnavailableOut(isolation=level.value, reason=reason(why)) for level, why in device.unavailable],
        faults=[reason(fault) for fault in device.faults],
        notices=[reason(notice) for notice in notices],
        peers=[PeerOut(uuid=uuid, links=links) for uuid, links in device.peers],
        measured=view.sample,
    )


def _node_pool_out(view: NodePoolView, currency: str) -> NodePoolOut:
    return fill(
        NodePoolOut,
        view,
        view.policy,
        view.policy.kind,
        min=view.policy.least,
        max=view.policy.most,
        cpus=view.policy.kind.cpus_milli / 1000,
        nodes=[PoolNodeOut(name=name, state=state) for name, state in view.machines],
        reason=reason(view.why),
        currency=currency,
    )
