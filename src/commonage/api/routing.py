"""Shared by all routes: the context, authentication, reading a body, writing a response, documented problems."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from commonage.api.auth import Auth, FailedTokens
from commonage.api.problems import MEDIA_TYPE, PROBLEMS
from commonage.api.streams import Streams
from commonage.control.access import Access, access_of
from commonage.control.control import Control
from commonage.control.request_limits import Connection
from commonage.domain.errors import InvalidInput
from commonage.domain.permissions import OWN, Permission
from commonage.domain.principals import Principal
from commonage.ports.registry import Registry
from commonage.wire.reasons import Problem

_NO_STORE = ("Cache-Control", "no-store")
_PRINCIPAL = "commonage-principal"

# Problems of every route, of routes that read a body, and of routes with query parameters.
_OF_EVERY_ROUTE = (
    "unauthenticated",
    "scope-missing",
    "permission-missing",
    "too-many-requests",
    "internal",
    "unavailable",
)
BODY = ("invalid-json", "invalid-encoding", "unsupported-media-type", "too-large", "unknown-field", "invalid-input")
QUERY = ("invalid-parameter", "unknown-field")

Message = TypeVar("Message", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Services:
    """Services that an installation may lack."""

    images: Registry | None = None


NO_SERVICES = Services()


@dataclass(slots=True)
class Context:
    """Dependencies of the routes. One per application, at `app.state.context`."""

    control: Control
    auth: Auth
    registry: Registry | None = None
    streams: Streams = field(default_factory=Streams)
    failed: FailedTokens = field(init=False)

    def __post_init__(self) -> None:
        self.failed = FailedTokens(self.control.clock, self.control.settings.limits.failed_tokens_per_s)

    async def identify(self, connection: HTTPConnection, header: str | None = None) -> Principal:
        """The caller, by the Authorization header, or by `header` in its place.

        Raises Unauthenticated, Forbidden, Unavailable, TooMany. The hub's spawner acts for all users, without limits.
        """
        header = header or connection.headers.get("authorization")
        with self.failed.counted(header, client_address(connection)):
            principal = await self.auth.identify(header)
        if not self.auth.is_spawner(principal):
            self.control.requests.take(principal.name)
        return principal

    def hold(
        self, kind: Connection, connection: HTTPConnection, principal: Principal
    ) -> AbstractAsyncContextManager[None]:
        """Counts a long connection, and cancels it when its token is no longer valid. See `Connections`."""
        if self.auth.is_spawner(principal):
            return nullcontext()
        header = connection.headers.get("authorization")
        return self.control.connections.hold(kind, principal, lambda: self.auth.identify(header))


class BadEncoding(InvalidInput):
    code = "invalid-encoding"


class UnsupportedMediaType(InvalidInput):
    code = "unsupported-media-type"


def context(request: HTTPConnection) -> Context:
    return cast(Context, request.app.state.context)


def client_address(connection: HTTPConnection) -> str:
    """The client's address; behind the proxy, the one that the proxy reports."""
    return connection.client.host if connection.client is not None else "an unknown address"


def caller(request: Request) -> Principal:
    """The authenticated principal of a `Guarded` route."""
    return cast(Principal, request.scope[_PRINCIPAL])


def access_for(request: Request) -> Access:
    """The permissions of the caller of a `Guarded` route."""
    return access_of(caller(request), context(request).control.settings)


async def expiry(request: Request) -> float | None:
    """When the caller's token expires, in unix seconds; None if never. Raises Unauthenticated, Unavailable."""
    return await context(request).auth.expires_at(request.headers.get("authorization"), caller(request))


async def need_lifetime(request: Request, for_s: int) -> None:
    """Raise InvalidInput if a join token with this lifetime would outlive the caller's token."""
    latest, now = await expiry(request), context(request).control.clock.now()
    if latest is not None and now + for_s > latest:
        raise InvalidInput(
            f"A join token cannot last {for_s} seconds: the token of this request expires in {int(latest - now)} "
            "seconds. Request a shorter lifetime, or use another token.",
            field="for_s",
        )


_ASKS = "asks_permission"
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def asks(permission: Permission | None) -> Callable[[Endpoint], Endpoint]:
    """Declare the permission of a route; None: any valid token is enough, or the route is public.

    A `Guarded` route refuses callers who cannot have the permission in any tenant, before it reads the request. The
    use case decides about the tenant or the owner.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ASKS, permission)
        return endpoint

    return declare


def asked_permission(endpoint: Callable[..., Any]) -> Permission | None:
    """The permission that `asks` declared. Raises AttributeError if nothing was declared."""
    return cast(Permission | None, getattr(endpoint, _ASKS))


def _check(permission: Permission | None, access: Access) -> None:
    if permission is None:
        return
    if permission in OWN:
        access.principal.need(OWN[permission])
    elif permission.of_platform:
        access.need(permission)
    else:
        access.principal.need(permission.scope)


class Guarded(APIRoute):
    """A route that needs a token, which is checked before the request is read. The answer is not cached."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler, which is faster than a dependency."""
        handle, permission = super().get_route_handler(), asked_permission(self.endpoint)

        async def guarded(request: Request) -> Response:
            request.scope[_PRINCIPAL] = await context(request).identify(request)
            _check(permission, access_for(request))
            response = await handle(request)
            response.headers.setdefault(*_NO_STORE)
            return response

        return guarded


async def read_json(request: Request, message: type[Message], *, optional: bool = False) -> Message:
    """The body as this message; `optional`: an empty body is the message without fields.

    Raises TooLarge (see `app.BodyLimit`), BadEncoding, NotJson, and pydantic's ValidationError.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaType(f"the body must be sent as application/json, not {kind[:60]!r}")
    body = await request.body()
    if optional and not body:
        return message()
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadEncoding(f"the body is not UTF-8: byte {error.start} is invalid") from None
    # Strict: a string such as "5" is not a number.
    return message.model_validate_json(body, strict=True)


def answer(message: BaseModel, status: int = 200) -> Response:
    """A JSON response, for routes with several statuses; other routes return their message."""
    return Response(message.model_dump_json().encode(), status, dict([_NO_STORE]), "application/json")


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: these problem codes, and those of every route."""
    by_status: dict[int, list[str]] = {}
    for code in (*_OF_EVERY_ROUTE, *codes):
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
