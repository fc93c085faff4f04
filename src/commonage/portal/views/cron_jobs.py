"""Cron jobs: the list with the next five times of each; the page of one with its runs, and what users do with it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commonage.domain.cron_jobs import CronJob
from commonage.portal.auth import HOME, Visitor
from commonage.portal.site import Site
from commonage.ports.store import Filter

_RUNS = 50


def routes(site: Site) -> list[Route]:
    """GET cron-jobs and cron-jobs/ID; POST cron-jobs/ID/suspend, resume, trigger, remove."""
    control = site.control

    def shown(one: CronJob) -> dict[str, Any]:
        return {
            "cron_job": one,
            "next_times": one.next_times(control.clock.now()),
            "active": control.cron_jobs.active(one.id),
            "reason": control.cron_jobs.waiting(one.id) or one.last_refused,
        }

    async def page(request: Request, visitor: Visitor) -> Response:
        rows = [shown(one) for one in control.cron_jobs.visible(visitor.principal)]
        return site.render(request, visitor, "cron_jobs.html", {"section": "workloads", "rows": rows})

    async def one(request: Request, visitor: Visitor) -> Response:
        found = control.cron_jobs.one(visitor.principal, request.path_params["id"])
        cursor = request.query_params.get("cursor") or None
        runs = await control.queries.workloads(visitor.principal, Filter(cron_job=found.id), limit=_RUNS, cursor=cursor)
        values = {
            "section": "workloads",
            **shown(found),
            "workloads": runs.items,
            "next_cursor": runs.next_cursor,
            "details": {run.id: control.queries.details(run) for run in runs.items},
        }
        return site.render(request, visitor, "cron_job.html", values)

    async def suspend(request: Request, visitor: Visitor) -> Response:
        found = await control.cron_jobs.suspend(visitor.principal, request.path_params["id"])
        return RedirectResponse(f"{HOME}cron-jobs/{found.id}", status_code=303)

    async def resume(request: Request, visitor: Visitor) -> Response:
        found = await control.cron_jobs.resume(visitor.principal, request.path_params["id"])
        return RedirectResponse(f"{HOME}cron-jobs/{found.id}", status_code=303)

    async def trigger(request: Request, visitor: Visitor) -> Response:
        made = await control.cron_jobs.trigger(visitor.principal, request.path_params["id"])
        return RedirectResponse(f"{HOME}workloads/{made.workloads[0].id}", status_code=303)

    async def remove(request: Request, visitor: Visitor) -> Response:
        await control.cron_jobs.remove(visitor.principal, request.path_params["id"])
        return RedirectResponse(f"{HOME}cron-jobs", status_code=303)

    changes = {"suspend": suspend, "resume": resume, "trigger": trigger, "remove": remove}
    return [
        Route("/cron-jobs", site.page(page), methods=["GET"]),
        Route("/cron-jobs/{id}", site.page(one), methods=["GET"]),
        *(Route(f"/cron-jobs/{{id}}/{name}", site.page(view), methods=["POST"]) for name, view in changes.items()),
    ]
