"""Routes of clusters: nodes that are rented while work waits for them. Their policies stand in the settings."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import encode_reasons
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.domain.node_pools import NodePoolView
from commonage.wire.node_pools import NodePoolList, NodePoolOut, PoolNodeOut

router = APIRouter(route_class=Guarded, tags=["nodes"])


@router.get("/node-pools", summary="Nodes that are rented, and what they cost", response_model=NodePoolList,
            responses=problems())  # fmt: skip
async def list_node_pools(request: Request) -> Response:
    """What there is, what its policy does next and why, and the cost an hour before and after. For admins."""
    control = context(request).control
    currency = control.settings.prices.currency
    return answer(NodePoolList(items=[_node_pool(one, currency) for one in control.node_pools.views(caller(request))]))


def _node_pool(one: NodePoolView, currency: str) -> NodePoolOut:
    policy, kind = one.policy, one.policy.kind
    return NodePoolOut(
        name=policy.name,
        provider=one.provider,
        min=policy.least,
        max=policy.most,
        idle_s=policy.idle_s,
        cpus=kind.cpus_milli / 1000,
        memory_mib=kind.memory_mib,
        gpus=kind.gpus,
        gpu_model=kind.gpu_model,
        gpu_memory_mib=kind.gpu_memory_mib,
        machines=[PoolNodeOut(name=name, state=state) for name, state in one.machines],
        adding=one.adding,
        removing=list(one.removing),
        reason=encode_reasons.reason(one.why),
        price_per_h=kind.price_per_h,
        cost_per_h=one.cost_per_h,
        cost_after_per_h=one.cost_after_per_h,
        currency=currency,
        last_error=one.last_error,
    )
