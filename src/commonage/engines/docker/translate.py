"""From an order to the description of a container, in the words of Docker's API. Pure.

What isolates is all in here. A container is root inside at most, with few capabilities, none of which it can widen
(no-new-privileges), behind the daemon's own seccomp profile; it sees its owner's workspace, its box and its log, and
what the admin mounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from commonage.domain.fleet import Share
from commonage.domain.sightings import Order
from commonage.engines.common.workspaces import folder_name
from commonage.engines.containers import box
from commonage.engines.containers.mounts import docker_mounts
from commonage.engines.containers.program import Program
from commonage.engines.docker.settings import DockerSettings, Mount

LABEL = "commonage"
_MIB = 1024 * 1024
# What installing packages and changing users within needs; nothing that reaches the network's or the kernel's settings,
# devices, or other processes' memory.
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
_SHM_PART = 2


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a container is given that the order does not say: all paths are this machine's.

    `volume_quota`: the daemon can hold volumes to their size.
    """

    installation: str
    network: str
    workspace: str
    box: str
    log: str
    user: str
    gpus: Literal["cdi", "request"] = "request"
    volume_quota: bool = False


def container_name(attempt_id: str) -> str:
    """The one container of an attempt."""
    return f"commonage-{attempt_id}"


def network_name(installation: str, tenant: str) -> str:
    """The network of a tenant."""
    return f"commonage-{installation[:8]}-{folder_name(tenant)}"


def ours(installation: str) -> str:
    """The label that all of ours carry, as a filter."""
    return f"{LABEL}.installation={installation}"


def network_config(installation: str, tenant: str, subnet: str) -> dict[str, Any]:
    """A bridge for one tenant. Docker lets no packet pass between two bridges."""
    return {
        "Name": network_name(installation, tenant),
        "CheckDuplicate": True,
        "Driver": "bridge",
        "IPAM": {"Driver": "default", "Config": [{"Subnet": subnet}]},
        "Labels": {f"{LABEL}.installation": installation, f"{LABEL}.tenant": tenant},
    }


def container_config(
    order: Order, program: Program, around: Surroundings, entry: str, settings: DockerSettings
) -> dict[str, Any]:
    """The description to create a container with. `entry` is the script that runs first."""
    return {
        "Image": order.environment.image,
        "Entrypoint": ["/bin/sh", "-c", entry, "commonage"],
        "Cmd": list(program.command),
        "Env": [f"{name}={value}" for name, value in program.variables.items()],
        "WorkingDir": program.cwd,
        "User": around.user,
        "Hostname": order.workload_id.lower()[-12:],
        "Labels": _labels(order, around.installation),
        "StopSignal": "SIGTERM",
        "NetworkingConfig": {"EndpointsConfig": {around.network: {}}},
        "HostConfig": {
            **_limits(order, settings),
            **_isolation(around.network),
            "Mounts": _mounts(order, program, around, settings.mounts),
            "DeviceRequests": _device_requests(order.lease.shares, around.gpus),
            # The output goes to a file of ours; this is for what goes wrong before that.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
        },
    }


def _labels(order: Order, installation: str) -> dict[str, str]:
    said = {
        "installation": installation,
        "attempt": order.attempt_id,
        "workload": order.workload_id,
        "kind": str(order.kind),
        "name": order.name,
        "owner": order.owner,
        "tenant": order.tenant,
    }
    return {f"{LABEL}.{name}": value for name, value in said.items()}


def _limits(order: Order, settings: DockerSettings) -> dict[str, Any]:
    memory = order.lease.memory_mib * _MIB
    cpus = order.lease.cpus_milli
    held = (
        {"NanoCpus": cpus * 1_000_000} if settings.cpu_hold == "quota" else {"CpuShares": max(2, cpus * 1024 // 1000)}
    )
    return {
        **held,
        "Memory": memory,
        "MemorySwap": memory,  # memory and swap together: no swap
        "PidsLimit": settings.processes_max,
        "ShmSize": memory // _SHM_PART,
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
    }


def _isolation(network: str) -> dict[str, Any]:
    return {
        "NetworkMode": network,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": list(_CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "RestartPolicy": {"Name": "no"},
        # Its first process is Docker's own small init, which reaps, and with which all the others end.
        "Init": True,
    }


def _mounts(order: Order, program: Program, around: Surroundings, shared: Sequence[Mount]) -> list[dict[str, Any]]:
    return [
        _bind(around.workspace, program.home, writable=True),
        _bind(around.box, box.INSIDE, writable=True),
        _bind(around.log, box.LOG_INSIDE, writable=True),
        *(_bind(source_of(mount, order), mount.target, writable=mount.writable) for mount in shared),
        *docker_mounts(order.mounts, around.installation, quota=around.volume_quota),
    ]


def source_of(mount: Mount, order: Order) -> str:
    """The folder of this machine that is mounted for this order."""
    return mount.source.replace("{user}", folder_name(order.owner)).replace("{tenant}", folder_name(order.tenant))


def _bind(source: str, target: str, *, writable: bool) -> dict[str, Any]:
    options = {"Propagation": "rprivate"}
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not writable, "BindOptions": options}


def _device_requests(shares: Sequence[Share], way: Literal["cdi", "request"]) -> list[dict[str, Any]]:
    """Its cards, by their uuids. Simulated ones are no devices."""
    real = sorted({share.device_uuid for share in shares if not share.simulated})
    if not real:
        return []
    if way == "cdi":
        return [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in real]}]
    return [{"Driver": "nvidia", "DeviceIDs": real, "Capabilities": [["gpu", "compute", "utility"]]}]
