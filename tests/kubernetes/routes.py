"""Tests of the way to ports of Pods through the API server: inherit `RouteContract` and supply the fixture `rig`."""

import asyncio
from contextlib import suppress
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from tests.kubernetes.rig import KubernetesRig

from commonage.domain.statuses import Phase, StartRequest
from commonage.testing.behaviour import Behaviour

MUCH = 5_000_000
_WITHIN_S = 60.0


async def connected(rig: KubernetesRig, request: StartRequest) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError."""
    status = await rig.status(request.attempt_id)
    assert status is not None and status.url is not None
    url = urlsplit(status.url)
    return await asyncio.open_connection(url.hostname, url.port)


async def fetched(rig: KubernetesRig, request: StartRequest, path: str = "/", *, end_input: bool = False) -> bytes:
    """The body of the answer. Raises OSError."""
    async with asyncio.timeout(_WITHIN_S):
        reader, writer = await connected(rig, request)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            if end_input:
                writer.write_eof()
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            assert b" 200 " in head.partition(b"\r\n")[0]
            return body
        finally:
            writer.close()


class RouteContract:
    """`serve`: shell that serves the folder `w` by HTTP at $COMMONAGE_PORT."""

    pytestmark: ClassVar = [pytest.mark.anyio, pytest.mark.allow_hosts(["127.0.0.0/8"])]
    serve: str

    def served(self, rig: KubernetesRig, before: str = "", **changes: object) -> StartRequest:
        files = f"mkdir w; echo hello >w/index.html; yes | head -c {MUCH} >w/much"
        script = f"{files}; echo here; {before} {self.serve}"
        return rig.start_request(Behaviour(), command=("sh", "-c", script), wants_port=True, **changes)

    async def listening(self, rig: KubernetesRig, request: StartRequest) -> StartRequest:
        await rig.started(request)

        async def is_so() -> bool:
            try:
                return await fetched(rig, request) == b"hello\n"
            except ConnectionRefusedError:
                return False

        await rig.until(is_so, "it answers")
        return request

    async def test_connections_are_refused_until_the_program_listens(self, rig: KubernetesRig) -> None:
        request = await rig.started(self.served(rig, "until [ -e go ]; do sleep 0.1; done;"))
        for _ in range(4):
            with pytest.raises(ConnectionRefusedError):
                await connected(rig, request)
            await rig.pass_time(0.5)
        stream = await (await rig.engine()).exec(request.attempt_id, ("touch", "go"))
        assert await stream.exit_code() == 0
        await stream.close()
        await self.listening(rig, request)

    async def test_much_passes_on_many_connections(self, rig: KubernetesRig) -> None:
        request = await self.listening(rig, self.served(rig))
        found = await asyncio.gather(*(fetched(rig, request, "/much") for _ in range(8)))
        assert [one == b"y\n" * (MUCH // 2) for one in found] == [True] * 8

    async def test_client_that_sends_no_more_gets_the_rest(self, rig: KubernetesRig) -> None:
        request = await self.listening(rig, self.served(rig))
        assert await fetched(rig, request, "/much", end_input=True) == b"y\n" * (MUCH // 2)

    async def test_port_that_the_program_insists_on_is_reached(self, rig: KubernetesRig) -> None:
        await self.listening(rig, self.served(rig, port=8081))

    async def test_address_is_the_same_after_a_restart(self, rig: KubernetesRig) -> None:
        request = await self.listening(rig, self.served(rig))
        before = await rig.phase(request.attempt_id, Phase.RUNNING)
        await rig.restart()
        await self.listening(rig, request)
        assert (await rig.phase(request.attempt_id, Phase.RUNNING)).url == before.url

    async def test_end_of_the_program_ends_its_connections(self, rig: KubernetesRig) -> None:
        request = await self.listening(rig, self.served(rig))
        reader, writer = await connected(rig, request)
        writer.write(b"GET / HTTP/1.1\r\n")
        await writer.drain()
        await (await rig.engine()).stop(request.attempt_id, 0)
        async with asyncio.timeout(_WITHIN_S):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).url is None

    async def test_closed_engine_leaves_nothing_open(self, rig: KubernetesRig) -> None:
        request = await self.listening(rig, self.served(rig))
        status = await rig.status(request.attempt_id)
        assert status is not None and status.url is not None
        url = urlsplit(status.url)
        reader, writer = await connected(rig, request)
        await (await rig.engine()).close()
        async with asyncio.timeout(_WITHIN_S):
            with pytest.raises(ConnectionError):
                await reader.read()
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(url.hostname, url.port)
        await rig.reopen()
        await self.listening(rig, request)
