"""Cells and downloads of a Jupyter server that is reached in two ways, alternately, so that other load affects both
equally.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from benchmarks.kernel import Kernel
from benchmarks.report import BenchmarkError

_READ_BYTES = 1024 * 1024
FILE = "download.bin"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to a Jupyter server: its port on this machine, the path below which it serves, and the Host header."""

    port: int
    path: str
    host: str
    token: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Host": self.host, "Authorization": f"token {self.token}"}


@asynccontextmanager
async def kernel(way: Way) -> AsyncIterator[Kernel]:
    """A new kernel, reached by this way. Raises BenchmarkError."""
    async with aiohttp.ClientSession(headers=way.headers) as session:
        async with session.post(f"{way.url}api/kernels", json={"name": "python3"}) as made:
            if made.status != 201:
                raise BenchmarkError(f"no kernel: {made.status} {(await made.text())[:500]}")
            name = (await made.json())["id"]
        async with session.ws_connect(f"{way.url}api/kernels/{name}/channels", max_msg_size=1 << 26) as channel:
            yield Kernel(channel)
        async with session.delete(f"{way.url}api/kernels/{name}"):
            pass


async def cells(ways: Sequence[Way], count: int) -> list[list[float]]:
    """Seconds that each of `count` cells took, by way: each way has a kernel of its own, and they take turns."""
    code = "print(1 + 1)"
    taken: list[list[float]] = [[] for _ in ways]
    async with _kernels(ways) as kernels:
        for each in kernels:
            await each.run(code)  # the first one of a kernel imports
        for _ in range(count):
            for number, each in enumerate(kernels):
                began = time.perf_counter()
                await each.run(code)
                taken[number].append(time.perf_counter() - began)
    return taken


@asynccontextmanager
async def _kernels(ways: Sequence[Way]) -> AsyncIterator[list[Kernel]]:
    if not ways:
        yield []
        return
    async with kernel(ways[0]) as first, _kernels(ways[1:]) as rest:
        yield [first, *rest]


async def make_file(way: Way, size: int) -> None:
    """Have the server's user write the file that `download` fetches."""
    async with kernel(way) as one:
        await one.run(f"import os; open({FILE!r}, 'wb').write(os.urandom({size}))")


def download(way: Way) -> tuple[int, float]:
    """(bytes, seconds) of a download of the file. Raises BenchmarkError. Blocks."""
    connection = http.client.HTTPConnection("127.0.0.1", way.port, timeout=300)
    buffer, size = bytearray(_READ_BYTES), 0
    try:
        began = time.perf_counter()
        connection.request("GET", f"{way.path}files/{FILE}", headers=way.headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise BenchmarkError(f"the download is refused: {answer.status} {answer.read(500)!r}")
        while count := answer.readinto(buffer):
            size += count
        return size, time.perf_counter() - began
    finally:
        connection.close()
