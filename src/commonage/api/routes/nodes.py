"""Routes of nodes and node pools: list, drain, resume and remove nodes, and let machines join as nodes.

The join script is outside the API, because the machine that fetches it has no account.
"""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from commonage.api.fill import fill, reason
from commonage.api.routing import (
    BODY,
    QUERY,
    Guarded,
    access_for,
    asks,
    body_of,
    caller,
    context,
    need_lifetime,
    problems,
    read_json,
)
from commonage.control.access import Access
from commonage.control.nodes.node_states import reasons_for
from commonage.control.queries.node_views import DeviceView, NodeView
from commonage.control.queries.visibility import visible_nodes
from commonage.control.usage.attribution import unattributed
from commonage.domain.errors import NotFound
from commonage.domain.nodes import NodeKey, NodePoolView
from commonage.domain.permissions import Permission
from commonage.domain.time_zones import zone_of
from commonage.domain.windows import deadline_of
from commonage.ports.joining import Joining
from commonage.wire.hub import PORTAL_PATH
from commonage.wire.nodes import (
    DeviceOut,
    DoneOut,
    DrainQuery,
    JoiningQuery,
    JoinKitOut,
    JoinTokenIn,
    JoinTokenOut,
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


@router.get("/nodes", summary="List nodes", responses=problems())
@asks(Permission.SEE_TENANT)
async def list_nodes(request: Request) -> NodeList:
    """All nodes by name, with their GPUs and free resources. Lost nodes stay until they are removed."""
    access = access_for(request)
    views = visible_nodes(context(request).control.node_views.all(), access)
    return NodeList(items=[node_out(view, access) for view in views])


@router.post(
    "/nodes/{site}/{name}/drain",
    summary="Drain a node",
    responses=problems("node-not-found", "invalid-time", "invalid-input", *QUERY),
)
@asks(Permission.DRAIN_NODES)
async def drain(request: Request, site: str, name: str, query: Annotated[DrainQuery, Query()]) -> NodeOut:
    """Start no more workloads on the node. Running ones continue, unless you set `requeue` or a deadline. For admins.

    Owners of affected workloads get an event.
    """
    control, principal = context(request).control, caller(request)
    find_node(request, site, name)
    by = None if query.by is None else deadline_of(query.by, zone_of(query.time_zone), control.clock.now())
    await control.drains.drain(principal, NodeKey(site, name), requeue=query.requeue, by=by)
    return node_out(find_node(request, site, name), access_for(request))


@router.delete(
    "/nodes/{site}/{name}", summary="Remove a node", responses=problems("node-not-found", "node-in-use", *QUERY)
)
@asks(Permission.MANAGE_PLATFORM)
async def remove(request: Request, site: str, name: str, query: Annotated[RemoveQuery, Query()]) -> DoneOut:
    """Remove a node that is lost, or drained and empty. A node that reports again later is added again. For admins.

    Where nodes join, this also revokes its certificate, its place in the Swarm, and all join tokens. With `force`,
    workloads that still count as running on a lost node become lost.
    """
    control, principal = context(request).control, caller(request)
    return DoneOut(done=list(await control.drains.remove(principal, NodeKey(site, name), force=query.force)))


@router.post(
    "/nodes/{site}/{name}/resume",
    summary="Resume a node",
    responses=problems("node-not-found", "device-not-found", *QUERY),
)
@asks(Permission.DRAIN_NODES)
async def resume(request: Request, site: str, name: str, query: Annotated[ResumeQuery, Query()]) -> NodeOut:
    """Undo a drain, and clear remembered faults of the GPUs; a fault that persists is reported again. For admins.

    With `gpu`, clear only the faults of that GPU.
    """
    principal = caller(request)
    find_node(request, site, name)
    await context(request).control.nodes.resume(principal, NodeKey(site, name), query.gpu)
    return node_out(find_node(request, site, name), access_for(request))


@router.get("/node-pools", summary="List node pools", responses=problems())
@asks(Permission.SEE_PLATFORM)
async def list_node_pools(request: Request) -> NodePoolList:
    """Rented nodes, the next steps of each pool's policy with the reason, and the cost per hour. For admins."""
    control = context(request).control
    currency = control.settings.prices.currency
    views = control.node_pools.views(caller(request))
    return NodePoolList(items=[_node_pool_out(view, currency) for view in views])


def find_node(request: Request, site: str, name: str) -> NodeView:
    """The node. Raises NotFound, which lists the nodes that the caller may see."""
    views = visible_nodes(context(request).control.node_views.all(), access_for(request))
    for view in views:
        if (view.node.site, view.node.name) == (site, name):
            return view
    known = ", ".join(f"{view.node.site}/{view.node.name}" for view in views[:20]) or "none"
    raise NotFound(f"there is no node {site[:60]}/{name[:60]}; there are: {known}", code="node-not-found")


def node_out(view: NodeView, access: Access) -> NodeOut:
    return fill(
        NodeOut,
        view,
        view.node,
        view.node.report,
        reasons=[reason(one) for one in reasons_for(view.node, access)],
        notes=[reason(note) for note in view.notes],
        devices=[device_out(one) for one in view.devices],
        labels=dict(view.node.report.labels),
    )


def device_out(view: DeviceView) -> DeviceOut:
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


@router.post(
    "/join-tokens",
    status_code=201,
    summary="Create a join token",
    responses=problems(*BODY, "conflict", "site-not-found", "unavailable", "engine-failure"),
    openapi_extra=body_of(JoinTokenIn, {"for_s": 3600}, required=False),
)
@asks(Permission.MANAGE_PLATFORM)
async def make(request: Request) -> JoinTokenOut:
    """Create a token with which any number of machines may join as nodes until it expires. For admins.

    It expires no later than the token of the request.
    """
    principal, admission = caller(request), context(request).control.node_admission
    body = await read_json(request, JoinTokenIn, optional=True)
    joining = admission.at(principal, body.site)
    await need_lifetime(request, body.for_s)
    made = await admission.token(principal, body.site, body.for_s)
    user_data = await joining.template(made.token, body.options) if body.cloud_init else None
    return fill(JoinTokenOut, made, script_sha256=(await joining.kit()).script_sha256, user_data=user_data)


@router.delete(
    "/join-tokens",
    summary="Revoke all join tokens",
    responses=problems("conflict", "site-not-found", "unavailable", "engine-failure", *QUERY),
)
@asks(Permission.MANAGE_PLATFORM)
async def revoke(request: Request, query: Annotated[JoiningQuery, Query()]) -> DoneOut:
    """Also rotate the Swarm's own worker token. Nodes that have joined stay. For admins."""
    principal = caller(request)
    return DoneOut(done=list(await context(request).control.node_admission.revoke(principal, query.site)))


@router.get(
    "/join-kit",
    summary="Get the files for a join over SSH",
    responses=problems("conflict", "site-not-found", "unavailable", "engine-failure", *QUERY),
)
@asks(Permission.MANAGE_PLATFORM)
async def kit(request: Request, query: Annotated[JoiningQuery, Query()]) -> JoinKitOut:
    """The join script and the packed program, which `commonage node join` copies to the machine. For admins."""
    principal = caller(request)
    found = await context(request).control.node_admission.at(principal, query.site).kit()
    packed = base64.b64encode(found.bundle).decode()
    return fill(JoinKitOut, found, bundle=packed)


def script_route(joining: Joining) -> Route:
    """`GET /services/commonage/join`: the join script, without authentication. It contains no secret."""

    async def script(_: Request) -> Response:
        return PlainTextResponse((await joining.kit()).script, headers={"Cache-Control": "no-cache"})

    return Route(f"{PORTAL_PATH}join", script, methods=["GET"])
