"""A rig of the engine contract for the remote engine: a site agent drives the engine of another rig over a link."""

from __future__ import annotations

import asyncio
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.contract.engines.rigs import RealRig
from tests.contract.engines.test_fake import FakeRig

from commonage.domain.statuses import Phase
from commonage.engines.remote.engine import FromSites, RemoteEngine
from commonage.engines.settings import RemoteSettings
from commonage.link.sites.messages.hello import PROTOCOL
from commonage.link.sites.sqlite_file import SqliteFile
from commonage.link.sites.transport.connection import LinkEnd, SiteConnection
from commonage.ports.clock import Clock
from commonage.ports.devices import Devices
from commonage.ports.engine import Engine
from commonage.ports.homes import Storage
from commonage.ports.joining import Joining
from commonage.ports.metrics import Sample
from commonage.ports.registry import PullToken
from commonage.server.processes.ports import free_port
from commonage.site_agent.agent import SiteAgent, SiteParts, SiteSettings
from commonage.site_agent.devices import SiteDevices
from commonage.site_agent.gateway import SiteGateway
from commonage.testing.behaviour import Aside
from commonage.testing.engine_rig import EngineRig
from commonage.testing.fakes.clock import FakeClock, settle

SITE = "site"
_QUIET_ROUNDS = 2


class RealClock(Clock):
    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RemoteRig(EngineRig, ABC):
    """`connect` and `cut` change the link; `stop_agent` ends the agent with the engine that it drives."""

    on_this_node = False
    clock: Clock

    def __init__(self, inner: EngineRig, folder: Path) -> None:
        self.inner, self._folder = inner, folder
        self.start_request, self.broken_environment = inner.start_request, inner.broken_environment
        self.tells_pids = inner.tells_pids
        self.stored: list[Sample] = []
        self.settings = SiteSettings(report_every_s=0.5, sample_every_s=0.5)
        self.gateway_port, self.protocol = 0, PROTOCOL
        self.devices: Devices | None = None
        self.joining: Joining | None = None
        self.storage: Storage | None = None
        self.left: list[tuple[str, str]] = []
        self.pull_token: Callable[[str, str], PullToken | None] = lambda _site, _image: None
        self.agent: SiteAgent | None = None
        self.gateway = SiteGateway()
        self._remote: RemoteEngine | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: list[SiteConnection] = []

    @abstractmethod
    async def local_engine(self) -> Engine:
        """A new engine on the data of the site, for the agent to open."""

    # --- both sides -----------------------------------------------------------------------------------------------

    async def start_agent(self) -> SiteAgent:
        self.gateway = SiteGateway()
        await self.gateway.open()
        engine = await self.local_engine()
        parts = SiteParts(SiteDevices(self.devices), self.joining, self.storage)
        self.agent = SiteAgent(engine, self.gateway, self._folder / "site", self.clock, self.settings, parts)
        await self.agent.open()
        self._tasks["agent"] = asyncio.create_task(self.agent.run())
        return self.agent

    async def stop_agent(self) -> None:
        await self.cut()
        await self._cancel("agent")
        assert self.agent is not None
        await self.agent.close()
        self.gateway.close()
        self.agent = None

    async def start_control(self) -> RemoteEngine:
        settings = RemoteSettings(self._folder / "control", self.gateway_port)
        from_sites = FromSites(self._store, self._node_left, self.pull_token)
        self._remote = RemoteEngine(SITE, settings, self.clock, from_sites)
        await self._remote.open()
        return self._remote

    async def stop_control(self) -> None:
        await self.cut()
        assert self._remote is not None
        await self._remote.close()
        self._remote = None

    async def _store(self, _site: str, samples: Sequence[Sample]) -> None:
        self.stored += samples

    async def _node_left(self, site: str, name: str) -> None:
        self.left.append((site, name))

    # --- the link -------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        assert self.agent is not None and self._remote is not None
        remote = self._remote
        here, there = (asyncio.open_connection(sock=one) for one in socket.socketpair())
        self._ends = [
            SiteConnection(LinkEnd(SITE, "the site", False, self.protocol), *await here, remote.handlers()),
            SiteConnection(
                LinkEnd(SITE, "the control plane", True, self.protocol), *await there, self.agent.handlers()
            ),
        ]
        remote.attach(self._ends[0])
        for name, work in (
            ("control end", self._ends[0].run()),
            ("site end", self._ends[1].run()),
            ("agent's use", self.agent.use(self._ends[1])),
        ):
            self._tasks[name] = asyncio.create_task(work)

        async def is_connected() -> bool:
            return remote.is_connected

        await self.until(is_connected, "the site has reported")

    async def cut(self) -> None:
        """Cut the link: both sides notice at once."""
        for end in self._ends:
            end.close("the link is cut")
        self._ends = []
        for name in ("control end", "site end", "agent's use"):
            await self._cancel(name)

    async def _cancel(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- the rig --------------------------------------------------------------------------------------------------

    async def engine(self) -> RemoteEngine:
        if self.agent is None:
            await self.start_agent()
        if self._remote is None:
            remote = await self.start_control()
            await self.connect()
            return remote
        return self._remote

    async def restart(self) -> RemoteEngine:
        if self.agent is not None:
            await self.stop_agent()
        if self._remote is not None:
            await self.stop_control()
        return await self.engine()

    async def processes(self, attempt: str) -> int:
        return await self.inner.processes(attempt)

    def aside(self, aside: Aside) -> tuple[str, ...]:
        return self.inner.aside(aside)

    async def close(self) -> None:
        engine = await self.engine()
        if not self._ends:
            await self.connect()
        living = [one.attempt_id for one in await engine.statuses() if one.phase is not Phase.ENDED]
        for attempt in living:
            await engine.stop(attempt, 0)
        for attempt in living:
            with suppress(AssertionError):
                await self.phase(attempt, Phase.ENDED)
        await self.stop_agent()
        await self.stop_control()


class RemoteFakeRig(RemoteRig):
    def __init__(self, folder: Path) -> None:
        self.fake = FakeRig()
        self.clock: FakeClock = self.fake.clock
        super().__init__(self.fake, folder)

    async def local_engine(self) -> Engine:
        return await self.fake.restart()

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await asyncio.sleep(0.01)
        await self._quiet()

    async def _quiet(self) -> None:
        """Wait until neither end of the link writes anything any more: files do not have the clock of the test."""
        before, rounds = None, 0
        async with asyncio.timeout(60):
            while rounds < _QUIET_ROUNDS:
                changes = []
                for file in self._files():
                    changes += await file.read("SELECT total_changes()")  # after all writes before it
                await settle()  # the link is a pair of sockets in this event loop
                rounds = rounds + 1 if changes == before else 0
                before = changes

    def _files(self) -> list[SqliteFile]:
        files = [self.agent._file] if self.agent is not None else []
        files += [self._remote._records._file] if self._remote is not None else []
        return [one for one in files if one._connection is not None]


class RemoteRealRig(RemoteRig):
    """`hub_port` is the port by which workloads address the hub. Nothing listens there on this machine."""

    def __init__(self, inner: RealRig[Any], folder: Path) -> None:
        self.real = inner
        self.clock = RealClock()
        self.hub_port = free_port()
        super().__init__(inner, folder)

    async def local_engine(self) -> Engine:
        return self.real.make()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
