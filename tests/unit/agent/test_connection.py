"""Failures of the agent's own handlers on a link."""

import asyncio
from typing import Any

import pytest

from commonage.agent.config import AgentConfig
from commonage.agent.connection import AdmissionRefused, ControlPlaneConnection
from commonage.link.connection import Connection
from commonage.link.exchange import ConnectionLost, Exchange
from commonage.link.messages import LinkRefused, Welcome

pytestmark = pytest.mark.anyio
FOREVER = 4e9
CONFIG = AgentConfig("worker1", ("127.0.0.1:1",), "certificate", "key", "request", "authority")


class FakePeer(Exchange):
    """A link that stands until it is closed."""

    def __init__(self) -> None:
        super().__init__("the control plane", {}, {})
        self.over = asyncio.Event()

    def _transmit(self, frame: bytes) -> None:
        """It is never read."""

    def _disconnect(self) -> None:
        self.over.set()

    async def run(self, silence_s: float = 0) -> None:
        await self.over.wait()
        raise ConnectionLost("the link was ended")


async def test_failing_reports_end_the_agent() -> None:
    """Otherwise it would connect and fall silent again and again, without a visible reason."""

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


async def test_refusal_is_raised_although_a_report_fails_with_the_link() -> None:
    link: Any = FakePeer()

    async def reports(_connection: Connection, _welcome: Welcome) -> None:
        connection._on_refused(LinkRefused("worker1 was removed from this site", permanent=True))
        raise ConnectionLost("the link was ended")

    connection = ControlPlaneConnection(CONFIG, {}, {}, reports)
    with pytest.raises(AdmissionRefused, match="was removed"):
        await connection._use(link, Welcome(FOREVER, FOREVER))
