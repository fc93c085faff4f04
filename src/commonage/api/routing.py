"""What all routes share: the way to control, the guard at the door, reading a body, writing an answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from commonage.api.auth import Auth
from commonage.api.failed_tokens import FailedTokens
from commonage.api.problems import MEDIA_TYPE, PROBLEMS
from commonage.api.streams import Streams
from commonage.control.control import Control
from commonage.control.tenants.connections import Connection
from commonage.domain.errors import InvalidInput
from commonage.domain.principals import Principal
from commonage.ports.joining import Joining
from commonage.ports.registry import Registry
from commonage.wire.workloads import Problem

_NO_STORE = {"Cache-Control": "no-store"}
_WHO = "commonage.who"

Message = TypeVar("Message", bound=BaseModel)


@dataclass(slots=True)
class Context:
    """What the routes stand on. One for each application, at `app.state.context`."""

    control: Control
    auth: Auth
    joining: Joining | None = None
    registry: Registry | None = None
    streams: Streams = field(default_factory=Streams)
    failed: FailedTokens = field(init=False)

    def __post_init__(self) -> None:
        self.failed = FailedTokens(self.control.clock, self.control.settings.limits.failed_tokens_per_s)

    async def identify(self, connection: HTTPConnection, header: str | None = None) -> Principal:
        """Who asks, by the Authorization header (or this one in its place).

        Raises Unauthenticated, Forbidden, Unavailable, TooMany. The hub's spawner asks for everybody, without limits.
        """
        header = header or connection.headers.get("authorization")
        with self.failed.counted(header, client_address(connection)):
            who = await self.auth.identify(header)
        if not self.auth.is_spawner(who):
            self.control.requests.take(who.name)
        return who

    def hold(self, kind: Connection, connection: HTTPConnection, who: Principal) -> AbstractAsyncContextManager[None]:
        """The connection is a long one: counted, and cancelled when its token no longer holds. See `Connections`."""
        if self.auth.is_spawner(who):
            return nullcontext()
        header = connection.headers.get("authorization")
        return self.control.connections.hold(kind, who, lambda: self.auth.identify(header))


class BadEncoding(InvalidInput):
    """A body that is not UTF-8."""

    code = "invalid-encoding"


class NotJson(InvalidInput):
    """A body that is not announced as JSON."""

    code = "unsupported-media-type"


def context(request: HTTPConnection) -> Context:
    """Where this request came in."""
    return cast(Context, request.app.state.context)


def client_address(connection: HTTPConnection) -> str:
    """The address that it comes from; the proxy's word where it comes from the proxy."""
    return connection.client.host if connection.client is not None else "an unknown address"


def caller(request: Request) -> Principal:
    """Who asks; set by Guarded."""
    return cast(Principal, request.scope[_WHO])


async def expiry(request: Request) -> float | None:
    """When the caller's token expires, in unix seconds; None if never. Raises Unauthenticated, Unavailable."""
    return await context(request).auth.expires_at(request.headers.get("authorization"), caller(request))


class Guarded(APIRoute):
    """A route for those who are known. The token is looked at first, before anything that was asked."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler; a dependency would do the same more slowly."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            request.scope[_WHO] = await context(request).identify(request)
            return await handle(request)

        return guarded


async def read_json(request: Request, message: type[Message], *, optional: bool = False) -> Message:
    """The body as this message; `optional`: an empty body stands for one without fields.

    Raises TooLarge (see `body_limit`), BadEncoding, NotJson, and pydantic's ValidationError.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise NotJson(f"the body must be sent as application/json, not {kind[:60]!r}")
    body = await request.body()
    if optional and not body:
        return message()
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadEncoding(f"the body is not UTF-8: byte {error.start} cannot be read") from None
    # Strict: JSON has its own types, "5" is not a number.
    return message.model_validate_json(body, strict=True)


def answer(message: BaseModel, status: int = 200) -> Response:
    """This message as JSON."""
    return Response(message.model_dump_json().encode(), status, _NO_STORE, "application/json")


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these codes, besides those that every route may."""
    by_status: dict[int, list[str]] = {}
    for code in ("unauthenticated", "scope-missing", "too-many-requests", "internal", "unavailable", *codes):
        by_status.setdefault(PROBLEMS[code].status, []).append(code)
    return {status: _documented(status, found) for status, found in by_status.items()}


def _documented(status: int, codes: list[str]) -> dict[str, Any]:
    examples = {code: {"summary": PROBLEMS[code].meaning, "value": _example(code)} for code in codes}
    schema = {"$ref": "#/components/schemas/Problem"}
    found: dict[str, Any] = {
        "description": "; ".join(f"`{code}`" for code in codes),
        "content": {MEDIA_TYPE: {"schema": schema, "examples": examples}},
    }
    if status == 401:
        found["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    if status in (429, 503):
        found["headers"] = {"Retry-After": {"schema": {"type": "string"}}}
    return found


def _example(code: str) -> Mapping[str, Any]:
    kind = PROBLEMS[code]
    made = Problem(
        type=f"urn:commonage:problem:{code}", title=kind.title, status=kind.status, detail=kind.meaning, code=code
    )
    return made.model_dump(exclude_none=True)


def body_of(message: type[BaseModel], example: Mapping[str, Any], *, required: bool = True) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads this message with `read_json`."""
    schema = {"$ref": f"#/components/schemas/{message.__name__}"}
    content = {"application/json": {"schema": schema, "example": dict(example)}}
    return {"requestBody": {"required": required, "content": content}}
