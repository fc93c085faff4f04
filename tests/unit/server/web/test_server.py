"""The limit of headers, and bodies that come in large pieces."""

import asyncio
import socket
from typing import Any

import pytest

from commonage.server.web.server import Web

pytestmark = pytest.mark.anyio
BODY = 3 * 1024 * 1024 + 200_000  # the last piece is large, too


async def sizes(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with the number of bytes in the body."""
    received, more = 0, True
    while more:
        message = await receive()
        received, more = received + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"7")]})
    await send({"type": "http.response.body", "body": f"{received:07}".encode()})


async def test_large_bodies_on_one_connection_do_not_count_as_headers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        web = Web(sizes, listening)
        web.start()
        try:
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            for _ in range(20):
                writer.write(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY}\r\n\r\n".encode() + bytes(BODY))
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
                assert head.startswith(b"HTTP/1.1 200 "), head
                assert int(await reader.readexactly(7)) == BODY
            writer.close()
        finally:
            await web.stop()
