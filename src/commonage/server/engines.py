"""Makes the engine of the settings, and the agents of its nodes. Called by the bootstrap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from commonage.engines.docker.engine import DockerEngine
from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import DockerSettings, ProcessSettings, SwarmSettings, parse_mount
from commonage.engines.swarm.engine import SwarmEngine
from commonage.files.safe_path import SafePath
from commonage.link import saved_reports
from commonage.link.agent_connections import AgentConnections
from commonage.ports.agents import AgentReport, Agents
from commonage.ports.devices import Devices
from commonage.ports.engine import Engine
from commonage.ports.registry import RegistryAccount
from commonage.server.secrets import authority_of
from commonage.server.settings.settings import Settings
from commonage.server.web.workload_gateway import NO_ACCESS, WorkloadAccess

SITE = "local"


def make_engine(
    settings: Settings,
    data: Path,
    devices: Devices,
    access: WorkloadAccess,
    account: RegistryAccount | None = None,
    agents: Agents | None = None,
) -> Engine:
    """The engine of the settings, not open yet. `access`: how containers reach the hub and the control plane.

    `account`: the credentials to pull images from the site's registry; `agents`: the agents of the site's nodes.
    """
    if settings.engine == "swarm":
        swarm = replace(swarm_settings(settings, access), account=account)
        return SwarmEngine(SITE, data, shared_dir(settings, data), agents=agents, settings=swarm)
    if settings.engine == "docker":
        docker = replace(docker_settings(settings, access), account=account)
        return DockerEngine(SITE, data, devices=devices, settings=docker)
    return ProcessEngine(SITE, data, devices=devices, settings=process_settings(settings))


def process_settings(settings: Settings) -> ProcessSettings:
    """The settings of the process engine."""
    return ProcessSettings(
        node_name=settings.node_name,
        cpus_milli=settings.cpus,
        memory_mib=settings.memory,
        labels=tuple(settings.node_labels.items()),
        cpu_hold=settings.cpu_hold,
        warm_sessions=settings.warm_sessions,
        keep_logs_days=settings.keep_logs_days,
        max_log_mib=settings.max_log,
    )


def docker_settings(settings: Settings, access: WorkloadAccess = NO_ACCESS) -> DockerSettings:
    """The settings of the Docker engine."""
    return DockerSettings(
        url=settings.docker_url,
        pull=settings.docker_pull,
        node_name=settings.node_name,
        cpus_milli=settings.cpus,
        memory_mib=settings.memory,
        labels=tuple(settings.node_labels.items()),
        cpu_hold=settings.cpu_hold,
        reaches=access.ports,
        gateway_port=access.gateway_port,
        networks=settings.docker_networks,
        mounts=tuple(parse_mount(one) for one in settings.docker_mounts),
        keep_logs_days=settings.keep_logs_days,
        max_log_mib=settings.max_log,
    )


def shared_dir(settings: Settings, data: Path) -> Path:
    """The folder that all nodes of the site share; with a single node, its data folder."""
    return settings.shared_dir.absolute() if settings.shared_dir and settings.engine == "swarm" else data


def homes_dir(settings: Settings, data: Path) -> SafePath:
    """The folder with all homes. It may be a link, except on a Swarm, where other nodes write to its parent folder."""
    if settings.engine == "swarm":
        return SafePath(shared_dir(settings, data)) / "workspaces"
    return SafePath(data / "workspaces")


def swarm_settings(settings: Settings, access: WorkloadAccess = NO_ACCESS) -> SwarmSettings:
    """The settings of the Swarm engine."""
    return SwarmSettings(
        url=settings.docker_url,
        pull=settings.docker_pull,
        cpu_hold=settings.cpu_hold,
        reaches=access.ports,
        gateway_port=access.gateway_port,
        address=settings.swarm_address,
        networks=settings.swarm_networks,
        encrypted=settings.swarm_encrypted,
        sources=settings.port_source_ranges,
        without_agents=settings.swarm_without_agents,
        mounts=tuple(parse_mount(one) for one in settings.docker_mounts),
        keep_logs_days=settings.keep_logs_days,
        max_log_mib=settings.max_log,
    )


def agents_of(settings: Settings, data_dir: Path, gateway_port: int) -> AgentConnections | None:
    """The agents of the site's nodes, before their listener opens; None for an engine without agents.

    `gateway_port` is the workload gateway's on the loopback. Raises AuthorityError. Blocks briefly when the
    authority is created.
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
