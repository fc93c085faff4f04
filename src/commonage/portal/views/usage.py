"""Usage page: allocated resources over time and their cost, of the user; for admins, of all users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commonage.domain.usage import Usage
from commonage.portal.auth import Visitor
from commonage.portal.site import Site
from commonage.portal.views.overview import titles

_MAX_ROWS = 50
PERIODS: Mapping[str, str] = {"day": "24 hours", "week": "7 days", "month": "30 days", "year": "12 months"}
_LENGTHS = {"day": 1, "week": 7, "month": 30, "year": 365}
# Of Amounts and Bounds: the field, its name, and the filter that writes it.
RESOURCES = (("gpu_milli", "GPUs", "cpus"), ("vram_mib", "VRAM", "memory"), ("cpus_milli", "CPUs", "cpus"),
             ("memory_mib", "Memory", "memory"))  # fmt: skip
_BY = {"owner": "user", "environment": "environment", "workload": "workload", "tenant": "tenant"}


def routes(site: Site) -> list[Route]:

    async def page(request: Request, visitor: Visitor) -> Response:
        control, principal = site.control, visitor.principal
        period = request.query_params.get("period", "")
        period = period if period in PERIODS else "month"
        by = request.query_params.get("by", "")
        by = by if by in _BY else ("owner" if site.access(visitor).sees_others else "workload")
        until = datetime.fromtimestamp(control.clock.now(), UTC)
        since = (until - timedelta(days=_LENGTHS[period])).timestamp()
        rows = await control.queries.usage(principal, since=since, until=until.timestamp(), by=by)
        rows = sorted(rows, key=lambda row: (-row.gpu_gib_h, -row.cpu_h, row.subject))
        shown = rows[:_MAX_ROWS]
        values = {
            "section": "usage",
            "period": period,
            "periods": PERIODS,
            "by": by,
            "by_words": _BY,
            "rows": shown,
            "more": len(rows) - len(shown),
            "all": _total(rows),
            "since": since,
            "titles": await titles(control, principal, [row.subject for row in shown] if by == "workload" else []),
            "cost_of": control.settings.prices.cost,
            "tenants": control.tenants.all(principal) if control.settings.rules.tenants else (),
            "quotas": control.quota_uses.visible(principal),
            "resources": RESOURCES,
        }
        return site.render(request, visitor, "usage.html", values)

    return [Route("/usage", site.page(page), methods=["GET"])]


def _total(rows: Sequence[Usage]) -> Usage:
    return Usage(
        subject="",
        workloads=sum(row.workloads for row in rows),
        gpu_gib_h=sum(row.gpu_gib_h for row in rows),
        gpu_h=sum(row.gpu_h for row in rows),
        cpu_h=sum(row.cpu_h for row in rows),
        memory_gib_h=sum(row.memory_gib_h for row in rows),
    )
