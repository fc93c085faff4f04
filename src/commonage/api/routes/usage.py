"""Routes of metrics over time, and of usage and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request

from commonage.api.fill import fill
from commonage.api.routes.nodes import find_node
from commonage.api.routes.workloads import WORKLOAD, check_id
from commonage.api.routing import QUERY, Guarded, asks, caller, context, problems
from commonage.domain.errors import InvalidInput
from commonage.domain.permissions import Permission
from commonage.domain.usage import Prices, Usage
from commonage.ports.metrics import MEASURED
from commonage.wire.events import MetricsOut, MetricsQuery, PointOut, SeriesOut
from commonage.wire.usage import UsageOut, UsageQuery, UsageRow

router = APIRouter(route_class=Guarded)


HOUR_S = 3600.0
_OF_NODES = ("allocated_cpu_cores", "allocated_memory_mib", *MEASURED["node"])
_UNITS = {
    "cpu_cores": "cores",
    "memory_mib": "MiB",
    "gpu_memory_mib": "MiB",
    "gpu_utilisation": "ratio",
    "power_w": "W",
    "temperature_c": "°C",
    "allocated_cpu_cores": "cores",
    "allocated_memory_mib": "MiB",
    "disk_free_mib": "MiB",
    "disk_used_mib": "MiB",
    "disk_read_bytes_per_s": "B/s",
    "disk_written_bytes_per_s": "B/s",
    "network_received_bytes_per_s": "B/s",
    "network_sent_bytes_per_s": "B/s",
}


@router.get(
    WORKLOAD + "/metrics",
    tags=["workloads"],
    summary="Show the metrics of a workload",
    responses=problems("workload-not-found", *QUERY),
)
@asks(Permission.SEE_WORKLOADS)
async def workload_metrics(request: Request, workload_id: str, query: Annotated[MetricsQuery, Query()]) -> MetricsOut:
    """CPU, memory, VRAM and GPU utilisation of the newest attempt. Default: the last hour."""
    workload = await context(request).control.queries.workload(caller(request), check_id(workload_id))
    subjects = {} if workload.attempt is None else {f"attempt:{workload.attempt.id}": MEASURED["attempt"]}
    return await _metrics(request, query, subjects)


@router.get(
    "/nodes/{site}/{name}/metrics",
    tags=["nodes"],
    summary="Show the metrics of a node and its GPUs",
    responses=problems("node-not-found", *QUERY),
)
@asks(Permission.SEE_TENANT)
async def node_metrics(request: Request, site: str, name: str, query: Annotated[MetricsQuery, Query()]) -> MetricsOut:
    """Default: the last hour. The subjects are `node:SITE/NAME` and `device:SITE/UUID`."""
    caller(request)
    view = find_node(request, site, name)
    devices = {f"device:{view.node.device_key(one.device)}": MEASURED["device"] for one in view.devices}
    return await _metrics(request, query, {f"node:{view.node.key}": _OF_NODES, **devices})


async def _metrics(request: Request, query: MetricsQuery, subjects: Mapping[str, Sequence[str]]) -> MetricsOut:
    control, principal = context(request).control, caller(request)
    since, until = time_span(query, control.clock.now())
    series: list[SeriesOut] = []
    for subject, names in subjects.items():
        found = await control.queries.metrics(
            principal, subject, metrics=names, since=since, until=until, points=query.points
        )
        series += [
            SeriesOut(
                metric=metric,
                subject=subject,
                unit=_UNITS.get(metric, ""),
                points=[fill(PointOut, point) for point in points],
            )
            for metric, points in found.items()
        ]
    return MetricsOut(since=since, until=until, series=series)


def time_span(query: MetricsQuery | UsageQuery, now: float, *, default_s: float = HOUR_S) -> tuple[float, float]:
    """[since, until) of a query; by default the last `default_s` seconds. Raises InvalidInput."""
    until = now if query.until is None else query.until
    since = max(0.0, until - default_s) if query.since is None else query.since
    if since > until:
        raise InvalidInput(f"since {since:.0f} is after until {until:.0f}", field="since", code="invalid-parameter")
    return since, until


_MONTH_S = 30 * 24 * 3600.0


@router.get(
    WORKLOAD + "/usage",
    tags=["workloads"],
    summary="Show the usage of a workload",
    responses=problems("workload-not-found"),
)
@asks(Permission.SEE_WORKLOADS)
async def workload_usage(request: Request, workload_id: str) -> UsageOut:
    """Allocated resources times hours until now, summed over all attempts."""
    control, principal = context(request).control, caller(request)
    found = await control.queries.workload_usage(principal, check_id(workload_id))
    workload = await control.queries.workload(principal, workload_id)
    prices = control.settings.prices
    return UsageOut(
        since=workload.submitted_at,
        until=control.clock.now(),
        by="workload",
        currency=prices.currency,
        items=_rows([found], prices),
    )


@router.get("/usage", tags=["usage"], summary="Show usage and cost", responses=problems(*QUERY))
@asks(Permission.SEE_WORKLOADS)
async def usage(request: Request, query: Annotated[UsageQuery, Query()]) -> UsageOut:
    """Allocated resources times hours in a time span. Default: your own, in the last 30 days; admins see everyone's.

    Costs are 0 if the installation sets no prices.
    """
    control, principal = context(request).control, caller(request)
    since, until = time_span(query, control.clock.now(), default_s=_MONTH_S)
    found = await control.queries.usage(principal, since=since, until=until, by=query.by)
    prices = control.settings.prices
    return UsageOut(since=since, until=until, by=query.by, currency=prices.currency, items=_rows(found, prices))


def _rows(found: Iterable[Usage], prices: Prices) -> list[UsageRow]:
    return [fill(UsageRow, one, cost=prices.cost(one)) for one in found]
