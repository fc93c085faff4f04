"""Maps a start request to the description of a container, in terms of Docker's API. Pure; used by the launcher.

All isolation is defined here. A container is root inside at most, with few capabilities that it cannot extend
(no-new-privileges), behind the daemon's own seccomp profile. It sees its owner's workspace, control folder and log, and
what the admin mounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from commonage.domain.nodes import Share
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.daemon.descriptions import (
    CAPABILITIES,
    MIB,
    SHM_PART,
    AttemptFolders,
    host_name,
    injected_mounts,
    labels,
    network_labels,
    network_name,
    own_mounts,
    requested_mounts,
    share_mounts,
)
from commonage.engines.containers.program import Program
from commonage.engines.settings import DockerSettings


@dataclass(frozen=True, slots=True)
class ContainerContext:
    """Inputs of a container in addition to the request. All paths are this node's.

    `injected` is the folder with our files that workloads read. `volume_quota`: the daemon can limit the size of
    volumes.
    """

    installation: str
    network: str
    folders: AttemptFolders
    injected: str
    user: str
    gpus: Literal["cdi", "request"] = "request"
    volume_quota: bool = False


def container_name(attempt_id: str) -> str:
    return f"commonage-{attempt_id}"


def network_config(installation: str, tenant: str, subnet: str) -> dict[str, Any]:
    return {
        "Name": network_name(installation, tenant),
        "CheckDuplicate": True,
        "Driver": "bridge",
        "IPAM": {"Driver": "default", "Config": [{"Subnet": subnet}]},
        "Labels": network_labels(installation, tenant),
    }


def container_config(
    request: StartRequest, program: Program, context: ContainerContext, entry: str, settings: DockerSettings
) -> dict[str, Any]:
    """Return the description to create a container with. `entry` is the script that runs first."""
    return {
        "Image": request.environment.image,
        "Entrypoint": ["/bin/sh", "-c", entry, "commonage"],
        "Cmd": list(program.command),
        "Env": program.env,
        "WorkingDir": program.cwd,
        "User": context.user,
        "Hostname": host_name(request),
        "Labels": labels(request, context.installation),
        "StopSignal": "SIGTERM",
        "NetworkingConfig": {"EndpointsConfig": {context.network: {}}},
        "HostConfig": {
            **_limits(request, settings),
            **_isolation(context.network),
            "Mounts": [
                *own_mounts(context.folders, program),
                *share_mounts(program),
                *injected_mounts(request, context.injected),
                *requested_mounts(request, context.installation, settings.mounts, quota=context.volume_quota),
            ],
            "DeviceRequests": _device_requests(request.allocation.shares, context.gpus),
            # The entry writes output to the attempt's log file. Docker's log holds only errors from before that.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
        },
    }


def _limits(request: StartRequest, settings: DockerSettings) -> dict[str, Any]:
    memory = request.allocation.memory_mib * MIB
    cpus = request.allocation.cpus_milli
    held = (
        {"NanoCpus": cpus * 1_000_000} if settings.cpu_hold == "quota" else {"CpuShares": max(2, cpus * 1024 // 1000)}
    )
    return {
        **held,
        "Memory": memory,
        "MemorySwap": memory,  # memory and swap together: no swap
        "PidsLimit": settings.processes_max,
        "ShmSize": memory // SHM_PART,
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
    }


def _isolation(network: str) -> dict[str, Any]:
    return {
        "NetworkMode": network,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "RestartPolicy": {"Name": "no"},
        # Its first process is Docker's own small init, which reaps; all the other processes end with it.
        "Init": True,
    }


def _device_requests(shares: Sequence[Share], way: Literal["cdi", "request"]) -> list[dict[str, Any]]:
    """Its GPUs, by their uuids. Simulated ones are no devices."""
    real = sorted({share.device_uuid for share in shares if not share.simulated})
    if not real:
        return []
    if way == "cdi":
        return [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in real]}]
    return [{"Driver": "nvidia", "DeviceIDs": real, "Capabilities": [["gpu", "compute", "utility"]]}]
