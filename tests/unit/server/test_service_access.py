"""The proxy's rules for services."""

import asyncio
import select
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from commonage.domain.services import ServiceRoute
from commonage.server.proxy_rules import RulesFile
from commonage.server.service_access import TraefikServices

ID = "0123456789abc"
ROUTES = (ServiceRoute(ID, "http://10.0.0.2:8888"),)


def rules(session_origin: str) -> Any:
    put = RulesFile(Path("/rules/services.yaml")).put
    access = TraefikServices(put, "http://127.0.0.1:1", ("http",), "https://hub.org", session_origin)
    found = access.configuration(ROUTES)["http"]
    return found


def test_a_service_has_a_host_name_and_keeps_its_paths() -> None:
    found = rules("https://*.hub.org")
    router = found["routers"][f"service-{ID}"]
    assert router["rule"] == f"Host(`service--{ID}.hub.org`)"
    assert router["middlewares"] == [f"service-{ID}-access", "service-headers"]
    assert found["middlewares"]["service-ended"]["redirectRegex"]["replacement"].startswith("https://hub.org/")


def test_without_host_names_a_service_has_a_path_that_is_removed() -> None:
    found = rules("")
    router = found["routers"][f"service-{ID}"]
    assert router["rule"] == f"PathPrefix(`/service/{ID}/`)"
    assert found["middlewares"][f"service-{ID}-prefix"] == {"stripPrefix": {"prefixes": [f"/service/{ID}"]}}


def test_the_question_names_the_service_itself_and_trusts_no_header_of_the_client() -> None:
    asked = rules("https://*.hub.org")["middlewares"][f"service-{ID}-access"]["forwardAuth"]
    assert asked["address"] == f"http://127.0.0.1:1/services/commonage/service-access/{ID}"
    assert asked["trustForwardHeader"] is False
    assert asked["authResponseHeaders"] == ["Cookie", "Authorization", "X-Commonage-User"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("begin", "more"), [(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"), (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n")]
)
async def test_a_service_that_sends_a_little_without_end_does_not_hold_its_check(begin: bytes, more: bytes) -> None:
    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(begin)
            while True:
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(0.05)

    access = TraefikServices(
        RulesFile(Path("/rules/services.yaml")).put, "http://127.0.0.1:1", ("http",), None, "", within_s=0.3
    )
    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(60):
            assert await access.failure(url, "") == "no answer within 0.3 s"
    finally:
        server.close()


def checker() -> TraefikServices:
    return TraefikServices(RulesFile(Path("/rules/services.yaml")).put, "http://127.0.0.1:1", ("http",), None, "")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"302 Found\r\nLocation: http://xn--a.b_c/", None),
        (b"302 Found\r\nLocation: http://[", None),
        (b"200 OK\r\nSet-Cookie: a=\xff; Domain=.", None),
        (b"200 OK\r\nContent-Type: \xff\xfe", None),
        (b"503 Not yet", "status 503"),
    ],
)
async def test_headers_that_a_service_chooses_are_not_interpreted(answer: bytes, why: str | None) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + answer + b"\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        assert await checker().failure(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/health") == why
    finally:
        server.close()


def test_check_fails_when_the_connection_is_reset_while_it_opens() -> None:
    """With the event loop of the server: it then has a connection without a socket."""

    async def look(access: TraefikServices, turns: int) -> str | None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            looking = asyncio.create_task(access.failure(f"http://127.0.0.1:{listener.getsockname()[1]}", ""))
            while not select.select([listener], [], [], 0)[0]:  # noqa: ASYNC110 - the kernel sets no event
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
        return await looking

    async def look_often() -> set[str | None]:
        access = checker()
        return {await look(access, turns) for _ in range(20) for turns in range(4)}

    assert None not in uvloop.run(look_often())
