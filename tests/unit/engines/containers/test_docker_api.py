"""Commands in containers, at a daemon that takes calls and may not come to an end with them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from commonage.domain.errors import EngineFailure
from commonage.engines.containers import docker_api as exec_api
from commonage.engines.containers.docker_api import API_VERSIONS, ExecApi, NoCommonVersion
from commonage.engines.docker.client import Client

pytestmark = pytest.mark.anyio
BEGUN = b"HTTP/1.1 200 OK\r\n\r\n"


class Daemon:
    """It creates and starts each command, and counts them; `hangs`: no command ends."""

    def __init__(self, folder: Path) -> None:
        self.path, self.hangs, self.begun = folder / "docker.sock", False, 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/_ping " in head:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nOK")
        elif b"/start " not in head:
            writer.write(b'HTTP/1.0 201 Created\r\n\r\n{"Id": "e-1"}')
        else:
            self.begun += 1
            writer.write(BEGUN)
            if self.hangs:
                await reader.read()  # until the reader is gone
        writer.close()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    made = Daemon(tmp_path)
    server = await asyncio.start_unix_server(made.answer, made.path)
    yield made
    server.close()


async def test_ending_attempt_is_waited_for(daemon: Daemon) -> None:
    await ExecApi(f"unix://{daemon.path}").end("c-1", "0a")
    assert daemon.begun == 1


async def test_unresponsive_attempt_is_not_waited_for(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a process that waits for a file server: the loop that reads the daemon must continue."""
    monkeypatch.setattr(exec_api, "_ENDS_WITHIN_S", 0.2)
    daemon.hangs = True
    with pytest.raises(EngineFailure) as caught:
        await ExecApi(f"unix://{daemon.path}").end("c-1", "0a")
    assert caught.value.is_retryable


Clients = Callable[[str], Awaitable[object]]


async def _info(url: str) -> object:
    client = Client(url)
    try:
        return await client.info()
    finally:
        await client.close()


async def _exec(url: str) -> object:
    return (await ExecApi(url).ask("GET", "/info"))[1]


@asynccontextmanager
async def _daemon(folder: Path, *spoken: str, status: str = "200 OK") -> AsyncIterator[tuple[str, list[str]]]:
    """Its address, and the paths that it was asked for. It speaks these versions, and refuses others as Docker does."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        asked.append(path)
        said, content = status, '{"Driver": "overlay2"}'
        if path.split("/")[1].removeprefix("v") not in spoken:
            said, content = "400 Bad Request", '{"message":"client version 1.41 is too new"}'
        context = f"HTTP/1.1 {said}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        # As Docker does with all but short answers.
        writer.write(f"{context}Transfer-Encoding: chunked\r\n\r\n{len(content):x}\r\n{content}\r\n0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, folder / "docker.sock")
    async with server:
        yield f"unix://{folder}/docker.sock", asked


@pytest.mark.parametrize("ask", [_info, _exec])
async def test_speaks_the_best_version_that_both_know(tmp_path: Path, ask: Clients) -> None:
    async with _daemon(tmp_path, *API_VERSIONS, "1.52") as (url, asked):
        assert await ask(url) == {"Driver": "overlay2"}
    assert asked == ["/v1.50/_ping", "/v1.50/info"]


@pytest.mark.parametrize("ask", [_info, _exec])
async def test_speaks_the_older_version_with_an_older_daemon(tmp_path: Path, ask: Clients) -> None:
    async with _daemon(tmp_path, "1.24", "1.41") as (url, asked):
        assert await ask(url) == {"Driver": "overlay2"}
    assert asked == ["/v1.50/_ping", "/v1.41/_ping", "/v1.41/info"]


@pytest.mark.parametrize("ask", [_info, _exec])
async def test_says_that_a_daemon_is_too_old(tmp_path: Path, ask: Clients) -> None:
    async with _daemon(tmp_path, "1.24", "1.40") as (url, asked):
        with pytest.raises(NoCommonVersion, match=r"too new.*Upgrade Docker.* to 20\.10 or later") as caught:
            await ask(url)
    assert not caught.value.is_retryable
    assert asked == ["/v1.50/_ping", "/v1.41/_ping"]  # and never without a version


@pytest.mark.parametrize("ask", [_info, _exec])
async def test_unhealthy_daemon_is_queried_again(tmp_path: Path, ask: Clients) -> None:
    async with _daemon(tmp_path, *API_VERSIONS, status="503 Service Unavailable") as (url, _):
        with pytest.raises(EngineFailure) as caught:
            await ask(url)
    assert caught.value.is_retryable


async def test_versions_are_asked_for_once(tmp_path: Path) -> None:
    async with _daemon(tmp_path, "1.41") as (url, asked):
        client, api = Client(url), ExecApi(url)
        await asyncio.gather(client.info(), client.info(), api.ask("GET", "/info"))
        await api.ask("GET", "/info")
        await client.close()
    assert asked.count("/v1.50/_ping") == 2
