"""Runs the site agent on an appliance: its engine, its link to the control plane, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.gpu.detect import share_devices
from commonage.link.agent_connections import AgentConnections
from commonage.link.messages import Nothing
from commonage.link.sites.credentials import SiteCredentials
from commonage.link.sites.dialer import SiteDialer
from commonage.link.sites.messages.engine import ATTACH, SiteNetwork
from commonage.link.sites.messages.hello import SiteWelcome
from commonage.link.sites.transport.connection import Handlers, SiteConnection
from commonage.ports.agents import OnProgress
from commonage.ports.clock import Clock
from commonage.ports.homes import Storage
from commonage.server.bootstrap import SystemClock, sharing_of, trace
from commonage.server.configure import (
    EnginePlace,
    RegistryAccess,
    agents_of,
    gpus_here,
    homes_dir,
    make_engine,
    shared_dir,
)
from commonage.server.data_dir import DataDir
from commonage.server.joining import JoiningNodes, PlatformTrust, site_join_config
from commonage.server.settings.settings import Settings
from commonage.server.workload_gateway import WorkloadAccess
from commonage.site_agent.agent import SiteAgent, SiteParts, SiteSettings
from commonage.site_agent.devices import SiteDevices
from commonage.site_agent.gateway import SiteGateway
from commonage.site_agent.images import PullTokens
from commonage.site_agent.joining import SiteDrains
from commonage.site_agent.network import KeptNetwork
from commonage.storage.homes import HomeFolders

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
    trace(settings, "site-agent")
    clock: Clock = SystemClock()
    credentials = SiteCredentials(folder)
    identity = await asyncio.to_thread(credentials.identity)
    site = identity.site
    await asyncio.to_thread(credentials.keep_authority, identity)
    network = await _network(credentials, KeptNetwork(folder))
    async with AsyncExitStack() as closing:
        gateway = SiteGateway()
        await gateway.open()
        closing.callback(gateway.close)
        node_name = settings.node_name or socket.gethostname()
        agents = await asyncio.to_thread(agents_here, settings, data.path, gateway.port)
        sharing = sharing_of(settings, data.path)
        opened = await asyncio.to_thread(share_devices, gpus_here(settings), sharing, node_name=node_name, clock=clock)
        closing.callback(opened.devices.close)
        platform = PlatformTrust(network.registry, identity.authority)
        joining = await asyncio.to_thread(_joining, settings, data, site, platform, clock)
        access = WorkloadAccess(network.ports, gateway.port)
        images = RegistryAccess(get_pull_token=PullTokens(lambda: gateway.connection).get)
        engine = make_engine(settings, EnginePlace(site, data.path), opened.devices, access, images, agents)
        own = SiteSettings(sample_every_s=settings.sample_every_s, serves_ports=settings.engine == "process")
        join_service = None if joining is None else joining.join_service
        parts = SiteParts(SiteDevices(opened.devices, agents), join_service, _storage(settings, data))
        agent = SiteAgent(engine, gateway, folder, clock, own, parts)
        if agents is not None:
            closing.push_async_callback(agents.close)
            drains = SiteDrains(join_service, lambda: gateway.connection, agent.refresh) if join_service else None
            await agents.open(settings.agents_bind, settings.agents_port, drains)
        closing.push_async_callback(agent.close)
        try:
            await agent.open()
        except EngineFailure as error:
            raise EngineFailure(f"the {settings.engine} engine of this site cannot be used: {error}") from error
        _log.info("site %s: %s engine is open", site, settings.engine)
        if joining is not None and agents is not None:
            await joining.open(agents)
            closing.push_async_callback(joining.close)
            _log.info("nodes can join site %s", site)

        async def use(connection: SiteConnection, _welcome: SiteWelcome) -> None:
            await agent.use(connection)

        async with asyncio.TaskGroup() as loops:
            loops.create_task(agent.run())
            loops.create_task(SiteDialer(credentials, agent.handlers(), use).run())
            if agents is not None:
                loops.create_task(agents.run())


def _joining(
    settings: Settings, data: DataDir, site: str, platform: PlatformTrust, clock: Clock
) -> JoiningNodes | None:
    """The join service for nodes of a Swarm that says at which address they reach it; else None. Blocks briefly."""
    if settings.engine != "swarm" or not settings.site_address:
        return None
    config = site_join_config(settings, settings.site_address, site, shared_dir(settings, data.path), platform)
    return JoiningNodes(settings, config, data.path, clock)


def agents_here(settings: Settings, data_dir: Path, gateway_port: int) -> AgentConnections | None:
    """As `agents_of`, for a Swarm only: an appliance does not admit agents in Pods, which would wait forever."""
    if settings.engine != "kubernetes":
        return agents_of(settings, data_dir, gateway_port)
    if settings.kubernetes_agents:
        _log.warning("kubernetes_agents is ignored: nodes of an appliance have no agents in Pods. Remove the setting")
    return None


def _storage(settings: Settings, data: DataDir) -> Storage | None:
    """None on Kubernetes: homes and volumes are claims or folders of the nodes, which this machine does not see."""
    if settings.engine == "kubernetes":
        return None
    return HomeFolders(homes_dir(settings, data.path), data.path / "archive")


async def _network(credentials: SiteCredentials, kept: KeptNetwork) -> SiteNetwork:
    """The ports of the platform, which the engine needs: from the last link, or else from the first one."""
    if (known := await asyncio.to_thread(kept.read)) is not None:
        return known
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
    await asyncio.to_thread(kept.keep, network)
    return network
