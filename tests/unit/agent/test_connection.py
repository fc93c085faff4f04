"""Failures of the agent's own handlers on a link."""

import asyncio
from typing import Any

import pytest

from commonage.agent.config import AgentConfig
from commonage.agent.connection import ControlPlaneConnection
from commonage.link.connection import Connection
from commonage.link.exchange import ConnectionLost
from commonage.link.messages import Welcome

pytestmark = pytest.mark.anyio
FOREVER = 4e9
CONFIG = AgentConfig("worker1", ("127.0.0.1:1",), "certificate", "key", "request", "authority")


class FakePeer:
    """A link that stands until it is closed."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    def close(self, why: str) -> None:
        self.over.set()

    async def run(self) -> None:
        await self.over.wait()
        raise ConnectionLost("the link was ended")


async def test_failing_reports_end_the_agent() -> None:
    """Or it would be linked and silent, over and over, and nobody would read why."""

    async def reports(_connection: Connection, _welcome: Welcome) -> None:
        raise KeyError("MemTotal")

    link: Any = FakePeer()
    with pytest.raises(KeyError, match="MemTotal"):
        await ControlPlaneConnection(CONFIG, {}, {}, reports)._use(link, Welcome(FOREVER, FOREVER))


async def test_lost_link_cancels_its_tasks() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def reports(_connection: Connection, _welcome: Welcome) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    link: Any = FakePeer()
    using = asyncio.create_task(ControlPlaneConnection(CONFIG, {}, {}, reports)._use(link, Welcome(FOREVER, FOREVER)))
    await begun.wait()
    link.close("its cable was drawn")
    with pytest.raises(ConnectionLost):
        await using
    assert ended.is_set()
