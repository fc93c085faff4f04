"""HTTP for both clients: connection settings, and the errors made from failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from commonage import __version__
from commonage.sdk.calls import JSON, STREAM, STREAM_TIMEOUT_S, Call, address, workload_path
from commonage.sdk.errors import ApiError, Unreachable, Untrusted
from commonage.wire.events import EventOut, LogLineOut

# A line of output may be long; this limits the memory that a broken server could make the client use.
MAX_EVENT_BYTES = 16 * 1024 * 1024
_NOT_REACHED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


@dataclass(frozen=True, slots=True)
class Place:
    """A WebSocket's address and headers. `why` asks by plain HTTP for the reason if the server refuses it."""

    url: str
    headers: Mapping[str, str]
    why: Callable[[], Awaitable[ApiError]]


def options(url: str, token: str | None, timeout_s: float) -> dict[str, Any]:
    """The settings of an httpx2 client. Without a `token`, only calls that need none succeed."""
    headers = {"Accept": JSON, "User-Agent": f"commonage/{__version__}"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return {
        "base_url": address(url),
        "headers": headers,
        # A session is answered only after the hub has accepted it, which may take it ten seconds.
        "timeout": httpx2.Timeout(timeout_s, connect=5.0),
        "limits": httpx2.Limits(max_connections=200, max_keepalive_connections=50),
    }


def request(call: Call[Any]) -> dict[str, Any]:
    """The arguments of httpx2's `request` for this call."""
    content = call.content
    headers = {} if content is None else {"Content-Type": JSON}
    return {
        "method": call.method,
        "url": call.path,
        "params": dict(call.query),
        "content": content,
        "headers": headers,
    }


def stream_request(path: str, query: dict[str, Any], last_id: str | None) -> dict[str, Any]:
    """The arguments of httpx2's `stream` for a stream that resumes after the event `last_id`."""
    headers = {"Accept": STREAM}
    if last_id is not None:
        headers["Last-Event-ID"] = last_id
    timeout = httpx2.Timeout(10.0, read=STREAM_TIMEOUT_S)
    return {"method": "GET", "url": path, "params": query, "headers": headers, "timeout": timeout}


def events_of(response: httpx2.Response) -> httpx2.EventSource:
    """The events of a streamed answer."""
    return httpx2.EventSource(response, max_event_size=MAX_EVENT_BYTES)


def failure(error: httpx2.TransportError, where: httpx2.URL) -> tuple[ApiError, bool]:
    """The failure as an ApiError, and whether the server may have received the request."""
    reached = not isinstance(error, _NOT_REACHED)
    what = "broke off" if reached else "cannot be reached"
    reason = str(error) or type(error).__name__
    place = f"{where.scheme}://{where.netloc.decode()}"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        why = (
            f"the certificate of {place} is not trusted here ({reason}); have this machine trust the authority that "
            "signed it, or name a file with its certificate in SSL_CERT_FILE"
        )
        return Untrusted(why), reached
    return Unreachable(f"the control plane at {place} {what} ({reason}); is it running?"), reached


def broke_off() -> ApiError:
    """The error for a stream that ended without the server's `end`."""
    return Unreachable("the control plane ended the stream")


def error_in(event: httpx2.ServerSentEvent) -> ApiError:
    """The error that a stream ends with."""
    problem = event.json()
    status = problem.get("status", 0) if isinstance(problem, dict) else 0
    return ApiError.of(status, event.data.encode())


def log_line(event: httpx2.ServerSentEvent) -> LogLineOut | None:
    """The line in an event of a log stream, if it carries one."""
    return LogLineOut.model_validate_json(event.data) if event.event == "line" else None


def event_in(event: httpx2.ServerSentEvent) -> EventOut | None:
    """The event in a message of the event stream, if it carries one."""
    return EventOut.model_validate_json(event.data) if event.event != "end" else None


def place_of(http: httpx2.Client | httpx2.AsyncClient, workload_id: str) -> Place:
    """The WebSocket that runs commands in this workload."""
    path = workload_path(workload_id, "exec")

    async def why() -> ApiError:
        try:
            if isinstance(http, httpx2.AsyncClient):
                return why_not(await http.get(path))
            return why_not(await asyncio.to_thread(http.get, path))
        except httpx2.TransportError as error:
            return failure(error, http.base_url)[0]

    headers = {name: http.headers[name] for name in ("User-Agent", "Authorization") if name in http.headers}
    return Place(f"{str(http.base_url).rstrip('/')}{path}", headers, why)


def why_not(response: httpx2.Response) -> ApiError:
    """The reason for a refused WebSocket, from the answer to plain HTTP at the same address."""
    error = ApiError.of(response.status_code, response.content)
    if error.code == "upgrade-required":
        return ApiError(
            "no-websocket", "no WebSocket comes through to the control plane: a proxy before it must pass them on"
        )
    return error
