"""Routes of usage: allocated resources times hours, and usage reports of workloads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill
from commonage.api.routes.metrics import time_span
from commonage.api.routes.workloads import WORKLOAD, check_id
from commonage.api.routing import QUERY, Guarded, answer, caller, context, problems
from commonage.domain.usage import Prices, Usage
from commonage.wire.usage import UsageOut, UsageQuery, UsageRow

router = APIRouter(route_class=Guarded)

_MONTH_S = 30 * 24 * 3600.0


@router.get(
    WORKLOAD + "/usage",
    tags=["workloads"],
    summary="Show the usage of a workload",
    response_model=UsageOut,
    responses=problems("workload-not-found"),
)
async def workload_usage(request: Request, workload_id: str) -> Response:
    """Allocated resources times hours until now, summed over all attempts."""
    control, principal = context(request).control, caller(request)
    found = await control.queries.workload_usage(principal, check_id(workload_id))
    workload = await control.queries.workload(principal, workload_id)
    prices = control.settings.prices
    return answer(
        UsageOut(
            since=workload.submitted_at,
            until=control.clock.now(),
            by="workload",
            currency=prices.currency,
            items=_rows([found], prices),
        )
    )


@router.get(
    "/usage", tags=["usage"], summary="Show usage and cost", response_model=UsageOut, responses=problems(*QUERY)
)
async def usage(request: Request, query: Annotated[UsageQuery, Query()]) -> Response:
    """Allocated resources times hours in a time span. Default: your own, in the last 30 days; admins see everyone's.

    Costs are 0 if the installation sets no prices.
    """
    control, principal = context(request).control, caller(request)
    since, until = time_span(query, control.clock.now(), default_s=_MONTH_S)
    found = await control.queries.usage(principal, since=since, until=until, by=query.by)
    prices = control.settings.prices
    return answer(UsageOut(since=since, until=until, by=query.by, currency=prices.currency, items=_rows(found, prices)))


def _rows(found: Iterable[Usage], prices: Prices) -> list[UsageRow]:
    return [fill(UsageRow, one, cost=prices.cost(one)) for one in found]
