"""Derives the settings of control, engine and agents from the server's. Called by the bootstrap and by commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from commonage.control.settings import BundleLimits, ControlSettings, Retention
from commonage.domain.tenants import Rules
from commonage.engines.docker.engine import DockerEngine
from commonage.engines.kubernetes.engine import KubernetesEngine
from commonage.engines.kubernetes.placement.tolerations import read_toleration
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import (
    DockerSettings,
    KeptNamespaceSettings,
    KubernetesSettings,
    KubernetesStorageSettings,
    ProcessSettings,
    SwarmSettings,
    parse_mount,
)
from commonage.engines.swarm.engine import SwarmEngine
from commonage.files.safe_path import SafePath
from commonage.link import saved_reports
from commonage.link.agent_connections import AgentConnections
from commonage.metrics.sql_metrics import SampleRetention
from commonage.ports.agents import AgentReport, NodeAgents
from commonage.ports.devices import Devices
from commonage.ports.engine import Engine
from commonage.ports.materials import HomeCopies
from commonage.ports.registry import GetPullToken, RegistryAccount
from commonage.server.secrets import authority_of
from commonage.server.settings.settings import Settings
from commonage.server.workload_gateway import WorkloadAccess
from commonage.storage.materials.credentials import Credentials
from commonage.storage.materials.materials import MaterialFolders
from commonage.storage.materials.versions import Versions


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """The site of an engine, and its data folder."""

    site: str
    data: Path


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """How an engine pulls from the control plane's registry: with an account, or with a token for each image."""

    account: RegistryAccount | None = None
    get_pull_token: GetPullToken | None = None


def make_engine(
    settings: Settings,
    place: EnginePlace,
    devices: Devices,
    access: WorkloadAccess,
    registry: RegistryAccess = RegistryAccess(),
    agents: NodeAgents | None = None,
) -> Engine:
    """The engine of the settings, not open yet. `access`: how containers reach the hub and the control plane.

    `agents`: the agents of the site's nodes.
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
    if settings.engine == "kubernetes":
        in_cluster = kubernetes_settings(settings, access, every)
        if agents is None:
            return KubernetesEngine(site, data, settings=in_cluster)
        authority = authority_of(data).certificate
        return KubernetesEngine(site, data, settings=in_cluster, agents=agents, authority=authority)
    daemon: dict[str, Any] = {
        "url": settings.docker_url,
        "pull": settings.docker_pull,
        "reaches": access.ports,
        "gateway_port": access.gateway_port,
        "mounts": tuple(parse_mount(text) for text in settings.docker_mounts),
        "account": registry.account,
        "get_pull_token": registry.get_pull_token,
    }
    if settings.engine == "docker":
        docker = DockerSettings(
            **every, **node, **daemon, networks=settings.docker_networks, warm_containers=settings.warm_containers
        )
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


def kubernetes_settings(
    settings: Settings, access: WorkloadAccess | None = None, every: Mapping[str, Any] = MappingProxyType({})
) -> KubernetesSettings:
    """The settings of a Kubernetes engine. `every`: those of all engines."""
    return KubernetesSettings(
        **every,
        kubeconfig=settings.kubernetes_kubeconfig,
        context=settings.kubernetes_context or "",
        namespace=settings.kubernetes_namespace,
        namespaces=settings.kubernetes_namespaces,
        homes=settings.kubernetes_homes,
        homes_path=settings.kubernetes_homes_path or "",
        user=settings.kubernetes_user,
        pull=settings.docker_pull,
        pull_secrets=settings.kubernetes_pull_secrets,
        runtime_class=settings.kubernetes_runtime_class or "",
        priority_class=settings.kubernetes_priority_class or "",
        tolerations=tuple(read_toleration(one) for one in settings.kubernetes_tolerations),
        queue=settings.kubernetes_queue,
        placeholder_class=settings.kubernetes_placeholder_class or "",
        agents=settings.kubernetes_agents,
        reach=settings.kubernetes_reach,
        room_timeout_s=settings.kubernetes_placement_timeout,
        prepare_timeout_s=settings.kubernetes_prepare_timeout,
        mounts=tuple(parse_mount(text) for text in settings.docker_mounts),
        address=settings.kubernetes_address,
        reaches=access.ports if access else (),
        gateway_port=access.gateway_port if access else 0,
        lost_after_s=settings.kubernetes_lost_after,
        storage=KubernetesStorageSettings(
            homes_claim=settings.kubernetes_homes_claim,
            home_mib=settings.kubernetes_home_size,
            storage_class=settings.kubernetes_storage_class,
            volume_class=settings.kubernetes_volume_class,
            access=settings.kubernetes_access_mode,
            files_image=settings.kubernetes_files_image,
            folders=tuple(_folder_claim(one) for one in settings.kubernetes_folder_claims),
        ),
        policies=KeptNamespaceSettings(
            security_level=settings.kubernetes_pod_security,
            internet=settings.kubernetes_internet,
            open_networks=settings.kubernetes_open_networks,
            node_networks=settings.kubernetes_node_networks,
            gpu_resources=settings.kubernetes_gpu_quota,
        ),
    )


def _folder_claim(text: str) -> tuple[str, str]:
    folder, _, claim = text.partition("=")
    return folder, claim


def shared_dir(settings: Settings, data: Path) -> Path:
    """The folder that all nodes of the site share; with a single node, its data folder."""
    return settings.shared_dir.absolute() if settings.shared_dir and settings.engine == "swarm" else data


def homes_dir(settings: Settings, data: Path) -> SafePath:
    """The folder with all homes. It may be a link, except on a Swarm, where other nodes write to its parent folder."""
    if settings.engine == "swarm":
        return SafePath(shared_dir(settings, data)) / "workspaces"
    return SafePath(data / "workspaces")


def materials_dir(settings: Settings, data: Path) -> SafePath:
    """The folder with all versions of materials, on all nodes of the site."""
    if settings.engine == "swarm":
        return SafePath(shared_dir(settings, data)) / "materials"
    return SafePath(data / "materials")


def materials_of(settings: Settings, data: Path, copies: HomeCopies) -> MaterialFolders:
    versions = Versions(materials_dir(settings, data), (data / "repositories").absolute())
    secrets = (data / "secrets" / "materials").absolute()
    return MaterialFolders(versions, Credentials(secrets), copies)


def gpus_here(settings: Settings) -> str:
    """`gpus` for an engine whose node is this machine; other engines report the GPUs of their nodes themselves."""
    return settings.gpus if settings.engine in ("process", "docker") else "none"


def agents_of(settings: Settings, data_dir: Path, gateway_port: int) -> AgentConnections | None:
    """The agents of the site's nodes, not open yet; None for an engine without agents.

    `gateway_port` is the workload gateway's on the loopback. Raises AuthorityError. Blocks briefly.
    """
    if settings.engine != "swarm" and not (settings.engine == "kubernetes" and settings.kubernetes_agents):
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
    """The settings of control; platform resources come from the database."""
    return ControlSettings(
        name=settings.name,
        rules=rules_of(settings),
        default_cpus_milli=settings.default_cpus,
        default_memory_mib=settings.default_memory,
        session_environment=settings.session_environment,
        job_environment=settings.job_environment,
        max_array=settings.max_array,
        limits=settings.limits,
        token_lifetime_s=settings.token_lifetime,
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
        class_users=settings.class_users == "create"
        or (settings.class_users == "auto" and settings.authenticator_class == "shared-password"),
        warn_before_s=settings.warn_before,
        idle=settings.idle_rule,
        gpu_unused_after_s=settings.gpu_unused_after,
        sample_every_s=settings.sample_every_s,
        gpu_over_share=settings.gpu_over_share,
        gpu_over_share_after_s=settings.gpu_over_share_after,
        gpu_over_share_tolerance_mib=settings.gpu_over_share_tolerance,
    )


def rules_of(settings: Settings) -> Rules:
    """The planner's rules, without platform resources."""
    return Rules(
        policy=settings.policy,
        site_policy=settings.site_policy,
        half_life_s=float(settings.half_life),
        entry_penalty_s=float(settings.entry_penalty),
        age_credit=settings.age_credit,
        guaranteed_s=float(settings.guaranteed_runtime),
        head_of_queue_timeout_s=float(settings.head_of_queue_timeout),
        time_zone=settings.quota_time_zone,
    )
