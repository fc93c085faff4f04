"""Commands in containers, at a daemon that takes calls and may not come to an end with them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from commonage.domain.errors import EngineFailure
from commonage.engines.containers import docker_api as exec_api
from commonage.engines.containers.docker_api import ExecApi

pytestmark = pytest.mark.anyio
BEGUN = b"HTTP/1.1 200 OK\r\n\r\n"


class Daemon:
    """It makes each command and begins it, so many so far; `hangs`: none comes to its end."""

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
                await reader.read()  # until nobody listens any more
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
    """As where a process of it waits for a file server: who looks at the daemon must go on looking."""
    monkeypatch.setattr(exec_api, "_ENDS_WITHIN_S", 0.2)
    daemon.hangs = True
    with pytest.raises(EngineFailure) as caught:
        await ExecApi(f"unix://{daemon.path}").end("c-1", "0a")
    assert caught.value.is_retryable
