"""Route of logs: the output of a workload, as text or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill
from commonage.api.routes.workloads import WORKLOAD, check_id
from commonage.api.routing import QUERY, Context, Guarded, caller, context, problems
from commonage.api.streams import EVENT_STREAM, sse, wants_stream
from commonage.control.request_limits import Connection
from commonage.domain.errors import NotFound
from commonage.domain.principals import Principal
from commonage.domain.statuses import LogLine
from commonage.domain.workloads import Workload
from commonage.wire.events import LogEndOut, LogLineOut, LogsQuery

router = APIRouter(route_class=Guarded, tags=["workloads"])

# The engine reports the end of an attempt at most this long after its last line of output.
_END_WITHIN_S = 10.0
_POLL_S = 0.05


@router.get(
    WORKLOAD + "/logs",
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
    hold = partial(api.hold, Connection.STREAM, request, principal)
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
    """The workload once it has an attempt, or has ended without one."""
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
