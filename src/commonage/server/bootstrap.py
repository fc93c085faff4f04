"""All wiring, in this one file: the adapter behind each port, and the web application over all of it.

Called by the server's main, which starts and stops the components made here. Decides nothing that a setting could
decide.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from commonage.api.app import create_app, end_streams
from commonage.api.auth import Auth
from commonage.catalogue import builtin_environments
from commonage.clouds.libcloud_machines import LibcloudMachines
from commonage.control.control import Control, World
from commonage.control.settings import BundleLimits, ControlSettings
from commonage.domain.environments import Environment
from commonage.gpu.detect import Opened, share_devices
from commonage.gpu.isolation.devices import Sharing
from commonage.gpu.slots import parse_slots
from commonage.link.agent_connections import AgentConnections
from commonage.metrics.http_meter import HttpMeter
from commonage.metrics.prometheus import metrics_router
from commonage.metrics.sql_metrics import SqlMetrics
from commonage.portal.auth import PortalAuth
from commonage.portal.router import create_router
from commonage.ports.engine import Engine
from commonage.server.agents import agents_of
from commonage.server.authority import authority_of
from commonage.server.clock import SystemClock
from commonage.server.control_settings import priority_classes_of, rules_of, volumes_of
from commonage.server.data_dir import DataDir, Ports
from commonage.server.engines import SITE, homes_dir, make_engine, shared_dir
from commonage.server.identity import HubIdentity
from commonage.server.joining import Joining, joining_plan
from commonage.server.origins import Origins, origins_of, warning_of
from commonage.server.processes.components import ExternalComponent
from commonage.server.processes.hub import HubPlan
from commonage.server.processes.registry import PlatformRegistry, RegistryPlan
from commonage.server.reserve import why_full
from commonage.server.secrets import Secrets
from commonage.server.settings.settings import Settings
from commonage.server.web.workload_gateway import NO_ACCESS, WorkloadAccess, WorkloadGateway
from commonage.storage.homes import HomeFolders
from commonage.store.bundle_files import BundleFiles
from commonage.store.sql_store import SqlStore
from commonage.store.urls import sqlite_url
from commonage.wire.hub import API_PATH


@dataclass(frozen=True, slots=True)
class Application:
    """The application that uvicorn serves, and the function that ends its live streams, which are endless otherwise."""

    serve: Any
    end_streams: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Components:
    """The components that have to be opened, run and closed."""

    control: Control
    store: SqlStore
    metrics: SqlMetrics
    identity: HubIdentity
    devices: Opened
    engines: Sequence[Engine]
    web: Application
    gateway: WorkloadGateway
    registry: PlatformRegistry | None = None
    agents: AgentConnections | None = None
    joining: Joining | None = None


def database_of(settings: Settings, data_dir: Path) -> str:
    """The address of the control plane's database."""
    return settings.database_url or sqlite_url(data_dir / "commonage.db")


def catalogue_of(settings: Settings) -> list[Environment]:
    """The environments on offer: the built-in ones, and those of the settings, which override built-in ones of the
    same name.
    """
    own = {one.name: one for one in builtin_environments()}
    if settings.engine != "process":  # the makers of an image decide what is in it
        own = {name: replace(one, image=settings.docker_image, description="") for name, one in own.items()}
    return list((own | {entry.name: entry.entry() for entry in settings.environments}).values())


def without_image(settings: Settings) -> list[Environment]:
    """Environments without an image. They cannot run where workloads run in containers, so they are not on offer."""
    return [] if settings.engine == "process" else [one for one in catalogue_of(settings) if one.image is None]


def hub_plan(settings: Settings, data: DataDir, ports: Ports, port: int) -> HubPlan:
    """The plan of the hub and its proxy. Raises InvalidInput if the origins contradict each other."""
    origins = origins_of(settings, port)
    return HubPlan(
        data_dir=data.path,
        bind=settings.bind,
        port=port,
        control_port=ports.control,
        hub_port=ports.hub,
        proxy_api_port=ports.proxy_api,
        database_url=settings.hub_database_url,
        public_url=origins.hub,
        session_origin=origins.sessions,
        authenticator_class=settings.authenticator_class,
        admin_users=settings.admin_users,
        max_failed_sign_ins_per_minute=settings.max_failed_sign_ins_per_minute,
        extra_config=settings.hub_config,
        token_lifetime_s=settings.token_lifetime,
    )


def control_settings(settings: Settings) -> ControlSettings:
    """The settings of control. Raises InvalidInput if a tenant names something that does not exist."""
    return ControlSettings(
        name=settings.name,
        rules=rules_of(settings, [one.name for one in catalogue_of(settings)], [SITE]),
        priority_classes=priority_classes_of(settings),
        default_cpus_milli=settings.default_cpus,
        default_memory_mib=settings.default_memory,
        session_environment=settings.session_environment,
        job_environment=settings.job_environment,
        max_array=settings.max_array,
        port_source_ranges=settings.port_source_ranges if settings.engine == "swarm" else (),
        limits=settings.limits,
        token_lifetime_s=settings.token_lifetime,
        prices=settings.prices,
        volumes=volumes_of(settings, [ControlSettings().default_tenant, *(one.name for one in settings.tenants)]),
        home_quota_mib=settings.home_quota,
        bundles=bundle_limits(settings),
        prepull=settings.prepull,
        warn_before_s=settings.warn_before,
        sample_every_s=settings.sample_every_s,
        gpu_over_share=settings.gpu_over_share,
        gpu_over_share_after_s=settings.gpu_over_share_after,
        gpu_over_share_tolerance_mib=settings.gpu_over_share_tolerance,
    )


def bundle_limits(settings: Settings) -> BundleLimits:
    """The size limits of bundles."""
    return BundleLimits(
        per_user=settings.bundles_per_user,
        per_user_mib=settings.bundle_space_per_user,
        per_tenant=settings.bundles_per_tenant,
        per_tenant_mib=settings.bundle_space_per_tenant,
        keep_s=settings.keep_bundles,
    )


def sharing_of(settings: Settings, data_dir: Path) -> Sharing:
    """The sharing of this node's GPUs."""
    inside = settings.engine != "process"
    return Sharing(data_dir.absolute() / "gpus", settings.gpu_isolation, parse_slots(settings.gpu_slots), inside)


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
    authority, password = authority_of(data.path), secrets.registry_password
    if settings.children == "external":
        return PlatformRegistry(plan, authority, password, supervise=lambda child: ExternalComponent(child, data.path))
    return PlatformRegistry(plan, authority, password)


async def assemble(
    settings: Settings,
    data: DataDir,
    secrets: Secrets,
    hub: HubPlan,
    access: WorkloadAccess = NO_ACCESS,
    registry: PlatformRegistry | None = None,
) -> Components:
    """Make and wire all components. None of them is open yet except the GPUs. Raises InvalidInput,
    DevicesUnavailable.
    """
    clock = SystemClock()
    node_name = settings.node_name or socket.gethostname()
    sharing = sharing_of(settings, data.path)
    agents = await asyncio.to_thread(agents_of, settings, data.path, access.gateway_port)
    # On engines with agents, this node's own agent allocates its GPUs.
    wanted = settings.gpus if agents is None else "none"
    devices = await asyncio.to_thread(share_devices, wanted, sharing, node_name=node_name, clock=clock)
    if agents is not None:
        devices = devices._replace(said="The GPUs of each node are given out by its own agent.")
    account = registry.account if registry is not None else None
    engine = make_engine(settings, data.path, devices.devices, access, account, agents)
    database = database_of(settings, data.path)
    store, metrics = SqlStore(database), SqlMetrics(database)
    identity = HubIdentity(hub.hub_url, secrets.hub_service_token, doubt=partial(why_full, data.path))
    plan = joining_plan(settings, shared_dir(settings, data.path), settings.agents_port, account)
    joining = None if plan is None else Joining(plan, authority_of(data.path), data.path / "joining", clock)
    world = World(
        store=store,
        metrics=metrics,
        clock=clock,
        identity=identity,
        bundles=BundleFiles(data.folder("bundles"), settings.max_bundle),
        devices=devices.devices,
        elsewhere=agents,
        engines=[engine],
        environments=[one for one in catalogue_of(settings) if one not in without_image(settings)],
        chance=random.SystemRandom().randrange,
        clouds=[(one.policy(), LibcloudMachines(one.rental())) for one in settings.node_pools],
        joining=None if joining is None else joining.join_service,
        homes=HomeFolders(homes_dir(settings, data.path)),
    )
    origins = Origins(hub.public_url, hub.session_origin)
    about = replace(control_settings(settings), session_origin=origins.sessions, origin_warning=warning_of(origins))
    control = Control(world, about)
    web = _application(control, secrets, registry, joining, origins)
    gateway = WorkloadGateway(web.serve, hub.hub_url)
    return Components(
        control, store, metrics, identity, devices, world.engines, web, gateway, registry, agents, joining
    )


def _application(
    control: Control, secrets: Secrets, registry: PlatformRegistry | None, joining: Joining | None, origins: Origins
) -> Application:
    """API, portal and /metrics, with request metrics."""
    meter = HttpMeter()
    identity, clock = control.identity, control.clock
    apart_by_https = bool(origins.sessions) and (origins.hub or "").startswith("https:")
    portal = create_router(control, PortalAuth(identity, clock, secrets.cookie_secret, host_cookies=apart_by_https))
    figures = metrics_router(control, meter)
    auth = Auth(identity, secrets.spawner_token, secrets.operator_token)
    nodes = None if joining is None else joining.join_service
    app = create_app(control, auth, portal, figures.routes, nodes=nodes, images=registry)
    return Application(meter.around(app), lambda: end_streams(app))
