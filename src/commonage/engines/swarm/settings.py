"""Settings of the Swarm engine. Filled by bootstrap; nothing is read from the environment here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commonage.engines.containers.daemon.admin_mounts import Mount
from commonage.ports.registry import RegistryAccount


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """Settings of one Swarm engine.

    `url` is the daemon's of a manager, on the control plane's node. `pull`: whether images are fetched by it.
    `cpu_hold`: what an attempt asked for is its `share` of cores that others want, too, or a `quota`, which then Swarm
    reserves. `reaches`: ports of this machine's loopback that containers reach (the hub, the control plane) by
    `address`, which is the Swarm's own of this machine if left out. `gateway_port`: the port of the loopback, the
    workload gateway's, that serves what they send there. `networks` is the range of addresses of the
    tenants' networks; `encrypted`: between nodes nobody reads what passes on them. `account`: with what images of
    the site's own registry are fetched. `mounts`: see `dockerd.shared`. `ports` are those of the nodes, from the
    first to the last, that sessions and services get one of; `sources` are addresses or networks that may connect there
    beside this machine. `without_agents`: nodes without an agent take work, too, though root of any other node
    could have Docker mount what it likes there.
    `reconnect_timeout_s`: how long an attempt waits for room that Swarm does not see, before it is given back to the
    planner.
    `grace_s`: what Swarm gives a container that it ends itself.
    `processes_max`, `max_log_mib`, `bundle_max_mib`, `disk_low_mib`, `keep_logs_days` and `keep_logs_mib` as with the
    Docker engine.
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
    reconnect_timeout_s: float = 60.0
    grace_s: int = 10
    processes_max: int = 4096
    max_log_mib: int = 512
    bundle_max_mib: int = 2048
    disk_low_mib: int = 256
    keep_logs_days: int = 90
    keep_logs_mib: int = 20 * 1024
