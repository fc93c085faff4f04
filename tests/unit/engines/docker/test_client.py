"""Answers over the connection to a daemon: long lines, and invalid ones."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from aiohttp import web

from commonage.engines.containers.daemon.connection import DaemonUnreachable
from commonage.engines.docker.client import Client

pytestmark = pytest.mark.anyio
ABOUT = {"Version": "20.10.24", "ApiVersion": "1.41", "MinAPIVersion": "1.12"}


class Daemon:
    """One at a socket in `folder`; `events` is all that its next listener hears."""

    def __init__(self, folder: Path) -> None:
        self.url = f"unix://{folder}/docker.sock"
        self.events = b""
        app = web.Application()
        app.router.add_get("/{_:.*}/_ping", self._version)
        app.router.add_get("/{_:.*}/info", self._version)
        app.router.add_get("/{_:.*}/events", self._events)
        app.router.add_get("/{_:.*}/nodes", self._events)
        self.runner = web.AppRunner(app)
        self._path = str(folder / "docker.sock")

    async def open(self) -> None:
        await self.runner.setup()
        await web.UnixSite(self.runner, self._path).start()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response(ABOUT)

    async def _events(self, _: web.Request) -> web.Response:
        return web.Response(body=self.events, content_type="application/json")


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    made = Daemon(tmp_path)
    await made.open()
    yield made
    await made.runner.cleanup()


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[Client]:
    made = Client(daemon.url)
    yield made
    await made.close()


async def heard(client: Client) -> list[object]:
    async with aclosing(client.events("commonage")) as events:  # type: ignore[type-var]  # a generator in practice
        return [event async for event in events]


async def test_an_event_of_an_image_with_many_labels_is_heard(daemon: Daemon, client: Client) -> None:
    """Each event has all labels of its container, those of its image among them, which may be anything."""
    event = {"Action": "die", "Actor": {"Attributes": {"label": "x" * 600_000}}}
    daemon.events = json.dumps(event).encode() + b"\n"
    assert await heard(client) == [{}, event]


@pytest.mark.parametrize("said", [b"<html>\n", b"{" + b" " * 40_000_000 + b"}\n"])
async def test_invalid_event_means_daemon_unreachable(daemon: Daemon, client: Client, said: bytes) -> None:
    daemon.events = said
    with pytest.raises(DaemonUnreachable):
        await heard(client)


async def test_invalid_response_means_daemon_unreachable(daemon: Daemon, client: Client) -> None:
    daemon.events = b'[{"ID": '
    with pytest.raises(DaemonUnreachable):
        await client.ask("GET", "nodes")
