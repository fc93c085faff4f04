"""Settings of the Docker engine. Filled by bootstrap; nothing is read from the environment here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commonage.engines.containers.daemon.admin_mounts import Mount
from commonage.ports.registry import RegistryAccount


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """Settings of one Docker engine.

    `url`: address of the daemon. `pull`: whether a missing image is pulled. `node_name`, `cpus_milli`, `memory_mib`
    (None: as the daemon reports) and `labels` describe the single node. `cpu_hold`: requested CPUs are a weight
    (`share`) or a limit (`quota`). `reaches`: loopback ports of the hub and the control plane, which containers reach
    by the gateway of their network. `gateway_port`: loopback port of the workload gateway, which serves these
    connections. `networks`: address range of the tenants' networks. `account`: credentials for the site's registry.
    `mounts`: see `containers.daemon.admin_mounts`. All others: see `ProcessSettings`.
    """

    url: str = "unix:///var/run/docker.sock"
    pull: Literal["missing", "never"] = "missing"
    node_name: str | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    cpu_hold: Literal["share", "quota"] = "share"
    reaches: tuple[int, ...] = ()
    gateway_port: int = 0
    networks: str = "10.213.0.0/16"
    account: RegistryAccount | None = None
    mounts: tuple[Mount, ...] = ()
    processes_max: int = 4096
    max_log_mib: int = 512
    bundle_max_mib: int = 2048
    disk_low_mib: int = 256
    keep_logs_days: int = 90
    keep_logs_mib: int = 20 * 1024
