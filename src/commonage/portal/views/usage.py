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
from commonage.portal.views.recent_events import titles

_MAX_ROWS = 50
PERIODS: Mapping[str, str] = {"day": "24 hours", "week": "7 days", "month": "30 days", "year": "12 months"}
_LENGTHS = {"day": 1, "week": 7, "month": 30, "year": 365}
# Of Amounts and Bounds: the field, its name, and the filter that writes it.
RESOURCES = (("gpu_milli", "GPUs", "cpus"), ("vram_mib", "VRAM", "memory"), ("cpus_milli", "CPUs", "cpus"),
             ("memory_mib", "Memory", "memory"))  # fmt: skip
_BY = {"owner": "user", "environment": "environment", "workload": "workload", "tenant": "tenant"}


def routes(site: Site) -> list[Route]:
    """GET usage."""
    view = _Usage(site)
    return [Route("/usage", site.page(view.page), methods=["GET"])]


class _Usage:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def page(self, request: Request, visitor: Visitor) -> Response:
        control, who = self._site.control, visitor.who
        period = request.query_params.get("period", "")
        period = period if period in PERIODS else "month"
        by = request.query_params.get("by", "")
        by = by if by in _BY else ("owner" if who.is_admin else "workload")
        until = datetime.fromtimestamp(control.clock.now(), UTC)
        since = (until - timedelta(days=_LENGTHS[period])).timestamp()
        rows = await control.queries.usage(who, since=since, until=until.timestamp(), by=by)
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
            "all": total(rows),
            "since": since,
            "titles": await titles(control, who, [row.subject for row in shown] if by == "workload" else []),
            "cost_of": control.settings.prices.cost,
            "tenants": control.tenants.all(who) if control.settings.rules.tenants else (),
            "resources": RESOURCES,
        }
        return self._site.render(request, visitor, "usage.html", values)


def total(rows: Sequence[Usage]) -> Usage:
    """All rows in one."""
    return Usage(
        subject="",
        workloads=sum(row.workloads for row in rows),
        gpu_gib_h=sum(row.gpu_gib_h for row in rows),
        gpu_h=sum(row.gpu_h for row in rows),
        cpu_h=sum(row.cpu_h for row in rows),
        memory_gib_h=sum(row.memory_gib_h for row in rows),
    )
