"""Settings of the Docker engine. Filled by bootstrap; nothing is read from the environment here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commonage.engines.containers.daemon.admin_mounts import Mount
from commonage.ports.registry import RegistryAccount


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """Settings of one Docker engine.

    `url` is the daemon's. `pull`: fetch an image that is `missing`, or `never`. `node_name`, `cpus_milli` and
    `memory_mib` (None: what the daemon says) and `labels` are what the one node reports. `cpu_hold`: what an attempt
    asked for is its `share` of cores that others want, too, or a `quota`. `reaches`: ports of this machine's loopback
    that containers reach by their network's gateway (the hub, the control plane). `gateway_port`: the port of the
    loopback, the workload gateway's, that serves what they send there. `networks` is the range of addresses of the
    tenants' networks. `account`: with what images of the site's own registry are fetched. `mounts`: see
    `dockerd.shared`.
    `processes_max`, `max_log_mib`, `bundle_max_mib`, `disk_low_mib`, `keep_logs_days` and `keep_logs_mib` as for
    processes: of one attempt, of one log, of files sent along, free for the node to be sound, and of old logs.
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
