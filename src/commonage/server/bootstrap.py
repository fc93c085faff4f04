"""All wiring: the adapter behind each port, and the web application. Main opens, runs and closes the components."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from commonage import tracing
from commonage.api.app import create_app, end_streams
from commonage.api.auth import Auth
from commonage.api.routing import Services
from commonage.api.tracing import TracedRequests
from commonage.catalogue.apps import known_apps
from commonage.control.control import Adapters, Control
from commonage.control.engines import Engines
from commonage.control.usage.site_samples import SiteSamples
from commonage.domain.nodes import LOCAL_SITE
from commonage.engines.kubernetes.engine import KubernetesEngine
from commonage.engines.kubernetes.storage.files import ClusterCopies, ClusterFiles
from commonage.engines.kubernetes.storage.sizes import ClusterHomes
from commonage.engines.remote.engine import FromSites
from commonage.engines.settings import RemoteSettings
from commonage.files.safe_path import SafePath
from commonage.gpu.detect import Opened, share_devices
from commonage.gpu.isolation.devices import Sharing
from commonage.gpu.slots import parse_slots
from commonage.join.pods import PodJoins
from commonage.link.agent_connections import AgentConnections
from commonage.metrics.http_meter import HttpMeter
from commonage.metrics.prometheus import metrics_router
from commonage.metrics.sql_metrics import SqlMetrics
from commonage.portal.auth import PortalAuth
from commonage.portal.router import create_router
from commonage.ports.agents import RemoteDevices
from commonage.ports.engine import Engine
from commonage.ports.files import Files
from commonage.ports.homes import Homes, Storage
from commonage.ports.joining import Joining
from commonage.ports.materials import HomeCopies
from commonage.server import ServerError
from commonage.server.configure import (
    EnginePlace,
    RegistryAccess,
    agents_of,
    control_settings,
    gpus_here,
    homes_dir,
    kubernetes_settings,
    make_engine,
    materials_dir,
    materials_of,
    sample_retention,
    shared_dir,
)
from commonage.server.data_dir import DataDir
from commonage.server.identity import HubIdentity
from commonage.server.joining import JoiningMachines, join_config
from commonage.server.origins import Origins, warning_of
from commonage.server.platform import LocalSupport, builtin_of, declared_of
from commonage.server.processes.children import Supervisor
from commonage.server.processes.components import ExternalComponent
from commonage.server.processes.hub import HubPlan
from commonage.server.processes.registry import PlatformRegistry, RegistryPlan
from commonage.server.proxy_rules import RulesFile, ServedRules
from commonage.server.reserve import why_full
from commonage.server.secrets import Secrets, authority_of
from commonage.server.service_access import TraefikServices
from commonage.server.session_names import SessionNames
from commonage.server.settings.settings import Settings
from commonage.server.sites import FOLDER as SITES_FOLDER
from commonage.server.sites import remote_sites
from commonage.server.web import Proxies
from commonage.server.workload_gateway import NO_ACCESS, WorkloadAccess, WorkloadGateway
from commonage.storage.homes import HomeFolders
from commonage.storage.materials.home_copies import FolderCopies
from commonage.storage.user_files import FolderFiles
from commonage.store.bundle_files import BundleFiles
from commonage.store.sql_store import SqlStore
from commonage.store.urls import sqlite_url
from commonage.wire.hub import API_PATH


class SystemClock:
    def now(self) -> float:
        """Unix seconds, UTC."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Components:
    """The components that have to be opened, run and closed. `end_streams` ends the live streams of `web`.

    `proxies`: those whose forwarding headers `web` believes.
    """

    control: Control
    store: SqlStore
    metrics: SqlMetrics
    identity: HubIdentity
    devices: Opened
    engines: Engines
    web: ASGIApp
    proxies: Proxies
    end_streams: Callable[[], None]
    gateway: WorkloadGateway
    registry: PlatformRegistry | None = None
    agents: AgentConnections | None = None
    joining: JoiningMachines | None = None
    pods: PodJoins | None = None


def trace(settings: Settings, component: str) -> None:
    """Send the traces of this process to where the settings say. Raises ServerError."""
    if settings.tracing_endpoint is not None:
        try:
            tracing.configure(settings.tracing_endpoint, component, settings.tracing_share)
        except tracing.TracingMissing as error:
            raise ServerError(str(error)) from error


def database_of(settings: Settings, data_dir: Path) -> str:
    return settings.database_url or sqlite_url(data_dir / "commonage.db")


def sharing_of(settings: Settings, data_dir: Path) -> Sharing:
    inside = settings.engine != "process"
    slots = parse_slots(settings.gpu_slots)
    return Sharing(data_dir.absolute() / "gpus", settings.gpu_isolation, slots, inside, settings.gpu_preload)


def registry_of(settings: Settings, data: DataDir, secrets: Secrets, port: int) -> PlatformRegistry | None:
    """The image registry, or None if it is not enabled. `port` is the one that users reach. Raises AuthorityError."""
    if not settings.registry:
        return None
    everywhere = settings.registry_bind in ("0.0.0.0", "::")
    host = settings.registry_host or (socket.gethostname().lower() if everywhere else settings.registry_bind)
    plan = RegistryPlan(
        folder=data.path / "registry",
        logs=data.logs,
        bind=settings.registry_bind,
        port=settings.registry_port,
        host=host,
        realm=f"{(settings.public_url or f'http://{host}:{port}').rstrip('/')}{API_PATH}/registry/token",
        keep_days=settings.registry_keep_days,
    )
    external = settings.children == "external"
    return PlatformRegistry(
        plan,
        authority_of(data.path),
        secrets.registry_password,
        supervise=lambda child: ExternalComponent(child, data.path) if external else Supervisor([child]),
    )


def _files(settings: Settings, engine: Engine, homes: SafePath) -> tuple[Files, HomeCopies]:
    """The files of homes and volumes of this site, and the copies of materials in its homes."""
    files = FolderFiles(homes)
    if not isinstance(engine, KubernetesEngine):
        return files, FolderCopies(homes)
    in_cluster = kubernetes_settings(settings)
    return ClusterFiles(files, in_cluster, engine.file_pods), ClusterCopies(in_cluster, engine.file_pods)


def _homes(engine: Engine, homes: HomeFolders) -> Homes:
    """Those of this machine, or the claims of a cluster."""
    return ClusterHomes(homes, engine.claim_sizes) if isinstance(engine, KubernetesEngine) else homes


def _mounts_materials(settings: Settings, folder: Path) -> bool:
    """Whether workloads of this site can mount the versions of materials: in a cluster, if a claim has them."""
    claims = kubernetes_settings(settings).storage.folders if settings.engine == "kubernetes" else ()
    return settings.engine != "kubernetes" or any(folder.is_relative_to(one) for one, _ in claims)


_GPUS_ELSEWHERE = {
    "swarm": "The GPUs of each node are given out by its own agent.",
    "kubernetes": "The cluster gives out the GPUs of its nodes.",
}
"""The line about GPUs that the start prints, for engines that do not open the GPUs of this machine."""


def _proxies(settings: Settings, served: ServedRules | None) -> list[str]:
    """The addresses whose forwarding headers are believed."""
    return [*settings.trusted_proxies, *(served.proxies() if served is not None else ())]


async def assemble(
    settings: Settings,
    data: DataDir,
    secrets: Secrets,
    hub: HubPlan,
    access: WorkloadAccess = NO_ACCESS,
    registry: PlatformRegistry | None = None,
) -> Components:
    """Make and wire all components. Only the GPUs are open yet. Raises InvalidInput, DevicesUnavailable."""
    clock = SystemClock()
    node_name = settings.node_name or socket.gethostname()
    sharing = sharing_of(settings, data.path)
    agents = await asyncio.to_thread(agents_of, settings, data.path, access.gateway_port)
    devices = await asyncio.to_thread(share_devices, gpus_here(settings), sharing, node_name=node_name, clock=clock)
    devices = devices._replace(said=_GPUS_ELSEWHERE.get(settings.engine, devices.said))
    account = registry.account if registry is not None else None
    place = EnginePlace(LOCAL_SITE, data.path)
    engine = make_engine(settings, place, devices.devices, access, RegistryAccess(account), agents)
    database = database_of(settings, data.path)
    store, metrics = SqlStore(database), SqlMetrics(database, sample_retention(settings))
    identity = HubIdentity(hub.hub_url, secrets.hub_service_token, doubt=partial(why_full, data.path))
    served = ServedRules(secrets.proxy_token) if hub.is_remote else None
    joining, engines = None, Engines([engine])
    joins: ChainMap[str, Joining] = ChainMap({})
    storage: Mapping[str, Storage] = {}

    async def node_left(site: str, name: str) -> None:
        await control.drains.left_site(site, name)

    in_pods = engine.agents if isinstance(engine, KubernetesEngine) else None
    local: RemoteDevices | None = in_pods or agents
    elsewhere: ChainMap[str, RemoteDevices] = ChainMap({} if local is None else {LOCAL_SITE: local})
    if address := settings.site_address:
        authority = authority_of(data.path)
        kept = SiteSamples(store, metrics, clock)
        from_sites = FromSites(kept.write, node_left)
        if registry is not None:
            from_sites = replace(from_sites, pull_token=registry.pull_token)
        at = account.address if account else ""
        remote_settings = RemoteSettings(
            data.path.absolute() / SITES_FOLDER,
            access.gateway_port,
            access.ports,
            at,
            hub.own_ports | {access.gateway_port},
        )
        remote = await asyncio.to_thread(
            remote_sites, authority, data.path, clock, from_sites, remote_settings, engines
        )
        elsewhere.maps.append(remote.engines.devices)  # sites come and go
        joins.maps.append(remote.engines.joining)
        storage = remote.engines.storage
        site = join_config(settings, address, shared_dir(settings, data.path), at)
        joining = JoiningMachines(settings, site, authority, data.path, clock, remote)
        joins[LOCAL_SITE] = joining.join_service
    homes = homes_dir(settings, data.path)
    files, copies = _files(settings, engine, homes)
    adapters = Adapters(
        store=store,
        metrics=metrics,
        clock=clock,
        identity=identity,
        bundles=BundleFiles(data.folder("bundles"), settings.max_bundle),
        devices=devices.devices,
        elsewhere=elsewhere,
        engines=engines,
        environments=builtin_of(settings),
        chance=random.SystemRandom().randrange,
        support=LocalSupport(settings, engine.cloud if isinstance(engine, KubernetesEngine) else None),
        declared=declared_of(settings),
        joining=joins,
        sites=None if joining is None else joining.site_service,
        homes=_homes(engine, HomeFolders(homes, data.path / "archive")),
        files=files,
        storage=storage,
        apps=known_apps(),
        services=TraefikServices(
            RulesFile(hub.rules_file.with_name("services.yaml")).put if served is None else served.put,
            hub.control_url,
            tuple(hub.addresses),
            hub.public_url,
            hub.session_origin,
        ),
        registry=registry,
        materials=materials_of(settings, data.path, copies),
    )
    origins = Origins(hub.public_url, hub.session_origin)
    settings_of_control = replace(
        control_settings(settings),
        session_origin=origins.sessions,
        portal_origin=origins.hub or "",
        origin_warning=warning_of(origins),
        materials_folder=str(materials_dir(settings, data.path).path.absolute()),
        homes_per_tenant=files.is_per_tenant(None),
        materials_mounted=_mounts_materials(settings, materials_dir(settings, data.path).path.absolute()),
    )
    control = Control(adapters, settings_of_control)
    meter = HttpMeter()
    has_host_cookies = bool(origins.sessions) and (origins.hub or "").startswith("https:")
    portal_auth = PortalAuth(
        identity, clock, secrets.cookie_secret, host_cookies=has_host_cookies, admit=control.names.admit
    )
    # For Caddy on this machine, or for proxies elsewhere.
    names = SessionNames(identity.accounts, control.live_state.is_service, hub.session_origin)
    inner = names.route() if served is None else served.route()
    app = create_app(
        control,
        Auth(identity, secrets.spawner_token, secrets.operator_token, control.names.admit),
        create_router(control, portal_auth),
        [*metrics_router(control, meter).routes, inner],
        Services(registry),
    )
    web = meter.around(TracedRequests(app) if tracing.is_on() else app)

    return Components(
        control=control,
        store=store,
        metrics=metrics,
        identity=identity,
        devices=devices,
        engines=adapters.engines,
        web=web,
        proxies=partial(_proxies, settings, served),
        end_streams=lambda: end_streams(app),
        gateway=WorkloadGateway(web, hub.hub_url),
        registry=registry,
        agents=agents,
        joining=joining,
        pods=None if in_pods is None else PodJoins(authority_of(data.path), in_pods.identify),
    )
