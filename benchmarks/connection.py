"""A minimal HTTP/1.1 client, so that the cost of the client does not dominate on a small machine."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from benchmarks.report import BenchmarkError
from commonage.wire.hub import API_PATH


class Connection:
    """One kept-alive connection to the API; one request at a time."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=1 << 26)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """(status, body) of one request under the API's path."""
        head = f"{method} {API_PATH}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n"
        kind = "Content-Type: application/json\r\n\r\n" if body else "\r\n"
        self._writer.write(head.encode() + kind.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(answer[0].split(" ", 2)[1])
        headers = dict(line.lower().split(": ", 1) for line in answer[1:] if ": " in line)
        return status, await self._body(headers)

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self._reader.readexactly(int(headers.get("content-length", "0")))
        parts = []
        while size := int(await self._reader.readline(), 16):
            parts.append(await self._reader.readexactly(size))
            await self._reader.readline()
        await self._reader.readline()
        return b"".join(parts)

    async def json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of a successful answer. Raises BenchmarkError otherwise."""
        status, answer = await self.call(method, path, json.dumps(body).encode() if body is not None else b"")
        if not 200 <= status < 300:
            raise BenchmarkError(f"{method} {path}: {status} {answer.decode(errors='replace')[:500]}")
        return json.loads(answer)
