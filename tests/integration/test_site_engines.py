"""Engines of sites over the real link: mutual TLS, a listener, and a site that dials again after each loss."""

import asyncio
import itertools
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.contract.engines.rigs import command_of
from tests.fakes.waiting import until
from tests.integration.site_link_world import World, site_world

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.nodes import NodeReport
from commonage.domain.statuses import Phase, StartRequest
from commonage.engines.remote.engine import FromSites, RemoteEngine
from commonage.engines.remote.sites import Sites
from commonage.engines.settings import RemoteSettings
from commonage.link.messages import Nothing, RequestType
from commonage.link.sites.links import SiteEvents
from commonage.link.sites.messages.engine import STATUSES
from commonage.link.sites.messages.hello import Protocols
from commonage.link.sites.transport.connection import SiteConnection
from commonage.link.sites.transport.streams import StreamType
from commonage.ports.clock import Clock
from commonage.ports.metrics import Sample
from commonage.site_agent.agent import SiteAgent, SiteSettings
from commonage.site_agent.gateway import SiteGateway
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import StartRequestFactory
from commonage.testing.fakes.clock import FakeClock, settle
from commonage.testing.fakes.engine import FakeEngine, FakeWorld
from commonage.testing.fault_proxy import FaultProxy, Faults

pytestmark = pytest.mark.anyio
_WITHIN_S = 60.0


class RealTime(Clock):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        return 1_700_000_000.0 + self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Behind(Clock):
    def __init__(self, clock: Clock, behind_s: float) -> None:
        self._clock, self._behind_s = clock, behind_s

    def now(self) -> float:
        return self._clock.now() - self._behind_s

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


@dataclass
class Platform:
    """The control plane's sites, and the engines of its appliances."""

    world: World
    sites: Sites
    clock: Clock
    local: dict[str, FakeEngine] = field(default_factory=dict)
    closing: list[Callable[[], object]] = field(default_factory=list)
    stored: list[Sample] = field(default_factory=list)

    async def appliance(
        self,
        site: str,
        port: int = 0,
        *,
        behind_s: float = 0.0,
        says_first: Callable[[SiteConnection], None] = lambda _: None,
        protocols: Protocols | None = None,
    ) -> FakeEngine:
        """A site that has joined, and its agent, linked until the test ends. Its clock is `behind_s` behind.

        `says_first` sends more on each link.
        """
        clock = Behind(self.clock, behind_s)
        engine = FakeEngine(site, [NodeReport("node-1", 64000, 65536)], clock, world=FakeWorld())
        gateway = SiteGateway()
        await gateway.open()
        settings = SiteSettings(report_every_s=0.2, sample_every_s=0.2)
        agent = SiteAgent(engine, gateway, self.world.folder / f"agent-{site}", clock, settings)
        await agent.open()
        loops = asyncio.create_task(agent.run())

        async def use(connection: SiteConnection, _welcome: object) -> None:
            says_first(connection)
            await agent.use(connection)

        await self.world.links.joined(site)
        self.world.dial(
            self.world.joined(site, port),
            agent.handlers(),
            on_connected=use,
            now=lambda: time.time() - behind_s,
            protocols=protocols,
        )

        async def close() -> None:
            loops.cancel()
            await asyncio.gather(loops, return_exceptions=True)
            await agent.close()
            gateway.close()

        self.closing.append(close)
        self.local[site] = engine
        return engine

    def engine_of(self, site: str) -> RemoteEngine | None:
        return next((one for one in self.sites.engines() if one.site == site), None)

    async def engine(self, site: str) -> RemoteEngine:
        """The engine of this site, once it is linked."""

        def is_linked() -> bool:
            engine = self.engine_of(site)
            return engine is not None and engine.is_connected

        await until(is_linked)
        engine = self.engine_of(site)
        assert engine is not None
        return engine

    def request(self, **changes: object) -> StartRequest:
        make = StartRequestFactory(Environment("base", "Base"), "node-1", lambda _: ("act",), self.clock.now)
        return make(Behaviour(), **changes)  # type: ignore[arg-type]  # its fields


@asynccontextmanager
async def made(folder: Path, protocols: Protocols | None = None) -> AsyncIterator[Platform]:
    clock, stored = RealTime(), list[Sample]()

    async def store(_site: str, samples: Sequence[Sample]) -> None:
        stored.extend(samples)

    async def open_engine(engine: RemoteEngine) -> None:
        await engine.open()

    async def close_engine(engine: RemoteEngine) -> None:
        await engine.close()
        await engine.delete_records()

    sites = Sites((), RemoteSettings(folder / "sites"), clock, FromSites(store), open_engine, close_engine)
    events = SiteEvents(sites.on_connected, sites.on_joined, sites.on_removed)
    async with site_world(folder, sites.handlers, events=events, protocols=protocols or Protocols()) as world:
        platform = Platform(world, sites, clock, stored=stored)
        try:
            yield platform
        finally:
            for engine in sites.engines():
                await engine.close()
            await world.end()
            for close in platform.closing:
                await close()


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with made(tmp_path) as platform:
        yield platform


async def ended(engine: RemoteEngine, request: StartRequest) -> int | None:
    async with asyncio.timeout(_WITHIN_S):
        while True:
            for status in await engine.statuses():
                if status.attempt_id == request.attempt_id and status.phase is Phase.ENDED:
                    return status.exit_code
            await asyncio.sleep(0.02)


async def test_sites_that_join_later_run_workloads_apart_from_each_other(platform: Platform) -> None:
    for site in ("lab", "clinic"):
        local = await platform.appliance(site)
        local.default = Behaviour(exit_code=len(site))
    requests = {}
    for site in ("lab", "clinic"):
        engine = await platform.engine(site)
        assert [node.name for node in await engine.nodes()] == ["node-1"]
        requests[site] = platform.request()
        await engine.start(requests[site])
    for site, request in requests.items():
        assert await ended(await platform.engine(site), request) == len(site)
        assert dict(platform.local[site].world.starts) == {request.attempt_id: 1}


async def test_revoked_site_is_unreachable_and_another_goes_on(platform: Platform) -> None:
    for site in ("lab", "clinic"):
        await platform.appliance(site)
    lab, clinic = await platform.engine("lab"), await platform.engine("clinic")
    platform.world.registry.revoke("lab")
    await platform.world.links.check()
    await until(lambda: not lab.is_connected)
    request = platform.request()
    await clinic.start(request)
    assert await ended(clinic, request) == 0


async def test_removed_site_is_gone_and_starts_afresh_when_it_joins_again(platform: Platform) -> None:
    await platform.appliance("lab")
    engine = await platform.engine("lab")
    await platform.world.links.removed("lab", "the site lab was removed")
    await until(lambda: not engine.is_connected)
    assert platform.engine_of("lab") is None
    assert list((platform.world.folder / "sites").iterdir()) == []
    await platform.world.links.joined("lab")
    await platform.world.links.joined("lab")  # an answer was lost, and the join is repeated
    again = platform.engine_of("lab")
    assert again is not None and again is not engine
    assert list(await again.nodes()) == []


async def test_attempts_run_once_over_a_line_that_breaks_again_and_again(platform: Platform) -> None:
    proxy = FaultProxy(platform.world.links.port)
    await proxy.open()
    local = await platform.appliance("lab", proxy.port)
    local.default = Behaviour(lasts_s=0.5, exit_code=7)
    engine = await platform.engine("lab")
    requests = [platform.request() for _ in range(30)]

    async def run(request: StartRequest) -> int | None:
        await engine.start(request)
        code = await ended(engine, request)
        await engine.forget(request.attempt_id)
        return code

    async def break_line() -> None:
        for number in itertools.count(1):
            before = proxy.accepted
            proxy.faults = Faults(cut_in=number * 997 % 5000)
            await until(lambda before=before: proxy.accepted > before and engine.is_connected)
            await asyncio.sleep(0.1)

    breaking = asyncio.create_task(break_line())
    codes = []
    for start in range(0, len(requests), 5):
        codes += await asyncio.gather(*(run(request) for request in requests[start : start + 5]))
    breaking.cancel()
    proxy.faults = Faults()
    proxy.cut()
    assert codes == [7] * len(requests)
    assert dict(local.world.starts) == {request.attempt_id: 1 for request in requests}
    assert proxy.accepted > 3, "the line did break"
    await platform.engine("lab")

    async def all_forgotten() -> bool:
        return not await engine.statuses() and not await local.statuses()

    await until(all_forgotten)
    await proxy.close()


@pytest.mark.parametrize("behind_s", [3600.0, -3600.0], ids=["site is behind", "site is ahead"])
async def test_times_of_a_site_with_a_wrong_clock_are_those_of_the_control_plane(
    platform: Platform, behind_s: float
) -> None:
    proxy = FaultProxy(platform.world.links.port)
    await proxy.open()
    local = await platform.appliance("lab", proxy.port, behind_s=behind_s)
    engine = await platform.engine("lab")
    local.default = Behaviour(lasts_s=None)
    lasts = platform.request()
    before = platform.clock.now()
    await engine.start(lasts)

    async def runs() -> bool:
        return any(one.phase is Phase.RUNNING for one in await engine.statuses())

    await until(runs)
    local.default = Behaviour()
    ends = platform.request()
    await engine.start(ends)
    assert await ended(engine, ends) == 0
    after = platform.clock.now()
    [status] = [one for one in await engine.statuses() if one.attempt_id == ends.attempt_id]
    assert before <= status.at <= after
    assert status.started_at is None or before <= status.started_at <= status.at
    proxy.faults = Faults(refuses=True)
    proxy.cut()
    await until(lambda: not engine.is_connected)
    await asyncio.sleep(1)  # it measures meanwhile
    proxy.faults = Faults()
    await until(lambda: platform.stored)
    assert all(before <= one.at <= platform.clock.now() for one in platform.stored)
    again = {one.attempt_id: one for one in await engine.statuses()}
    assert again[ends.attempt_id] == status, "the same time is always converted to the same"
    await proxy.close()


@pytest.mark.parametrize(
    ("site", "control"),
    [(Protocols(1, 2), Protocols(1, 1)), (Protocols(1, 1), Protocols(1, 2)), (Protocols(0, 1), Protocols(1, 2))],
    ids=["newer agent", "older agent", "oldest agent"],
)
async def test_agent_of_another_protocol_version_keeps_working(
    tmp_path: Path, site: Protocols, control: Protocols
) -> None:
    """The newer side sends what the other does not know; the older one leaves out what was added later."""

    def future(connection: SiteConnection) -> None:
        connection.send("weather", Nothing())
        status = {"attempt_id": "future-1", "phase": "starting", "at": 0.0, "mood": "good"}
        reason = {"code": "FromTheFuture", "params": {"depth": 7}}
        connection._write({"message": STATUSES, "body": {"changed": [{**status, "reason": reason}], "wind": 3}})

    def past(connection: SiteConnection) -> None:
        status = {"attempt_id": "past-1", "phase": "starting", "at": 0.0}
        connection._write({"message": STATUSES, "body": {"changed": [status]}})

    async with made(tmp_path, control) as platform:
        says_first = future if site.newest > control.newest else past
        local = await platform.appliance("lab", says_first=says_first, protocols=site)
        engine = await platform.engine("lab")
        link = platform.world.links.connection("lab")
        assert link.protocol == 1
        if control.newest > site.newest:
            link.send("weather", Nothing())
            with pytest.raises(EngineFailure, match="not known"):
                await link.request(RequestType("dance", Nothing, Nothing, 30.0), Nothing())
            with pytest.raises(EngineFailure, match="not known"):
                await link.open(StreamType("dance", Nothing), Nothing())
        request = platform.request()
        await engine.start(request)
        assert await ended(engine, request) == 0
        assert [line.text async for line in engine.logs(request.attempt_id)] == []
        assert [node.name for node in await engine.nodes()] == ["node-1"]
        assert local.world.starts[request.attempt_id] == 1
        assert not link.is_closed, "nothing of it ended the link"


async def test_killed_agent_takes_its_running_workloads_over(platform: Platform) -> None:
    data = platform.world.folder / "appliance"
    await platform.world.links.joined("lab")
    credentials = platform.world.joined("lab")
    shutil.copytree(credentials.folder, data / "site")
    command = (sys.executable, "-m", "commonage", "site", "agent", "--data-dir", str(data))
    variables = {**os.environ, "COMMONAGE_ENGINE": "process", "COMMONAGE_GPUS": "none", "COMMONAGE_NODE_NAME": "here"}
    agents = [await asyncio.create_subprocess_exec(*command, env=variables)]
    try:
        engine = await platform.engine("lab")
        shell = Environment("here", "This machine's own shell", python="/bin/sh")
        make = StartRequestFactory(shell, "here", command_of, time.time)
        request = make(Behaviour(lasts_s=None, prints=("here",), on_term_exit=9))
        await engine.start(request)

        async def runs() -> bool:
            return any(status.phase is Phase.RUNNING for status in await engine.statuses())

        await until(runs)
        agents[0].kill()
        await agents[0].wait()
        await until(lambda: not engine.is_connected)
        await engine.stop(request.attempt_id, 30)  # waits for the link
        agents.append(await asyncio.create_subprocess_exec(*command, env=variables))
        assert await ended(engine, request) == 9
        await engine.forget(request.attempt_id)
    finally:
        for agent in agents:
            if agent.returncode is None:
                agent.terminate()
                await agent.wait()


async def test_a_defect_of_the_engine_does_not_end_the_site_agent(tmp_path: Path) -> None:
    clock = FakeClock()
    engine = FakeEngine("east", [NodeReport("node-1", 64000, 65536)], clock)
    gateway = SiteGateway()
    await gateway.open()
    agent = SiteAgent(engine, gateway, tmp_path, clock)
    await agent.open()

    async def fail(*_: object) -> list[NodeReport]:
        raise ValueError("invalid literal for int(): '1k'")

    for call in ("nodes", "statuses", "measure"):
        setattr(engine, call, fail)
    loops = asyncio.create_task(agent.run())
    await settle()
    await clock.advance(5)
    await until(lambda: "in nodes(): ValueError" in agent._report.failure, "the failure is reported")
    await clock.advance(60)
    assert not loops.done()
    loops.cancel()
    await asyncio.gather(loops, return_exceptions=True)
    await agent.close()
    gateway.close()
