"""What both clients need of HTTP: how they connect, and which failures mean what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from commonage import __version__
from commonage.sdk.calls import JSON, SILENCE_S, STREAM, Call, address
from commonage.sdk.errors import ApiError, Unreachable, Untrusted
from commonage.wire.workloads import EventOut, LogLineOut

# A line of output may be long; this bounds what a broken server could make us hold.
MAX_EVENT_BYTES = 16 * 1024 * 1024
_NOT_REACHED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


@dataclass(frozen=True, slots=True)
class Place:
    """Where to connect by WebSocket, with which headers. `why` asks by plain HTTP why that is refused."""

    url: str
    headers: Mapping[str, str]
    why: Callable[[], Awaitable[ApiError]]


def options(url: str, token: str | None, timeout_s: float) -> dict[str, Any]:
    """The settings of an httpx2 client. `token` None: only what needs none can be called."""
    headers = {"Accept": JSON, "User-Agent": f"commonage/{__version__}"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return {
        "base_url": address(url),
        "headers": headers,
        # A session is only answered once the hub has taken it up, which may take it ten seconds.
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
    """The arguments of httpx2's `stream` for a stream taken up behind the event `last_id`."""
    headers = {"Accept": STREAM}
    if last_id is not None:
        headers["Last-Event-ID"] = last_id
    timeout = httpx2.Timeout(10.0, read=SILENCE_S)
    return {"method": "GET", "url": path, "params": query, "headers": headers, "timeout": timeout}


def events_of(response: httpx2.Response) -> httpx2.EventSource:
    """The events of an answer that is a stream."""
    return httpx2.EventSource(response, max_event_size=MAX_EVENT_BYTES)


def failure(error: httpx2.TransportError, where: httpx2.URL) -> tuple[ApiError, bool]:
    """What happened, as an error of ours, and whether the server may have seen the request."""
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
    """A stream that ended although its server had not said so."""
    return Unreachable("the control plane ended the stream")


def told(event: httpx2.ServerSentEvent) -> ApiError:
    """The error that a stream ends with."""
    problem = event.json()
    status = problem.get("status", 0) if isinstance(problem, dict) else 0
    return ApiError.of(status, event.data.encode())


def log_line(event: httpx2.ServerSentEvent) -> LogLineOut | None:
    """The line an event of a log's stream carries, if it does."""
    return LogLineOut.model_validate_json(event.data) if event.event == "line" else None


def happening(event: httpx2.ServerSentEvent) -> EventOut | None:
    """The event that an event of the events' stream carries, if it does."""
    return EventOut.model_validate_json(event.data) if event.event != "end" else None


def place_of(http: httpx2.Client | httpx2.AsyncClient, path: str, why: Callable[[], Awaitable[ApiError]]) -> Place:
    """Where this client's server takes the WebSocket of this path."""
    headers = {name: http.headers[name] for name in ("User-Agent", "Authorization") if name in http.headers}
    return Place(f"{str(http.base_url).rstrip('/')}{path}", headers, why)


def why_not(response: httpx2.Response) -> ApiError:
    """Why a WebSocket is refused, by what plain HTTP gets at the same place."""
    error = ApiError.of(response.status_code, response.content)
    if error.code == "upgrade-required":
        return ApiError(
            "no-websocket", "no WebSocket comes through to the control plane: a proxy before it must pass them on"
        )
    return error
