"""Derives the settings of control, engine and agents from the server's. Called by the bootstrap and by commands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commonage.catalogue import builtin_environments
from commonage.control.settings import BundleLimits, ControlSettings, Retention
from commonage.domain.errors import InvalidInput
from commonage.domain.images import Environment
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.tenants import PRIORITY_CLASSES, PriorityClass, Rules
from commonage.domain.volumes import Volume, VolumeKind, see_that_folders_are_apart
from commonage.engines.docker.engine import DockerEngine
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import DockerSettings, ProcessSettings, SwarmSettings, parse_mount
from commonage.engines.swarm.engine import SwarmEngine
from commonage.files.safe_path import SafePath
from commonage.link import saved_reports
from commonage.link.agent_connections import AgentConnections
from commonage.metrics.sql_metrics import SampleRetention
from commonage.ports.agents import AgentReport, Agents
from commonage.ports.devices import Devices
from commonage.ports.engine import Engine
from commonage.ports.registry import RegistryAccount
from commonage.server.secrets import authority_of
from commonage.server.settings.settings import Settings
from commonage.server.workload_gateway import WorkloadAccess


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """The site of an engine, and its data folder."""

    site: str
    data: Path


def make_engine(
    settings: Settings,
    place: EnginePlace,
    devices: Devices,
    access: WorkloadAccess,
    account: RegistryAccount | None = None,
    agents: Agents | None = None,
) -> Engine:
    """The engine of the settings, not open yet. `access`: how containers reach the hub and the control plane.

    `account`: the credentials to pull images from the site's registry; `agents`: the agents of the site's nodes.
    """
    site, data = place.site, place.data
    every: dict[str, Any] = {
        "cpu_hold": settings.cpu_hold,
        "keep_logs_s": settings.keep_logs,
        "keep_job_files_s": settings.keep_job_files,
        "max_log_mib": settings.max_log,
    }
    node: dict[str, Any] = {
        "node_name": settings.node_name,
        "cpus_milli": settings.cpus,
        "memory_mib": settings.memory,
        "labels": tuple(settings.node_labels.items()),
    }
    if settings.engine == "process":
        process = ProcessSettings(**every, **node, warm_sessions=settings.warm_sessions)
        return ProcessEngine(site, data, devices=devices, settings=process)
    daemon: dict[str, Any] = {
        "url": settings.docker_url,
        "pull": settings.docker_pull,
        "reaches": access.ports,
        "gateway_port": access.gateway_port,
        "mounts": tuple(parse_mount(text) for text in settings.docker_mounts),
        "account": account,
    }
    if settings.engine == "docker":
        docker = DockerSettings(**every, **node, **daemon, networks=settings.docker_networks)
        return DockerEngine(site, data, devices=devices, settings=docker)
    swarm = SwarmSettings(
        **every,
        **daemon,
        address=settings.swarm_address,
        networks=settings.swarm_networks,
        encrypted=settings.swarm_encrypted,
        sources=settings.port_source_ranges,
        without_agents=settings.swarm_without_agents,
    )
    return SwarmEngine(site, data, shared_dir(settings, data), agents=agents, settings=swarm)


def shared_dir(settings: Settings, data: Path) -> Path:
    """The folder that all nodes of the site share; with a single node, its data folder."""
    return settings.shared_dir.absolute() if settings.shared_dir and settings.engine == "swarm" else data


def homes_dir(settings: Settings, data: Path) -> SafePath:
    """The folder with all homes. It may be a link, except on a Swarm, where other nodes write to its parent folder."""
    if settings.engine == "swarm":
        return SafePath(shared_dir(settings, data)) / "workspaces"
    return SafePath(data / "workspaces")


def agents_of(settings: Settings, data_dir: Path, gateway_port: int) -> AgentConnections | None:
    """The agents of the site's nodes, not open yet; None for an engine without agents.

    `gateway_port` is the workload gateway's on the loopback. Raises AuthorityError. Blocks briefly.
    """
    if settings.engine != "swarm":
        return None
    authority, memory = authority_of(data_dir), _agents_file(data_dir)
    return AgentConnections(
        authority, reports_file=memory, always_allowed=settings.containers_reach, gateway_port=gateway_port
    )


def stored_reports(data_dir: Path) -> Mapping[str, AgentReport]:
    """The last stored reports of the agents, by node name. Blocks briefly."""
    return {one.node: one for one in saved_reports.read(_agents_file(data_dir))}


def _agents_file(data_dir: Path) -> Path:
    return data_dir.absolute() / "agents.json"


def sample_retention(settings: Settings) -> SampleRetention:
    return SampleRetention(
        raw_s=settings.keep_samples,
        minutes_s=settings.keep_samples_by_minute,
        hours_s=settings.keep_samples_by_hour,
        attempts_s=settings.keep_workloads,
    )


def control_settings(settings: Settings) -> ControlSettings:
    """The settings of control. Raises InvalidInput if a tenant names something that does not exist."""
    return ControlSettings(
        name=settings.name,
        rules=rules_of(settings),
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
        volumes=volumes_of(settings),
        home_quota_mib=settings.home_quota,
        bundles=BundleLimits(
            per_user=settings.bundles_per_user,
            per_user_mib=settings.bundle_space_per_user,
            per_tenant=settings.bundles_per_tenant,
            per_tenant_mib=settings.bundle_space_per_tenant,
            keep_s=settings.keep_bundles,
        ),
        retention=Retention(workloads_s=settings.keep_workloads, events_s=settings.keep_events),
        prepull=settings.prepull,
        warn_before_s=settings.warn_before,
        sample_every_s=settings.sample_every_s,
        gpu_over_share=settings.gpu_over_share,
        gpu_over_share_after_s=settings.gpu_over_share_after,
        gpu_over_share_tolerance_mib=settings.gpu_over_share_tolerance,
    )


def catalogue_of(settings: Settings) -> list[Environment]:
    """The built-in environments and those of the settings, which override built-in ones of the same name."""
    own = {one.name: one for one in builtin_environments()}
    if settings.engine != "process":  # the image decides its contents
        own = {name: replace(one, image=settings.docker_image, description="") for name, one in own.items()}
    return list((own | {entry.name: entry.entry() for entry in settings.environments}).values())


def without_image(settings: Settings) -> list[Environment]:
    """Environments without an image on an engine with containers. They are not available."""
    return [] if settings.engine == "process" else [one for one in catalogue_of(settings) if one.image is None]


def rules_of(settings: Settings) -> Rules:
    """The planner's rules. Raises InvalidInput if a tenant names an environment or a site that does not exist."""
    environments = [environment.name for environment in catalogue_of(settings)]
    for entry in settings.tenants:
        # Images are pushed and removed while the server runs; their names have a slash.
        fixed = [name for name in entry.environments if "/" not in name]
        _check_names(f"the tenant {entry.name}: environments", fixed, environments)
        bounded = [name for name in entry.per_environment if "/" not in name]
        _check_names(f"the tenant {entry.name}: per_environment", bounded, environments)
        _check_names(f"the tenant {entry.name}: sites", entry.sites, [LOCAL_SITE])
    return Rules(
        tenants=tuple(entry.tenant() for entry in settings.tenants),
        policy=settings.policy,
        site_policy=settings.site_policy.value,
        half_life_s=float(settings.half_life),
        entry_penalty_s=float(settings.entry_penalty),
        age_credit=settings.age_credit,
        guaranteed_s=float(settings.guaranteed_runtime),
        head_of_queue_timeout_s=float(settings.head_of_queue_timeout),
        time_zone=settings.quota_time_zone,
    )


def volumes_of(settings: Settings) -> tuple[Volume, ...]:
    """The volumes. Raises InvalidInput if one names a tenant that does not exist, or the engine does not support it.

    A folder that containers write to must not contain a volume: they could replace the volume by a link.
    """
    tenants = [ControlSettings().default_tenant, *(tenant.name for tenant in settings.tenants)]
    for entry in settings.volumes:
        _check_names(f"the volume {entry.name}: tenants", entry.tenants, tenants)
        if entry.kind is VolumeKind.DOCKER and settings.engine == "process":
            raise InvalidInput(
                f'Volume {entry.name} is a Docker volume, and workloads are processes here (engine = "process"). '
                'Give it a source instead, or set engine = "docker".',
                field="volumes",
            )
    volumes = tuple(entry.volume() for entry in settings.volumes)
    if settings.engine != "process":
        mounts = (parse_mount(one) for one in settings.docker_mounts)
        places = [(f"the volume {one.name}", one.source, one.writable) for one in volumes if one.source]
        own = [settings.data_dir, *([] if settings.shared_dir is None else [settings.shared_dir])]
        see_that_folders_are_apart(
            [*places, *(("docker_mounts", one.source, one.writable) for one in mounts)],
            [str(one.absolute()) for one in own],
        )
    return volumes


def _check_names(what: str, names: Collection[str], known: Collection[str]) -> None:
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise InvalidInput(f"{what}: {missing!r} does not exist. Known: {', '.join(sorted(known))}.", field="tenants")


def priority_classes_of(settings: Settings) -> tuple[PriorityClass, ...]:
    """All priority classes, lowest first: built-in ones, and those of the settings, which override the same name."""
    found = {one.name: one for one in PRIORITY_CLASSES} | {
        entry.name: entry.priority_class() for entry in settings.priority_classes
    }
    return tuple(sorted(found.values(), key=lambda one: (one.priority, one.name)))
