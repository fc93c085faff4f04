"""Routes of events and logs: pages and text of the past, or streams of what is new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill
from commonage.api.routes.workloads import WORKLOAD, check_id
from commonage.api.routing import QUERY, Context, Guarded, answer, asks, caller, context, problems
from commonage.api.streams import EVENT_STREAM, sse, wants_stream
from commonage.control.request_limits import Connection
from commonage.domain.errors import NotFound
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.statuses import LogLine
from commonage.domain.workloads import Event, Workload
from commonage.wire.events import EventOut, EventPage, EventsQuery, LogEndOut, LogLineOut, LogsQuery

router = APIRouter(route_class=Guarded)


LastEventId = Annotated[
    int | None,
    Header(alias="Last-Event-ID", ge=0, le=2**53 - 1, description="Start the stream after this event."),
]
_STREAM_OR_PAGE: dict[int | str, dict[str, Any]] = {200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}}}


@router.get(
    "/events",
    tags=["events"],
    summary="Show or follow the events of your workloads",
    response_model=EventPage,
    responses={**problems(*QUERY, "too-many-streams"), **_STREAM_OR_PAGE},
)
@asks(Permission.SEE_WORKLOADS)
async def events(
    request: Request, query: Annotated[EventsQuery, Query()], last_event_id: LastEventId = None
) -> Response:
    """A page, oldest first; with `Accept: text/event-stream` a stream that stays open.

    Each event of the stream has its number as id. A client that reconnects with `Last-Event-ID` misses no event.
    """
    return await _answer_events(request, query, last_event_id, None)


@router.get(
    WORKLOAD + "/events",
    tags=["workloads"],
    summary="Show or follow the events of a workload",
    response_model=EventPage,
    responses={**problems("workload-not-found", *QUERY, "too-many-streams"), **_STREAM_OR_PAGE},
)
@asks(Permission.SEE_WORKLOADS)
async def workload_events(
    request: Request, workload_id: str, query: Annotated[EventsQuery, Query()], last_event_id: LastEventId = None
) -> Response:
    """A page, oldest first; with `Accept: text/event-stream` a stream that stays open."""
    await context(request).control.queries.workload(caller(request), check_id(workload_id))
    return await _answer_events(request, query, last_event_id, workload_id)


async def _answer_events(
    request: Request, query: EventsQuery, last_event_id: int | None, workload_id: str | None
) -> Response:
    api, principal = context(request), caller(request)
    after = query.after if last_event_id is None else last_event_id
    if wants_stream(request):
        hold = api.hold(Connection.STREAM, request, principal)
        return api.streams.events(_stream(api, principal, after, workload_id), hold)
    found = await api.control.queries.events(principal, after=after or 0, workload_id=workload_id, limit=query.limit)
    more = str(found[-1].seq) if len(found) == query.limit else None
    return answer(EventPage(items=[fill(EventOut, event) for event in found], next_cursor=more))


async def _stream(
    api: Context, principal: Principal, after: int | None, workload_id: str | None
) -> AsyncGenerator[bytes]:
    if after is None:
        # Send the start id, so that a client whose connection breaks before the first event misses nothing either.
        after = await api.control.store.last_event_seq()
        yield f"id: {after}\n\n".encode()
    async for event in api.control.queries.follow(principal, after=after, workload_id=workload_id):
        yield _encoded(event)


# All followers get the same bytes: encoded once for all of them, as long as they keep up.
@lru_cache(maxsize=1024)
def _encoded(event: Event) -> bytes:
    return sse(fill(EventOut, event).model_dump_json(), event=event.kind.value, id_=event.seq)


# The engine reports the end of an attempt at most this long after its last line of output.
_END_WITHIN_S = 10.0
_POLL_S = 0.05


@router.get(
    WORKLOAD + "/logs",
    tags=["workloads"],
    summary="Read the output of a workload",
    response_class=Response,
    responses={
        **problems("workload-not-found", "log-not-found", *QUERY, "engine-failure", "too-many-streams"),
        200: {
            "description": "stdout and stderr together.",
            "content": {"text/plain": {"schema": {"type": "string"}}, EVENT_STREAM: {"schema": {"type": "string"}}},
        },
    },
)
@asks(Permission.READ_OUTPUT)
async def logs(
    request: Request,
    workload_id: str,
    query: Annotated[LogsQuery, Query()],
    last_event_id: Annotated[
        int | None, Header(alias="Last-Event-ID", ge=0, le=2**53 - 1, description="Resume after this byte offset.")
    ] = None,
) -> Response:
    """Plain text, or a stream with `Accept: text/event-stream`.

    The stream has an event `line` for each line (`{"text", "offset"}`, with the offset as its id), and finally an event
    `end` with the state of the workload. With `follow`, a workload that has not started yet is waited for.
    """
    api, principal = context(request), caller(request)
    workload = await api.control.queries.workload(principal, check_id(workload_id))
    stream = wants_stream(request)
    if last_event_id is not None:
        query = query.model_copy(update={"offset": last_event_id, "tail": None})
    if query.follow is None:
        query = query.model_copy(update={"follow": stream})
    if query.attempt is not None and query.attempt > workload.attempts:
        raise NotFound(f"{workload_id} has no attempt {query.attempt}", code="log-not-found")
    hold = api.hold(Connection.STREAM, request, principal)
    if stream:
        return api.streams.events(_events(api, principal, workload, query), hold)
    lines = _lines(api, principal, workload, query)
    first = await anext(lines, None)  # read here, so that a missing log is a problem document and not an empty text
    return api.streams.text(_text(first, lines), hold)


async def _text(first: LogLine | None, lines: AsyncGenerator[LogLine]) -> AsyncGenerator[bytes]:
    async with aclosing(lines):
        if first is not None:
            yield first.text.encode(errors="replace") + b"\n"
        async for line in lines:
            yield line.text.encode(errors="replace") + b"\n"


async def _events(api: Context, principal: Principal, workload: Workload, query: LogsQuery) -> AsyncGenerator[bytes]:
    number = query.attempt
    async with aclosing(_lines(api, principal, workload, query)) as lines:
        async for line in lines:
            yield sse(log_line_out(line).model_dump_json(), event="line", id_=line.offset)
    if query.follow:
        workload, number = await _after_end(api, principal, workload.id, number)
    elif number is None:
        number = workload.attempts or None
    yield sse(log_end_out(workload, number).model_dump_json(), event="end")


async def _lines(api: Context, principal: Principal, workload: Workload, query: LogsQuery) -> AsyncGenerator[LogLine]:
    """The requested lines. With `follow` it waits for the first attempt, or for an end without one."""
    if workload.attempt is None and query.follow:
        workload = await _after_start(api, principal, workload.id)
        if workload.attempt is None:
            return
    source = api.control.queries.logs(
        principal,
        workload.id,
        attempt=query.attempt,
        offset=query.offset,
        tail=query.tail,
        follow=bool(query.follow),
    )
    async for line in source:
        yield line


async def _after_start(api: Context, principal: Principal, workload_id: str) -> Workload:
    queries = api.control.queries
    async for _ in queries.follow(principal, after=0, workload_id=workload_id):
        workload = await queries.workload(principal, workload_id)
        if workload.attempt is not None or workload.state.is_terminal:
            return workload
    return await queries.workload(principal, workload_id)


async def _after_end(
    api: Context, principal: Principal, workload_id: str, number: int | None
) -> tuple[Workload, int | None]:
    """The workload once its attempt `number` (None: the newest) has ended, at the latest after `_END_WITHIN_S`."""
    queries = api.control.queries
    workload = await queries.workload(principal, workload_id)
    number = number or workload.attempts or None
    for _ in range(int(_END_WITHIN_S / _POLL_S)):
        last = workload.attempt
        if last is None or last.number != number or last.state.is_terminal:
            break
        await asyncio.sleep(_POLL_S)
        workload = await queries.workload(principal, workload_id)
    return workload, number


def log_line_out(line: LogLine) -> LogLineOut:
    """The line; bytes that are not text are shown as `?`."""
    return LogLineOut(text=line.text.encode(errors="replace").decode(), offset=line.offset)


def log_end_out(workload: Workload, number: int | None) -> LogEndOut:
    """The state of the workload after the output of its attempt `number`."""
    last = workload.attempt
    exit_code = last.exit_code if last and last.number == number else None
    return fill(LogEndOut, workload, exit_code=exit_code, attempt=number)
