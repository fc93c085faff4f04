"""Routes of events: a page of past events, or a stream of new ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import lru_cache, partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api.fill import fill
from commonage.api.routes.workloads import WORKLOAD, check_id
from commonage.api.routing import QUERY, Context, Guarded, answer, caller, context, problems
from commonage.api.streams import EVENT_STREAM, sse, wants_stream
from commonage.control.request_limits import Connection
from commonage.domain.principals import Principal, Scope
from commonage.domain.workloads import Event
from commonage.wire.events import EventOut, EventPage, EventsQuery

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
async def workload_events(
    request: Request, workload_id: str, query: Annotated[EventsQuery, Query()], last_event_id: LastEventId = None
) -> Response:
    """A page, oldest first; with `Accept: text/event-stream` a stream that stays open."""
    await context(request).control.queries.workload(caller(request), check_id(workload_id))
    return await _answer_events(request, query, last_event_id, workload_id)


async def _answer_events(
    request: Request, query: EventsQuery, last_event_id: int | None, workload_id: str | None
) -> Response:
    """A page or a stream of the events that the caller may see, or of one workload's."""
    api, principal = context(request), caller(request)
    principal.need(Scope.READ)
    after = query.after if last_event_id is None else last_event_id
    if wants_stream(request):
        hold = partial(api.hold, Connection.STREAM, request, principal)
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
