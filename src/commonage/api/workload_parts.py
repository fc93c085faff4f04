"""Routes below one workload: explanation, attempts, usage, metrics, events, logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import encode
from commonage.api.events import LastEventId, answer_events, wants_stream
from commonage.api.ids import WORKLOAD, known_form
from commonage.api.routing import Context, Guarded, answer, caller, context, problems
from commonage.api.spans import span_of
from commonage.api.streams import EVENT_STREAM, sse
from commonage.control.tenants.connections import Connection
from commonage.domain.errors import NotFound
from commonage.domain.principals import Principal
from commonage.domain.statuses import LogLine
from commonage.domain.workloads import Workload
from commonage.wire.platform import UsageOut
from commonage.wire.queries import EventsQuery, LogsQuery, MetricsQuery
from commonage.wire.workloads import (
    AttemptList,
    EventPage,
    ExplanationOut,
    MetricsOut,
    SeriesOut,
)

router = APIRouter(route_class=Guarded, tags=["workloads"])

_OF_ATTEMPTS = ("cpu_cores", "memory_mib", "gpu_memory_mib", "gpu_utilisation")
# After the last line the engine's word on how it ended is at most this far behind.
_END_WITHIN_S = 10.0


@router.get(
    WORKLOAD + "/explanation",
    summary="Why it waits, and until when",
    response_model=ExplanationOut,
    responses=problems("workload-not-found"),
)
async def explanation(request: Request, workload_id: str) -> Response:
    """What it lacks, who holds that, what would start now instead, and the expected start."""
    look, who = context(request).control.look, caller(request)
    found = await look.explain(who, known_form(workload_id))
    workload = await look.workload(who, workload_id)
    return answer(encode.explanation(found, workload.state, who))


@router.get(
    WORKLOAD + "/attempts",
    summary="Its tries, oldest first",
    response_model=AttemptList,
    responses=problems("workload-not-found"),
)
async def attempts(request: Request, workload_id: str) -> Response:
    """Each with its node, its shares and how it ended."""
    found = await context(request).control.look.attempts(caller(request), known_form(workload_id))
    return answer(AttemptList(items=[encode.attempt(one) for one in found]))


@router.get(
    WORKLOAD + "/usage",
    summary="What it has used so far",
    response_model=UsageOut,
    responses=problems("workload-not-found"),
)
async def usage(request: Request, workload_id: str) -> Response:
    """Held resources times hours, in all its tries until now."""
    control, who = context(request).control, caller(request)
    found = await control.look.workload_usage(who, known_form(workload_id))
    workload = await control.look.workload(who, workload_id)
    prices = control.settings.prices
    rows = encode.usage([found], prices)
    return answer(
        UsageOut(
            since=workload.submitted_at, until=control.clock.now(), by="workload", currency=prices.currency, items=rows
        )
    )


@router.get(
    WORKLOAD + "/metrics",
    summary="What it measured",
    response_model=MetricsOut,
    responses=problems("workload-not-found", "invalid-parameter", "unknown-field"),
)
async def metrics(request: Request, workload_id: str, query: Annotated[MetricsQuery, Query()]) -> Response:
    """Cores, memory, VRAM and utilisation of its newest try; of the last hour if not said otherwise."""
    control, who = context(request).control, caller(request)
    workload = await control.look.workload(who, known_form(workload_id))
    since, until = span_of(query, control.clock.now())
    found: list[SeriesOut] = []
    if workload.attempt is not None:
        subject = f"attempt:{workload.attempt.id}"
        points = await control.look.metrics(
            who, subject, metrics=_OF_ATTEMPTS, since=since, until=until, points=query.points
        )
        found = encode.series(subject, points)
    return answer(MetricsOut(since=since, until=until, series=found))


@router.get(
    WORKLOAD + "/events",
    summary="What has happened to it",
    response_model=EventPage,
    responses={
        **problems("workload-not-found", "invalid-parameter", "unknown-field", "too-many-streams"),
        200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}},
    },
)
async def events(
    request: Request, workload_id: str, query: Annotated[EventsQuery, Query()], last_event_id: LastEventId = None
) -> Response:
    """A page, oldest first; with `Accept: text/event-stream` a stream that goes on as things happen."""
    await context(request).control.look.workload(caller(request), known_form(workload_id))
    return await answer_events(request, query, last_event_id, workload_id)


# --- logs ---------------------------------------------------------------------------------------------------------


@router.get(
    WORKLOAD + "/logs",
    summary="Its output",
    response_class=Response,
    responses={
        **problems(
            "workload-not-found",
            "log-not-found",
            "invalid-parameter",
            "unknown-field",
            "engine-failure",
            "too-many-streams",
        ),
        200: {
            "description": "stdout and stderr together.",
            "content": {"text/plain": {"schema": {"type": "string"}}, EVENT_STREAM: {"schema": {"type": "string"}}},
        },
    },
)
async def logs(
    request: Request,
    workload_id: str,
    query: Annotated[LogsQuery, Query()],
    last_event_id: Annotated[
        int | None, Header(alias="Last-Event-ID", ge=0, le=2**53 - 1, description="Resume behind this byte.")
    ] = None,
) -> Response:
    """Plain text, or with `Accept: text/event-stream` a stream.

    The stream has an event `line` for each line (`{"text", "offset"}`, its id the offset) and at last an event `end`
    with the state that the workload has come to. Followed before it starts, it waits for that.
    """
    at, who = context(request), caller(request)
    workload = await at.control.look.workload(who, known_form(workload_id))
    stream = wants_stream(request)
    if last_event_id is not None:
        query = query.model_copy(update={"offset": last_event_id, "tail": None})
    if query.follow is None:
        query = query.model_copy(update={"follow": stream})
    if query.attempt is not None and query.attempt > workload.attempts:
        raise NotFound(f"{workload_id} has no attempt {query.attempt}", code="log-not-found")
    hold = partial(at.hold, Connection.STREAM, request, who)
    if stream:
        return at.streams.events(_as_events(at, who, workload, query), hold)
    lines = _lines(at, who, workload, query)
    first = await anext(lines, None)  # here, so that a missing log is an answer of its own and not an empty text
    return at.streams.text(_as_text(first, lines), hold)


async def _as_text(first: LogLine | None, lines: AsyncGenerator[LogLine]) -> AsyncGenerator[bytes]:
    async with aclosing(lines):
        if first is not None:
            yield first.text.encode(errors="replace") + b"\n"
        async for line in lines:
            yield line.text.encode(errors="replace") + b"\n"


async def _as_events(at: Context, who: Principal, workload: Workload, query: LogsQuery) -> AsyncGenerator[bytes]:
    number = query.attempt
    async with aclosing(_lines(at, who, workload, query)) as lines:
        async for line in lines:
            yield sse(encode.log_line(line).model_dump_json(), event="line", id_=line.offset)
    if query.follow:
        workload, number = await _ended(at, who, workload.id, number)
    elif number is None:
        number = workload.attempts or None
    yield sse(encode.log_end(workload, number).model_dump_json(), event="end")


async def _lines(at: Context, who: Principal, workload: Workload, query: LogsQuery) -> AsyncGenerator[LogLine]:
    """The lines asked for. Followed before its first try, it waits for that, or for its end without one."""
    if workload.attempt is None and query.follow:
        workload = await _begun(at, who, workload.id)
        if workload.attempt is None:
            return
    source = at.control.look.logs(
        who,
        workload.id,
        attempt=query.attempt,
        offset=query.offset,
        tail=query.tail,
        follow=bool(query.follow),
    )
    async for line in source:
        yield line


async def _begun(at: Context, who: Principal, workload_id: str) -> Workload:
    """The workload once it has a try, or has ended without one."""
    look = at.control.look
    async for _ in look.follow(who, after=0, workload_id=workload_id):
        workload = await look.workload(who, workload_id)
        if workload.attempt is not None or workload.state.is_terminal:
            return workload
    return await look.workload(who, workload_id)


async def _ended(at: Context, who: Principal, workload_id: str, number: int | None) -> tuple[Workload, int | None]:
    """The workload once its try `number` (None: the newest) is known to have ended, or soon; and that number."""
    look = at.control.look
    workload = await look.workload(who, workload_id)
    number = number or workload.attempts or None
    for _ in range(int(_END_WITHIN_S / 0.05)):
        last = workload.attempt
        if last is None or last.number != number or last.state.is_terminal:
            break
        await asyncio.sleep(0.05)
        workload = await look.workload(who, workload_id)
    return workload, number
