"""Route of usage: who held how much for how long."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import encode
from commonage.api.routing import Guarded, answer, caller, context, problems
from commonage.api.spans import MONTH_S, span_of
from commonage.wire.platform import UsageOut
from commonage.wire.queries import UsageQuery

router = APIRouter(route_class=Guarded, tags=["usage"])


@router.get(
    "/usage",
    summary="What was used, and what it costs",
    response_model=UsageOut,
    responses=problems("invalid-parameter", "unknown-field"),
)
async def usage(request: Request, query: Annotated[UsageQuery, Query()]) -> Response:
    """Your own, for admins everybody's; of the last 30 days if not said otherwise. Costs need prices to be set."""
    control, who = context(request).control, caller(request)
    since, until = span_of(query, control.clock.now(), default_s=MONTH_S)
    found = await control.look.usage(who, since=since, until=until, by=query.by)
    prices = control.settings.prices
    rows = encode.usage(found, prices)
    return answer(UsageOut(since=since, until=until, by=query.by, currency=prices.currency, items=rows))
