"""HTTP for both clients: connection settings, the errors made from failures, and waiting for a workload."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2

from commonage import __version__, tracing
from commonage.sdk.calls import JSON, STREAM, STREAM_TIMEOUT_S, Call, address, workload_path
from commonage.sdk.errors import ApiError, Unreachable, Untrusted
from commonage.wire.workloads import TERMINAL_STATES, WorkloadOut

if TYPE_CHECKING:
    from commonage.sdk.asynchronous import AsyncClient
    from commonage.sdk.synchronous import Client

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
    content = None if call.body is None else call.body.model_dump_json(exclude_unset=True).encode()
    headers = tracing.headers() if content is None else {"Content-Type": JSON, **tracing.headers()}
    if call.version:
        headers["If-Match"] = call.version
    return {"method": call.method, "url": call.path, "params": call.query, "content": content, "headers": headers}


def stream_request(path: str, query: dict[str, Any], last_id: str | None) -> dict[str, Any]:
    """The arguments of httpx2's `stream` for a stream that resumes after the event `last_id`."""
    headers = {"Accept": STREAM}
    if last_id is not None:
        headers["Last-Event-ID"] = last_id
    timeout = httpx2.Timeout(10.0, read=STREAM_TIMEOUT_S)
    return {"method": "GET", "url": path, "params": query, "headers": headers, "timeout": timeout}


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


def error_in(event: httpx2.ServerSentEvent) -> ApiError:
    """The error that a stream ends with."""
    problem = event.json()
    status = problem.get("status", 0) if isinstance(problem, dict) else 0
    return ApiError.of(status, event.data.encode())


def place_of(http: httpx2.Client | httpx2.AsyncClient, workload_id: str) -> Place:
    """The WebSocket that runs commands in this workload."""
    path = workload_path(workload_id, "exec")

    async def why() -> ApiError:
        try:
            if isinstance(http, httpx2.AsyncClient):
                response = await http.get(path)
            else:
                response = await asyncio.to_thread(http.get, path)
        except httpx2.TransportError as broken:
            return failure(broken, http.base_url)[0]
        error = ApiError.of(response.status_code, response.content)
        if error.code != "upgrade-required":
            return error
        return ApiError(
            "no-websocket", "WebSockets do not reach the control plane: the proxy in front of it must forward them"
        )

    headers = {name: http.headers[name] for name in ("User-Agent", "Authorization") if name in http.headers}
    return Place(f"{str(http.base_url).rstrip('/')}{path}", headers, why)


# The asynchronous client follows events; the blocking one polls, so that it can time out.


async def async_wait(client: AsyncClient, workload_id: str, timeout_s: float | None) -> WorkloadOut:
    async with asyncio.timeout(timeout_s):
        workload = await client.workload(workload_id)
        if workload.state in TERMINAL_STATES:
            return workload
        async with aclosing(client.events(workload_id, after=0)) as events:
            async for event in events:
                if event.state in TERMINAL_STATES:
                    workload = await client.workload(workload_id)
                if workload.state in TERMINAL_STATES:
                    break
        return workload


def wait(client: Client, workload_id: str, timeout_s: float | None) -> WorkloadOut:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause = 0.05
    while (workload := client.workload(workload_id)).state not in TERMINAL_STATES:
        if deadline is not None and time.monotonic() + pause > deadline:
            raise TimeoutError(f"workload {workload_id} is still {workload.state} after {timeout_s:g} s")
        time.sleep(pause)
        pause = min(0.5, pause * 1.5)
    return workload
