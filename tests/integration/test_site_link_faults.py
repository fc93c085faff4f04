"""The link of a site over a line that delays, throttles, corrupts, breaks and falls silent."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.waiting import until
from tests.integration.site_link_world import World, site_world

from commonage.domain.errors import EngineFailure
from commonage.link.exchange import ConnectionLost
from commonage.link.messages import Nothing, RequestType
from commonage.link.sites.transport.connection import Handlers
from commonage.link.sites.transport.streams import Stream, StreamType
from commonage.ports.agents import OnProgress
from commonage.testing.fault_proxy import FaultProxy, Faults

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Seeded:
    """A reproducible content: its seed and its size."""

    seed: int
    size: int

    def content(self) -> bytes:
        return random.Random(self.seed).randbytes(self.size)


DOWNLOAD = StreamType("download", Seeded)
UPLOAD = StreamType("upload", Nothing)
PING = RequestType("ping", Nothing, Nothing, 30.0)


async def _download(params: Seeded, stream: Stream) -> None:
    await stream.write(params.content())


async def _upload(_: Nothing, stream: Stream) -> None:
    digest = hashlib.sha256()
    while data := await stream.read():
        digest.update(data)
    await stream.write(digest.digest())


async def _ping(_: Nothing, __: OnProgress) -> Nothing:
    return Nothing()


SERVES = Handlers(requests={PING: _ping}, streams={DOWNLOAD: _download, UPLOAD: _upload})


@dataclass
class Line:
    world: World
    proxy: FaultProxy


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    async with site_world(tmp_path) as world:
        proxy = FaultProxy(world.links.port)
        await proxy.open()
        world.dial(world.joined(port=proxy.port), SERVES)
        await world.connected()
        yield Line(world, proxy)
        await proxy.close()


async def _fetch(world: World, wanted: Seeded) -> bytes:
    stream = await world.links.connection("lab").open(DOWNLOAD, wanted)
    received = bytearray()
    async with stream:
        while data := await stream.read():
            received += data
    return bytes(received)


async def _send(world: World, content: bytes) -> bytes:
    async with await world.links.connection("lab").open(UPLOAD, Nothing()) as stream:
        await stream.write(content)
        await stream.end()
        return await stream.read()


FAULTS = {
    "delay": Faults(delay_s=0.005),
    "throttle": Faults(bytes_per_s=4 * MIB),
    "corrupt": Faults(corrupt_in=300_000),
    "cut": Faults(cut_in=500_000),
    "corrupt early": Faults(corrupt_in=5),
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("seed", range(3))
async def test_bytes_are_delivered_exactly_or_the_stream_fails(line: Line, faults: Faults, seed: int) -> None:
    chance = random.Random(seed)
    line.proxy.faults = Faults(
        faults.delay_s,
        faults.bytes_per_s,
        corrupt_in=faults.corrupt_in and chance.randrange(2 * faults.corrupt_in),
        cut_in=faults.cut_in and chance.randrange(2 * faults.cut_in),
    )
    wanted = [Seeded(seed * 10 + n, chance.randrange(MIB)) for n in range(4)]
    downloads = await asyncio.gather(*(_fetch(line.world, one) for one in wanted), return_exceptions=True)
    uploads = await asyncio.gather(*(_send(line.world, one.content()) for one in wanted), return_exceptions=True)
    for one, received, digest in zip(wanted, downloads, uploads, strict=True):
        assert isinstance(received, EngineFailure) or received == one.content()
        assert isinstance(digest, EngineFailure) or digest == hashlib.sha256(one.content()).digest()
    line.proxy.faults = Faults()
    await line.world.connected()

    async def works() -> bool:
        try:
            return await _fetch(line.world, wanted[0]) == wanted[0].content()
        except EngineFailure:  # the link of before has only just ended
            return False

    await until(works)


async def test_requests_do_not_wait_behind_a_transfer_on_a_slow_line(line: Line) -> None:
    line.proxy.faults = Faults(bytes_per_s=4 * MIB)
    transfer = asyncio.create_task(_fetch(line.world, Seeded(1, 12 * MIB)))
    link = line.world.links.connection("lab")
    for _ in range(3):
        await link.request(PING, Nothing())
    assert not transfer.done()
    line.proxy.faults = Faults()
    assert await transfer == Seeded(1, 12 * MIB).content()


async def test_a_line_that_falls_silent_ends_the_link_on_both_sides(line: Line) -> None:
    link = line.world.links.connection("lab")
    stream = await link.open(UPLOAD, Nothing())
    line.proxy.faults = Faults(silent=True)
    with pytest.raises(ConnectionLost, match="sent nothing"):
        await stream.read()
    line.proxy.faults = Faults()
    await until(lambda: line.proxy.accepted > 1, "the site has dialled again, although its connection was not closed")
    await line.world.connected()


async def test_many_sites_come_back_after_a_break(line: Line) -> None:
    names = [f"site{n}" for n in range(20)]
    for name in names:
        line.world.dial(line.world.joined(name, port=line.proxy.port), SERVES)
    for name in names:
        await line.world.connected(name)
    links = [line.world.links.connection(name) for name in names]
    line.proxy.cut()
    await until(lambda: all(link.is_closed for link in links))
    for name in names:
        link = await line.world.connected(name)
        assert await link.request(PING, Nothing()) == Nothing()
