"""Workload page: state with reason, log, measurements, events; stop, extend, run again. One stream carries it all."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from commonage.control.access import access_of
from commonage.control.control import Control
from commonage.domain.errors import NotFound
from commonage.domain.idle import KEEP_S
from commonage.domain.permissions import Permission, SubjectKind
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.requests import format_duration
from commonage.domain.statuses import LogLine
from commonage.domain.workloads import Attempt, Event, EventKind, Kind, Workload
from commonage.portal import live
from commonage.portal.auth import Visitor
from commonage.portal.labels import binding_text, may_enter, title_of
from commonage.portal.site import Site, continue_at
from commonage.wire.origins import session_url

_PARTS = "parts/workload.html"
_FIGURES = re.compile(r"\d+(\.\d+)?")
_LIVE = ("head", "why", "facts", "attempts", "usage_report", "usage", "events")
_TAIL = 5_000  # lines of a long log that are shown at first
_EVENTS = 100
_POINTS = 240
_MEASURES = ("cpu_cores", "memory_mib", "gpu_utilisation", "gpu_memory_mib")
_SAMPLE_S = 3.0


def routes(site: Site) -> list[Route]:
    """GET workloads/ID, its live stream and plain log; POST its stop, its extension, its reset-packages, and
    its opening by others.
    """
    view = _Workload(site)
    return [
        Route("/workloads/{id}", site.page(view.page), methods=["GET"]),
        Route("/workloads/{id}/live", site.page(view.live), methods=["GET"]),
        Route("/workloads/{id}/log", site.page(view.log), methods=["GET"]),
        Route("/workloads/{id}/stop", site.page(view.stop), methods=["POST"]),
        Route("/workloads/{id}/extend", site.page(view.extend), methods=["POST"]),
        Route("/workloads/{id}/release-gpu", site.page(view.release_gpu), methods=["POST"]),
        Route("/workloads/{id}/reset-packages", site.page(view.reset_packages), methods=["POST"]),
        Route("/workloads/{id}/open", site.page(view.open), methods=["POST"]),
    ]


class _Workload:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._control = site.control

    async def page(self, request: Request, visitor: Visitor) -> Response:
        values = await gather(self._control, visitor.principal, request.path_params["id"], _attempt_in_query(request))
        return self._site.render(request, visitor, "workload.html", {"section": "workloads", **values})

    async def live(self, request: Request, visitor: Visitor) -> Response:
        control, principal, workload_id = self._control, visitor.principal, request.path_params["id"]
        number = _attempt_in_query(request)
        workload = await control.queries.workload(principal, workload_id)
        draw_part = self._site.parts(visitor, _PARTS)

        async def draw() -> live.Parts:
            values = await gather(control, principal, workload_id, number)
            return {name: draw_part(name, values) for name in _LIVE}

        resume = _resume(request.headers.get("last-event-id"))
        output = _Output(control, principal, workload_id, number)
        if workload.state.is_terminal:
            return self._site.stream(request, visitor, _once(draw, output, resume))
        changes = control.queries.follow(principal, workload_id=workload_id)
        parts = live.updates(control.clock, changes, live.only_changed(draw))
        return self._site.stream(request, visitor, live.merged(parts, output.measures(), output.lines(resume)))

    async def log(self, request: Request, visitor: Visitor) -> Response:
        workload_id, number = request.path_params["id"], _attempt_in_query(request)
        lines = self._control.queries.logs(visitor.principal, workload_id, attempt=number)
        first = await anext(aiter(lines), None)  # now, so that an unreadable log gives an error page
        headers = {"Content-Disposition": f'inline; filename="{workload_id}.log"'}
        return self._site.stream(
            request, visitor, _text(first, lines), media_type="text/plain; charset=utf-8", headers=headers
        )

    async def reset_packages(self, request: Request, visitor: Visitor) -> Response:
        workload_id = request.path_params["id"]
        await self._control.execs.reset_packages(visitor.principal, workload_id)
        said = "Deleted the packages that were added. Restart the kernels of the session."
        return self._site.done(request, said, f"workloads/{workload_id}")

    async def stop(self, request: Request, visitor: Visitor) -> Response:
        workload = await self._control.workloads.stop(visitor.principal, request.path_params["id"])
        verb = "Stopped" if workload.state.is_terminal else "Stopping"
        return self._site.done(request, f"{verb} {title_of(workload)}", f"workloads/{workload.id}")

    async def extend(self, request: Request, visitor: Visitor) -> Response:
        workload_id = request.path_params["id"]
        workload = await self._control.extensions.extend(visitor.principal, workload_id, KEEP_S)
        left_s = (workload.kept_until or 0.0) - self._control.clock.now()
        kept = f"{title_of(workload)} is kept for {format_duration(left_s)}"
        return self._site.done(request, kept, f"workloads/{workload.id}")

    async def release_gpu(self, request: Request, visitor: Visitor) -> Response:
        workload = await self._control.extensions.release_gpu(visitor.principal, request.path_params["id"])
        released = f"{title_of(workload)} starts again without its GPU"
        return self._site.done(request, released, f"workloads/{workload.id}")

    async def open(self, request: Request, visitor: Visitor) -> Response:
        workload = await self._control.visits.open(visitor.principal, request.path_params["id"])
        return continue_at(session_url(self._control.settings.session_origin, workload.spec.owner, workload.spec.name))


async def gather(control: Control, principal: Principal, workload_id: str, number: int | None) -> dict[str, Any]:
    """All values of the page except log and charts. `number`: the attempt to show, None for the newest."""
    queries = control.queries
    workload = await queries.workload(principal, workload_id)
    attempts = await queries.attempts(principal, workload_id)
    usage = await queries.workload_usage(principal, workload_id)
    shown_attempt = _chosen(attempts, number)
    allocation = shown_attempt.allocation if shown_attempt else None
    return {
        "workload": workload,
        "details": queries.details(workload),
        "offers": [offer.value for offer in control.idle.offers(workload)],
        "explanation": await queries.explain(principal, workload_id) if workload.state.waits else None,
        "attempts": attempts,
        "shown": shown_attempt,
        "number": number,
        "simulated": allocation is not None and any(share.simulated for share in allocation.shares),
        "openers": _openers(control, principal, workload),
        "open_with": await _open_with(control, principal, workload),
        "usage_report": await control.usage_reports.of(workload),
        "usage": usage,
        "cost": control.settings.prices.cost(usage),
        "now": control.clock.now(),
        "events": await _events(control, principal, workload_id),
    }


async def _open_with(control: Control, principal: Principal, workload: Workload) -> Sequence[tuple[str, str]]:
    """Titles and addresses of what opens a session, or the files of a job in a session of the same owner."""
    if workload.spec.owner != principal.name or (workload.stop is not None and not workload.state.is_terminal):
        return ()
    if workload.spec.kind is Kind.SESSION:
        address = session_url(control.settings.session_origin, workload.spec.owner, workload.spec.name)
        return [(one.title, address + one.path) for one in await control.session_apps.of(workload)]
    found = await control.session_apps.beside(workload) if workload.spec.kind is Kind.JOB else None
    if found is None:
        return ()
    session, apps = found
    address = session_url(control.settings.session_origin, session.spec.owner, session.spec.name)
    folder = "" if workload.spec.bundle is None else f"jobs/{workload.id}"
    shown = {
        "tensorboard": f"?{urlencode({'runFilter': folder})}#timeseries" if folder else "#timeseries",
    }
    links = [(one.title, f"{address}{one.path}{shown[one.name]}") for one in apps if one.name in shown]
    return [*([("JupyterLab", f"{address}lab/tree/{folder}")] if folder else []), *links]


def _openers(control: Control, principal: Principal, workload: Workload) -> Sequence[str]:
    """Users and groups that may open this session besides its owner; shown to those who may open it."""
    spec, access = workload.spec, access_of(principal, control.settings)
    if spec.kind is not Kind.SESSION or not may_enter(workload, access, control.meetings):
        return ()
    let_in = control.meetings.let_in(spec)
    if let_in is not None:
        return (*sorted(let_in), "admins")
    bound = access.bindings(Permission.ENTER_WORKLOADS, spec.tenant)
    others = {binding_text(one) for one in bound if (one.kind, one.subject) != (SubjectKind.USER, spec.owner)}
    return (*sorted(others), "admins")


async def _events(control: Control, principal: Principal, workload_id: str) -> Sequence[Event]:
    """The newest events, newest first; of consecutive progress events only the last."""
    found = await control.queries.events(principal, workload_id=workload_id, limit=500)
    next_events = [*found[1:], None]
    pairs = zip(found, next_events, strict=True)
    return [one for one, after in pairs if after is None or not _is_repeated(one, after)][-_EVENTS:][::-1]


def _is_repeated(one: Event, after: Event) -> bool:
    """True if `after` has the same message with other figures."""
    if one.kind is not EventKind.PROGRESS or after.kind is not EventKind.PROGRESS:
        return False
    return _without_figures(one.reason) == _without_figures(after.reason)


def _without_figures(reason: Reason) -> tuple[object, ...]:
    values = (getattr(reason, field.name) for field in fields(reason))
    return (reason.code, *(_FIGURES.sub("", value) for value in values if isinstance(value, str)))


def _chosen(attempts: Sequence[Attempt], number: int | None) -> Attempt | None:
    if number is None:
        return attempts[-1] if attempts else None
    found = next((one for one in attempts if one.number == number), None)
    if found is None:
        raise NotFound(f"Attempt not found: this workload has no attempt {number}.", code="attempt-not-found")
    return found


def _attempt_in_query(request: Request) -> int | None:
    text = request.query_params.get("attempt", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def _resume(last_event_id: str | None) -> tuple[int, int]:
    """Attempt and byte offset from which the browser wants the log; (0, 0) from the start."""
    number, _, offset = (last_event_id or "").partition(":")
    plain = number.isascii() and number.isdigit() and offset.isascii() and offset.isdigit()
    return (int(number), int(offset)) if plain and len(number) < 6 and len(offset) < 19 else (0, 0)


async def _once(draw: live.Draw, output: _Output, resume: tuple[int, int]) -> AsyncIterator[str]:
    """The stream of an ended workload: all messages once, then the one that tells the browser not to reconnect."""
    yield live.message(live.partials(await draw()))
    yield await output.series()
    async for one in output.lines(resume):
        yield one
    yield live.message("", event="end")


async def _text(first: LogLine | None, rest: AsyncIterator[LogLine]) -> AsyncIterator[str]:
    if first is not None:
        yield first.text + "\n"
    async for line in rest:
        yield line.text + "\n"


class _Output:
    """Log and measurements of a workload as messages of its page's stream."""

    def __init__(self, control: Control, principal: Principal, workload_id: str, number: int | None) -> None:
        self._control, self._who, self._id, self._number = control, principal, workload_id, number

    async def lines(self, resume: tuple[int, int]) -> AsyncIterator[str]:
        """`log-begin` at each new attempt, then `log` with lists of lines; ends with the workload."""
        number, offset = resume
        clock, queries = self._control.clock, self._control.queries
        if not await self._may_read():
            return
        while True:
            workload = await queries.workload(self._who, self._id)
            current = self._number or workload.attempts
            if current and current != number:
                number, offset = current, 0
                yield live.json_message("log-begin", {"attempt": number}, id_=f"{number}:0")
            if current:
                try:
                    lines = queries.logs(
                        self._who,
                        self._id,
                        attempt=current,
                        offset=offset,
                        tail=None if offset else _TAIL,
                        follow=not workload.state.is_terminal,
                    )
                    async for batch in live.batches(lines, clock):
                        offset = batch[-1].offset
                        texts = [live.shown(line.text) for line in batch]
                        yield live.json_message("log", texts, id_=f"{number}:{offset}")
                except NotFound:
                    pass  # nothing printed yet, or the log is gone: the page says so
            if workload.state.is_terminal:
                return
            await clock.sleep(1.0)

    async def _may_read(self) -> bool:
        spec = (await self._control.queries.workload(self._who, self._id)).spec
        access = access_of(self._who, self._control.settings)
        return access.may_on(Permission.READ_OUTPUT, spec.owner, spec.tenant)

    async def measures(self) -> AsyncIterator[str]:
        """`series` with all measurements so far, then `points` with the new ones."""
        clock = self._control.clock
        shown_of = None
        since = 0.0
        while True:
            attempt = await self._attempt()
            if attempt is not None and attempt.id != shown_of:
                shown_of = attempt.id
                since = clock.now()
                yield await self.series()
            elif attempt is not None:
                found = await self._query(attempt, since, clock.now() + 1)
                if found:
                    since = _newest(found, since)
                    yield live.json_message("points", found)
            await clock.sleep(_SAMPLE_S)

    async def series(self) -> str:
        """The message with the whole attempt's metrics (times and means), and the VRAM of its share in MiB."""
        attempt = await self._attempt()
        if attempt is None:
            return live.json_message("series", {"metrics": {}, "vram_mib": 0})
        until = attempt.ended_at or self._control.clock.now()
        metrics = await self._query(attempt, attempt.allocation.at - 1, until + 1)
        vram = sum(share.memory_mib for share in attempt.allocation.shares)
        return live.json_message("series", {"metrics": metrics, "vram_mib": vram})

    async def _query(self, attempt: Attempt, since: float, until: float) -> dict[str, list[list[float]]]:
        found = await self._control.queries.metrics(
            self._who,
            f"attempt:{attempt.id}",
            metrics=_MEASURES,
            since=since,
            until=until,
            points=_POINTS,
        )
        return {
            metric: [[round(point.at, 1) for point in points], [round(point.mean, 4) for point in points]]
            for metric, points in found.items()
        }

    async def _attempt(self) -> Attempt | None:
        return _chosen(await self._control.queries.attempts(self._who, self._id), self._number)


def _newest(series: dict[str, list[list[float]]], at_least: float) -> float:
    """A time just after the newest point of any series."""
    return max([at_least, *(ats[-1] + 0.1 for ats, _ in series.values() if ats)])
