"""Runs the site agent on an appliance: its engine, its link to the control plane, until it is stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.domain.errors import EngineFailure
from commonage.gpu.detect import share_devices
from commonage.link.messages import Nothing
from commonage.link.sites.connection import Handlers, SiteConnection
from commonage.link.sites.credentials import SiteCredentials
from commonage.link.sites.dialer import SiteDialer
from commonage.link.sites.engine_messages import ATTACH, SiteNetwork
from commonage.link.sites.messages import SiteWelcome
from commonage.ports.agents import OnProgress
from commonage.ports.clock import Clock
from commonage.server.bootstrap import SystemClock, sharing_of
from commonage.server.configure import EnginePlace, agents_of, make_engine
from commonage.server.data_dir import DataDir
from commonage.server.settings.settings import Settings
from commonage.server.workload_gateway import WorkloadAccess
from commonage.site_agent.agent import SiteAgent, SiteSettings
from commonage.site_agent.devices import SiteDevices
from commonage.site_agent.gateway import SiteGateway

_log = logging.getLogger(__name__)


async def run_site_agent(settings: Settings, data: DataDir, folder: Path) -> None:
    """Run until SIGTERM or SIGINT, which leave all workloads running. `folder`: the identity, and the agent's files.

    Raises NotJoined, EngineFailure, Unavailable.
    """
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    running = asyncio.create_task(_run(settings, data, folder))
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    stopping.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def _run(settings: Settings, data: DataDir, folder: Path) -> None:
    clock: Clock = SystemClock()
    credentials = SiteCredentials(folder)
    site = (await asyncio.to_thread(credentials.identity)).site
    network = await _network(credentials, folder / "network.json")
    async with AsyncExitStack() as closing:
        gateway = SiteGateway()
        await gateway.open()
        closing.callback(gateway.close)
        node_name = settings.node_name or socket.gethostname()
        agents = await asyncio.to_thread(agents_of, settings, data.path, gateway.port)
        wanted = settings.gpus if agents is None else "none"
        sharing = sharing_of(settings, data.path)
        opened = await asyncio.to_thread(share_devices, wanted, sharing, node_name=node_name, clock=clock)
        closing.callback(opened.devices.close)
        if agents is not None:
            closing.push_async_callback(agents.close)
            await agents.open(settings.agents_bind, settings.agents_port)
        access = WorkloadAccess(network.ports, gateway.port)
        engine = make_engine(settings, EnginePlace(site, data.path), opened.devices, access, agents=agents)
        own = SiteSettings(sample_every_s=settings.sample_every_s, serves_ports=settings.engine == "process")
        agent = SiteAgent(engine, gateway, folder, clock, own, SiteDevices(opened.devices, agents))
        closing.push_async_callback(agent.close)
        try:
            await agent.open()
        except EngineFailure as error:
            raise EngineFailure(f"the {settings.engine} engine of this site cannot be used: {error}") from error
        _log.info("site %s: %s engine is open", site, settings.engine)

        async def use(connection: SiteConnection, _welcome: SiteWelcome) -> None:
            await agent.use(connection)

        async with asyncio.TaskGroup() as loops:
            loops.create_task(agent.run())
            loops.create_task(SiteDialer(credentials, agent.handlers(), use).run())
            if agents is not None:
                loops.create_task(agents.run())


async def _network(credentials: SiteCredentials, path: Path) -> SiteNetwork:
    """The ports of the platform, which the engine has to know: those of the first link, kept for later starts."""
    with suppress(OSError, ValueError, Unreadable):
        return from_json(SiteNetwork, json.loads(path.read_text(encoding="ascii")), ignore_unknown=True)
    found: asyncio.Future[SiteNetwork] = asyncio.get_running_loop().create_future()

    async def note(network: SiteNetwork, _: OnProgress) -> Nothing:
        if not found.done():
            found.set_result(network)
        return Nothing()

    _log.info("waiting for the first link to the control plane")
    dialing = asyncio.create_task(SiteDialer(credentials, Handlers(requests={ATTACH: note})).run())
    try:
        dialing.add_done_callback(lambda _: found.cancel())
        await asyncio.wait({found})
        if found.cancelled():
            await dialing  # raises why
        network = found.result()
    finally:
        dialing.cancel()
        await asyncio.gather(dialing, return_exceptions=True)
    path.write_text(json.dumps(to_json(network)), encoding="ascii")
    return network
