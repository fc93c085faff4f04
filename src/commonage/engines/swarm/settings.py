"""Settings of the Swarm engine. Filled by bootstrap; nothing is read from the environment here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commonage.engines.containers.daemon.admin_mounts import Mount
from commonage.ports.registry import RegistryAccount


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """Settings of one Swarm engine.

    `url`: daemon of a manager, on the control plane's node. `pull`: whether it pulls images. `cpu_hold`: requested CPUs
    are a weight (`share`) or a limit (`quota`), which Swarm then reserves. `reaches`: loopback ports of the hub and the
    control plane, which containers reach at `address` (None: this node's address in the Swarm). `gateway_port`:
    loopback port of the workload gateway, which serves these connections. `networks`: address range of the tenants'
    networks; `encrypted`: their traffic between nodes is encrypted. `account`: credentials for the site's registry.
    `mounts`: see `containers.daemon.admin_mounts`. `ports`: first and last port of the nodes for sessions and services;
    `sources`: addresses or networks that may connect to them, in addition to this node. `without_agents`: nodes without
    an agent take work too; then root on any node can redirect mounts there. `room_timeout_s`: how long an attempt that
    Swarm finds no room for waits before it returns to the scheduler. `grace_s`: seconds between SIGTERM and SIGKILL
    when Swarm itself ends a container. All others: see `ProcessSettings`.
    """

    url: str = "unix:///var/run/docker.sock"
    pull: Literal["missing", "never"] = "missing"
    cpu_hold: Literal["share", "quota"] = "share"
    reaches: tuple[int, ...] = ()
    gateway_port: int = 0
    address: str | None = None
    networks: str = "10.214.0.0/16"
    encrypted: bool = False
    account: RegistryAccount | None = None
    mounts: tuple[Mount, ...] = ()
    ports: tuple[int, int] = (20000, 29999)
    sources: tuple[str, ...] = ()
    without_agents: bool = False
    room_timeout_s: float = 60.0
    grace_s: int = 10
    processes_max: int = 4096
    max_log_mib: int = 512
    bundle_max_mib: int = 2048
    disk_low_mib: int = 256
    keep_logs_days: int = 90
    keep_logs_mib: int = 20 * 1024
