"""The workload gateway over real sockets, between a container's words and a hub that tells what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from commonage.server.processes.ports import listen
from commonage.server.web import Web
from commonage.server.workload_gateway import WorkloadGateway
from commonage.wire.hub import API_PATH

pytestmark = pytest.mark.anyio
HERE = "127.0.0.1"


async def tell(request: Request) -> JSONResponse:
    """The request as it arrived."""
    return JSONResponse(
        {
            "path": request.scope["raw_path"].decode(),
            "query": request.scope["query_string"].decode(),
            "client": request.client.host if request.client else None,
            "scheme": request.url.scheme,
            "headers": dict(request.headers),
            "body": (await request.body()).decode(),
        }
    )


async def stream(_: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.sleep(60)

    return StreamingResponse(parts(), media_type="text/event-stream")


def telling() -> Starlette:
    methods = ["GET", "POST", "DELETE"]
    return Starlette(routes=[Route("/hub/api/progress", stream), Route("/{path:path}", tell, methods=methods)])


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of the gateway, before an API and a hub that return what they received."""
    sockets = [listen(HERE, 0, "") for _ in range(2)]
    hub_url = f"http://{HERE}:{sockets[0].getsockname()[1]}"
    gateway = WorkloadGateway(telling(), hub_url)
    hub, web = Web(telling(), sockets[0]), Web(gateway, sockets[1], behind_proxy=False)
    hub.start()
    web.start()
    yield sockets[1].getsockname()[1]
    await web.stop()
    await hub.stop()
    await gateway.close()


async def ask(port: int, request: str, body: bytes = b"", *headers: str) -> tuple[int, Any]:
    """As a container may say it: byte for byte."""
    reader, writer = await asyncio.open_connection(HERE, port)
    lines = [f"{request} HTTP/1.1", "Host: x", "Connection: close", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    async with asyncio.timeout(20):
        said = await reader.read()
    writer.close()
    head, _, content = said.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        content = content.partition(b"\r\n")[2].rpartition(b"\r\n0\r\n")[0]
    return int(head.split()[1]), json.loads(content) if content.startswith(b"{") else content


async def test_the_api_of_both_is_reached(port: int) -> None:
    status, said = await ask(port, f"GET {API_PATH}/workloads?a=1")
    assert (status, said["path"], said["query"]) == (200, f"{API_PATH}/workloads", "a=1")
    status, said = await ask(port, "POST /hub/api/users/a%2Fb/activity?x=%20y", b'{"a": 1}', "Authorization: token t")
    assert (status, said["path"], said["query"]) == (200, "/hub/api/users/a%2Fb/activity", "x=%20y")
    assert (said["body"], said["headers"]["authorization"]) == ('{"a": 1}', "token t")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/services/commonage/metrics",
        "/services/commonage/",
        "/services/commonage/join",
        "/hub/login",
        "/hub/apis",
        "/hub/api/../login",
        "/hub/api/%2e%2e/login",
        "/hub/api/..%2flogin",
        "/hub/api/x%5c..%5c..%5clogin",
        f"{API_PATH}/../../metrics",
        "/%68ub/api",
        "//hub/api",
        "http://other/services/commonage/metrics",
    ],
)
async def test_all_else_is_not(port: int, path: str) -> None:
    status, said = await ask(port, f"GET {path}")
    assert status == 404
    assert said["code"] == "not-found"


async def test_nothing_that_is_said_about_proxies_is_believed(port: int) -> None:
    lies = (
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: evil.example",
        "X-Real-IP: 127.0.0.1",
        "Forwarded: for=127.0.0.1;proto=https",
        "Via: 1.1 proxy",
    )
    _, said = await ask(port, f"GET {API_PATH}/x", b"", *lies)
    assert (said["client"], said["scheme"]) == (None, "http")
    assert not {name for name in said["headers"] if "forward" in name or name in ("via", "x-real-ip")}
    _, said = await ask(port, "GET /hub/api/x", b"", *lies, "Cookie: jupyterhub-session-id=stolen")
    assert said["scheme"] == "http"
    assert said["headers"].keys() <= {"host", "accept", "accept-encoding", "user-agent", "connection"}


async def test_a_web_socket_leads_nowhere_but_to_the_api(port: int) -> None:
    upgrade = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
    for path in ("/services/commonage/metrics", "/hub/api"):
        lines = [f"GET {path} HTTP/1.1", "Host: x", "Connection: Upgrade", *upgrade, "", ""]
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write("\r\n".join(lines).encode())
        assert (await reader.readline()).split()[1] == b"403"
        writer.close()


async def test_a_stream_of_the_hub_comes_as_it_is_made(port: int) -> None:
    reader, writer = await asyncio.open_connection(HERE, port)
    writer.write(b"GET /hub/api/progress HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(20):
        await reader.readuntil(b"data: 1\n\n")
    writer.close()


async def test_a_hub_that_is_away_is_said() -> None:
    unused = listen(HERE, 0, "")
    hub_url = f"http://{HERE}:{unused.getsockname()[1]}"
    unused.close()
    listening = listen(HERE, 0, "")
    gateway = WorkloadGateway(telling(), hub_url)
    web = Web(gateway, listening, behind_proxy=False)
    web.start()
    status, said = await ask(listening.getsockname()[1], "GET /hub/api/")
    assert (status, said["code"], said["retryable"]) == (503, "unavailable", True)
    await web.stop()
    await gateway.close()


@pytest.mark.parametrize("path", ["/hub/api/\xff\xfe", "/hub/api/%00%ff", "/hub/api/" + "a" * 30_000])
async def test_strange_paths_break_nothing(port: int, path: str) -> None:
    status, _ = await ask(port, f"GET {path}")
    assert status in (200, 400, 404)
    assert (await ask(port, "GET /hub/api/x"))[0] == 200


async def test_a_request_that_ends_in_the_middle_breaks_nothing(port: int) -> None:
    for sent in (b"", b"GET", b"POST /hub/api/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"):
        _, writer = await asyncio.open_connection(HERE, port)
        writer.write(sent)
        await writer.drain()
        writer.close()
    assert (await ask(port, "GET /hub/api/x"))[0] == 200


@pytest.mark.parametrize(
    "framing", ["Transfer-Encoding: chunked\r\nContent-Length: 3", "Content-Length: 3\r\nContent-Length: 30"]
)
async def test_a_body_of_two_lengths_smuggles_nothing(port: int, framing: str) -> None:
    smuggled = b"0\r\n\r\nGET /hub/login HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection(HERE, port)
    writer.write(f"POST /hub/api/x HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode() + smuggled)
    async with asyncio.timeout(20):
        said = await reader.read()
    assert b'"path":"/hub/login"' not in said
    writer.close()
