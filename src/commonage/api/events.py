"""Routes of events: a page of what has happened, or a stream of what happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import lru_cache, partial
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from commonage.api import encode
from commonage.api.routing import Context, Guarded, answer, caller, context, problems
from commonage.api.streams import EVENT_STREAM, sse
from commonage.control.tenants.connections import Connection
from commonage.domain.events import Event
from commonage.domain.principals import Principal, Scope
from commonage.wire.queries import EventsQuery
from commonage.wire.workloads import EventPage

router = APIRouter(route_class=Guarded, tags=["events"])

LastEventId = Annotated[
    int | None,
    Header(alias="Last-Event-ID", ge=0, le=2**53 - 1, description="Have the stream begin behind this event."),
]


@router.get(
    "/events",
    summary="What has happened to your workloads",
    response_model=EventPage,
    responses={
        **problems("invalid-parameter", "unknown-field", "too-many-streams"),
        200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}},
    },
)
async def events(
    request: Request, query: Annotated[EventsQuery, Query()], last_event_id: LastEventId = None
) -> Response:
    """A page, oldest first; with `Accept: text/event-stream` a stream that goes on as things happen.

    Each event of the stream carries its number as id; a client that comes back with `Last-Event-ID` misses nothing.
    """
    return await answer_events(request, query, last_event_id, None)


def wants_stream(request: Request) -> bool:
    """True if the caller asks for server-sent events."""
    return EVENT_STREAM in request.headers.get("accept", "").lower()


async def answer_events(
    request: Request, query: EventsQuery, last_event_id: int | None, workload_id: str | None
) -> Response:
    """A page or a stream of everybody's events that the caller may see, or of one workload's."""
    at, who = context(request), caller(request)
    who.need(Scope.READ)
    after = query.after if last_event_id is None else last_event_id
    if wants_stream(request):
        hold = partial(at.hold, Connection.STREAM, request, who)
        return at.streams.events(_stream(at, who, after, workload_id), hold)
    found = await at.control.look.events(who, after=after or 0, workload_id=workload_id, limit=query.limit)
    more = str(found[-1].seq) if len(found) == query.limit else None
    return answer(EventPage(items=[encode.event(one) for one in found], next_cursor=more))


async def _stream(at: Context, who: Principal, after: int | None, workload_id: str | None) -> AsyncGenerator[bytes]:
    if after is None:
        # Tell where it begins, so that a client whose connection breaks before the first event misses nothing either.
        after = await at.control.store.last_event_seq()
        yield f"id: {after}\n\n".encode()
    async for event in at.control.look.follow(who, after=after, workload_id=workload_id):
        yield _framed(event)


# Whoever follows all gets the same bytes: encoded once for all of them, as long as they keep up.
@lru_cache(maxsize=1024)
def _framed(event: Event) -> bytes:
    return sse(encode.event(event).model_dump_json(), event=event.kind.value, id_=event.seq)
