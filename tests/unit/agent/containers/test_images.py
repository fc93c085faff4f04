"""Image pulls on a node: which work they delay, and with which credentials."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from commonage.agent.agent import Agent
from commonage.agent.config import AgentConfig
from commonage.agent.containers.docker import DaemonRefused, split_image
from commonage.agent.containers.images import Puller, credentials_for
from commonage.domain.errors import EngineFailure

pytestmark = pytest.mark.anyio
MANY = 100


class SlowDaemon:
    """One whose registries say nothing until `goes_on`."""

    def __init__(self) -> None:
        self.goes_on, self.asked = threading.Event(), 0
        self.loop, self.is_asked = asyncio.get_running_loop(), asyncio.Event()

    def has_image(self, name: str) -> bool:
        return False

    def pull(self, name: str, credentials: str, silence_s: float) -> Iterator[Mapping[str, Any]]:
        self.asked += 1
        self.loop.call_soon_threadsafe(self.is_asked.set)
        self.goes_on.wait()
        yield {"status": "Pull complete"}


@pytest.fixture
async def daemon() -> AsyncIterator[SlowDaemon]:
    made = SlowDaemon()
    yield made
    made.goes_on.set()


async def test_slow_pulls_do_not_block_other_threads(daemon: SlowDaemon, tmp_path: Path) -> None:
    slow: Any = daemon
    puller = Puller(slow, tmp_path / "config.json", "worker1")
    fetches = [asyncio.create_task(puller.ensure(f"lab/image:{one}", lambda *_: None)) for one in range(MANY)]
    await daemon.is_asked.wait()
    async with asyncio.timeout(20):
        assert await asyncio.gather(*(asyncio.to_thread(lambda: "said") for _ in range(MANY))) == ["said"] * MANY
    daemon.goes_on.set()
    await asyncio.gather(*fetches)
    assert daemon.asked == MANY
    await puller.close()


async def test_partitioned_node_pauses_although_threads_are_blocked(
    daemon: SlowDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that does not answer holds each thread that asks it."""
    files = {name: str(tmp_path / name) for name in ("certificate", "key", "request", "authority", "state")}
    agent = Agent(AgentConfig("worker1", ("127.0.0.1:1",), gpus="none", firewall=False, **files))
    loop, paused = asyncio.get_running_loop(), asyncio.Event()

    async def probe() -> None:
        """No answer."""

    monkeypatch.setattr(agent._partition, "probe", probe)
    monkeypatch.setattr(type(agent._partition), "is_partitioned", True)
    monkeypatch.setattr(agent._fences, "pause_all", lambda _: loop.call_soon_threadsafe(paused.set))
    waiting = [asyncio.create_task(asyncio.to_thread(daemon.goes_on.wait)) for _ in range(MANY)]
    watching = asyncio.create_task(agent._watch_partition())
    async with asyncio.timeout(20):
        await paused.wait()
    watching.cancel()
    daemon.goes_on.set()
    await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("torch", ("torch", "latest")),
        ("torch:2", ("torch", "2")),
        ("hub:5000/lab/torch", ("hub:5000/lab/torch", "latest")),
        ("hub:5000/lab/torch:2", ("hub:5000/lab/torch", "2")),
        ("hub:5000/lab/torch@sha256:ab", ("hub:5000/lab/torch", "sha256:ab")),
    ],
)
def test_splits_image_names(name: str, parts: tuple[str, str]) -> None:
    assert split_image(name) == parts


def test_credentials_are_those_of_the_images_registry(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    auth = base64.b64encode(b"node:pa:ss").decode()
    file.write_text(json.dumps({"auths": {"hub:5000": {"auth": auth}}}))
    found = json.loads(base64.urlsafe_b64decode(credentials_for("hub:5000/lab/torch:2", file)))
    assert found == {"username": "node", "password": "pa:ss", "serveraddress": "hub:5000"}
    assert credentials_for("other:5000/lab/torch:2", file) == ""
    assert credentials_for("hub:5000/lab/torch:2", tmp_path / "none") == ""


class PickyDaemon:
    """One that writes down the credentials, and refuses with these words."""

    def __init__(self, words: str) -> None:
        self._words = words
        self.credentials: list[str] = []

    def has_image(self, name: str) -> bool:
        return False

    def pull(self, name: str, credentials: str, silence_s: float) -> Iterator[Mapping[str, Any]]:
        self.credentials.append(credentials)
        raise DaemonRefused(self._words, 500)
        yield {}


async def test_a_node_of_an_appliance_pulls_with_the_given_token_and_says_what_is_in_the_way(tmp_path: Path) -> None:
    daemon: Any = PickyDaemon("Get https://hub:5000/v2/: dial tcp 10.0.0.1:5000: connect: connection refused")
    puller = Puller(daemon, tmp_path / "config.json", "worker1")
    login = {"registrytoken": "t0ken", "serveraddress": "hub:5000"}
    with pytest.raises(EngineFailure) as refused:
        await puller.ensure("hub:5000/lab/torch:2", lambda *_: None, login)
    assert json.loads(base64.urlsafe_b64decode(daemon.credentials[0])) == login
    assert not refused.value.is_retryable
    assert "registry hub:5000 cannot be reached from worker1" in refused.value.message
    assert "t0ken" not in str(refused.value)
    await puller.close()
