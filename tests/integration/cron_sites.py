"""A control plane with one appliance over a link: for tests of cron jobs that the appliance fires."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.contract.engines.remote.rig import SITE, RemoteFakeRig
from tests.fakes.waiting import until
from tests.integration.site_link_world import World, site_world
from tests.unit.control.world import Site

from commonage.control.control import Control
from commonage.domain.workloads import Kind, Workload
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.remote.engine import FromSites, RemoteEngine
from commonage.engines.settings import ProcessSettings, RemoteSettings
from commonage.link.sites.links import SiteEvents
from commonage.link.sites.transport.connection import SiteConnection
from commonage.ports.clock import Clock
from commonage.ports.metrics import Sample
from commonage.site_agent.agent import SiteAgent, SiteSettings
from commonage.site_agent.gateway import SiteGateway
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour
from commonage.testing.fault_proxy import FaultProxy


class Appliance:
    """`site` outlives the control plane, `rig` the site agent. Each `begin` and `kill` is a new life of one of them."""

    def __init__(self, folder: Path) -> None:
        self.rig, self.folder = RemoteFakeRig(folder), folder
        self.rig.settings = SiteSettings(report_every_s=5.0, sample_every_s=1e6)
        self.site = Site()
        self.site.clock, self.world = self.rig.clock, self.rig.fake.world
        self.control: Control | None = None
        self._loops: asyncio.Task[None] | None = None

    async def begin_control(self) -> Control:
        remote = RemoteEngine(SITE, RemoteSettings(self.folder / "control"), self.rig.clock, FromSites(self.rig._store))
        self.rig._remote = remote
        await self.site.store.open()
        self.control = self.site.control(remote)
        await self.control.open()
        self._loops = asyncio.create_task(self.control.run())
        await self.pass_time(0.1)
        return self.control

    async def kill_control(self) -> None:
        await self.rig.cut()
        assert self.control is not None
        assert self._loops is not None
        self._loops.cancel()
        await asyncio.wait([self._loops])
        if not self._loops.cancelled() and (error := self._loops.exception()) is not None:
            raise error
        await self.control.close()
        self.control, self.rig._remote = None, None

    async def begin_agent(self, default: Behaviour | None = None) -> None:
        engine = await self.rig.fake.restart()
        if default is not None:
            engine.default = default
        await self.rig.start_agent()

    async def pass_time(self, seconds: float) -> None:
        """In short steps: sockets and files have another clock, which each of them waits for."""
        while seconds > 0:
            step = min(5.0, seconds)
            await self.rig.pass_time(step)
            seconds -= step

    async def settled(self) -> None:
        for _ in range(20):
            await self.rig.pass_time(1.0)

    def runs(self) -> list[Workload]:
        return [one for one in self.site.all() if one.spec.cron_job is not None]


class ShiftedClock(Clock):
    """The wall clock, which a test sets forward: a schedule has whole minutes."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return time.time() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class RealAppliance:
    """A control plane in memory, and a site agent with real processes behind a proxy."""

    site: Site
    control: Control
    remote: RemoteEngine
    agent: SiteAgent
    proxy: FaultProxy
    world: World
    clock: ShiftedClock

    def set_clock(self, at: float) -> None:
        self.clock.ahead_s += at - self.clock.now()
        self.world.clock.ahead_s = self.clock.ahead_s


async def _stored(_site: str, _samples: Sequence[Sample]) -> None:
    return


@asynccontextmanager
async def real_appliance(folder: Path) -> AsyncIterator[RealAppliance]:
    clock = ShiftedClock()
    remote = RemoteEngine("lab", RemoteSettings(folder / "sites"), clock, FromSites(_stored))
    site = Site()
    site.clock = clock  # type: ignore[assignment]  # it only tells the time
    site.environments = [factories.environment("base", kinds=(Kind.JOB,), python=sys.executable)]
    await site.store.open()
    control = site.control(remote)
    await control.open()
    engine = ProcessEngine("lab", folder / "data", settings=ProcessSettings(node_name="here", cgroups=False))
    gateway = SiteGateway()
    await gateway.open()
    agent = SiteAgent(engine, gateway, folder / "agent", clock, SiteSettings(report_every_s=0.5))
    await agent.open()
    loops = [asyncio.create_task(control.run()), asyncio.create_task(agent.run())]

    async def use(connection: SiteConnection, _welcome: object) -> None:
        await agent.use(connection)

    events = SiteEvents(remote.attach)
    async with site_world(folder / "world", lambda _: remote.handlers(), events=events) as world:
        proxy = FaultProxy(world.links.port)
        await proxy.open()
        world.dial(world.joined("lab", proxy.port), agent.handlers(), on_connected=use, now=clock.now)
        await until(lambda: remote.is_connected and control.live_state.nodes)
        yield RealAppliance(site, control, remote, agent, proxy, world, clock)
        await proxy.close()
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    await control.close()
    await agent.close()
    gateway.close()
