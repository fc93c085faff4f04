"""Many simulated appliances in one process: real joins, site agents and links, with a simulated engine each.

Started by `sites`, as a process of its own. Standard input has a line of JSON, `[[SITE, TOKEN], …]`; standard output
gets `joined` when all have joined. They end when standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from benchmarks.sites.simulated import SimulatedEngine
from commonage.gpu.simulated import SimulatedDevices, SimulatedSpec
from commonage.link.sites.credentials import SiteCredentials
from commonage.link.sites.dialer import SiteDialer
from commonage.link.sites.messages.hello import SiteWelcome
from commonage.link.sites.transport.connection import SiteConnection
from commonage.ports.clock import Clock
from commonage.site_agent.agent import SiteAgent, SiteParts, SiteSettings
from commonage.site_agent.devices import SiteDevices
from commonage.site_agent.gateway import SiteGateway
from commonage.site_agent.join import join

_JOINS_AT_ONCE = 4
_GPU_MIB = 80 * 1024


class _SystemClock(Clock):
    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def join_all(folder: Path, tokens: Sequence[tuple[str, str]]) -> list[SiteCredentials]:
    """Join with each token, over the network. Raises CommonageError."""

    def one(site: str, token: str) -> SiteCredentials:
        credentials = SiteCredentials(folder / site)
        join(credentials, token)
        return credentials

    with ThreadPoolExecutor(_JOINS_AT_ONCE) as threads:
        return list(threads.map(lambda each: one(*each), tokens))


async def run(joined: Sequence[SiteCredentials], gpus: int, sample_every_s: float) -> None:
    """Run an appliance for each of them until cancelled."""
    async with AsyncExitStack() as closing, asyncio.TaskGroup() as tasks:
        for credentials in joined:
            await _begin(credentials, gpus, SiteSettings(sample_every_s=sample_every_s), closing, tasks)


async def _begin(
    credentials: SiteCredentials, gpus: int, settings: SiteSettings, closing: AsyncExitStack, tasks: asyncio.TaskGroup
) -> None:
    clock = _SystemClock()
    gateway = SiteGateway()
    await gateway.open()
    closing.callback(gateway.close)
    site = credentials.identity().site
    devices = SimulatedDevices([SimulatedSpec(gpus, _GPU_MIB)], node_name=site, now=clock.now)
    engine = SimulatedEngine(site, clock, devices)
    agent = SiteAgent(engine, gateway, credentials.folder, clock, settings, SiteParts(SiteDevices(devices)))
    closing.push_async_callback(agent.close)
    await agent.open()

    async def use(connection: SiteConnection, _welcome: SiteWelcome) -> None:
        await agent.use(connection)

    tasks.create_task(agent.run())
    tasks.create_task(SiteDialer(credentials, agent.handlers(), use).run())


async def _until_closed(folder: Path, gpus: int, sample_every_s: float) -> None:
    tokens = json.loads(await asyncio.to_thread(sys.stdin.readline))
    joined = await asyncio.to_thread(join_all, folder, tokens)
    print("joined", flush=True)
    running = asyncio.create_task(run(joined, gpus, sample_every_s))
    closed = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait({running, closed}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def main(folder: str, gpus: str, sample_every_s: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_closed(Path(folder), int(gpus), float(sample_every_s)))


if __name__ == "__main__":
    main(*sys.argv[1:])
