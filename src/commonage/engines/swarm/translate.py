"""Maps a start request to the description of a service, in terms of Docker's API. Pure; used by the launcher.

One attempt is one service of one task, on the node that the scheduler chose. It is never started again. Options that
a service cannot set must be set at the nodes' daemons (for example `no-new-privileges`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from commonage.domain.nodes import Allocation
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.containers.daemon.descriptions import (
    CAPABILITIES,
    LABEL,
    MIB,
    SHM_PART,
    AttemptFolders,
    host_name,
    labels,
    network_labels,
    network_name,
    own_mounts,
    requested_mounts,
    share_mounts,
)
from commonage.engines.containers.program import Program
from commonage.engines.settings import SwarmSettings
from commonage.engines.swarm.swarm_files import ENTRY_INSIDE, SECRETS_INSIDE, Delivery

VRAM = "VRAM"
"""The generic resource that nodes declare, in MiB."""
_NAME_MAX = 63
_SLUG_MAX = 40
_PLAIN = re.compile(r"[a-z0-9](?:-?[a-z0-9])*", re.ASCII)
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ContainerContext:
    """Inputs of a service in addition to the request. Paths are the same on all nodes of the site.

    `entry` is the config with the script that runs first, `secrets` the secret with the secret variables, if any;
    `injected` are configs with our files that it reads, each with its path in the container. `network` is its tenant's,
    by its name, of which a Swarm has only one; `node` is the id of its node in the Swarm; `declares_vram`: the node
    declares its VRAM. `volume_quota`: the daemon there limits the size of volumes. `port`: of the node, which leads to
    it, and the same inside.
    """

    installation: str
    network: str
    folders: AttemptFolders
    entry: Delivery
    user: tuple[int, int]
    node: str
    secrets: Delivery | None = None
    injected: Sequence[tuple[Delivery, str]] = ()
    declares_vram: bool = False
    volume_quota: bool = False
    port: int | None = None


def service_name(attempt_id: str) -> str:
    """The name of the service of an attempt that is not a session. Swarm answers for it on the tenant's network."""
    name = f"cm-{attempt_id}"
    return name if _PLAIN.fullmatch(name.lower()) and len(name) <= _NAME_MAX else f"cm-{_digest(attempt_id)}"


def service_names(request: StartRequest) -> tuple[str, ...]:
    """Its name, and the alternative if that is taken: a session is named after its user, others after the attempt.

    The members of a gang find each other by their names, so they have no alternative.
    """
    if request.kind is not Kind.SESSION:
        name = service_name(request.attempt_id)
        return (name,) if request.gang else (name, f"{name[: _NAME_MAX - 9]}-{_digest(request.attempt_id)[:8]}")
    owner = request.owner
    if not _PLAIN.fullmatch(owner) or len(owner) > _SLUG_MAX:
        slug = re.sub(r"[^a-z0-9]+", "-", owner.lower()).strip("-")[:_SLUG_MAX].rstrip("-")
        owner = f"{slug}-{_digest(owner)[:8]}".lstrip("-")
    return f"jy-{owner}", f"jy-{owner}-{_digest(request.attempt_id)[:8]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def network_config(installation: str, tenant: str, subnet: str, *, encrypted: bool) -> dict[str, Any]:
    """A network over all nodes for one tenant. No packet passes between two of them."""
    return {
        "Name": network_name(installation, tenant),
        "CheckDuplicate": True,
        "Driver": "overlay",
        "IPAM": {"Driver": "default", "Config": [{"Subnet": subnet}]},
        "Options": {"encrypted": ""} if encrypted else {},
        "Labels": network_labels(installation, tenant),
    }


def service_spec(
    request: StartRequest, program: Program, context: ContainerContext, settings: SwarmSettings
) -> dict[str, Any]:
    """The description to create a service with, except its name."""
    port = {
        "Protocol": "tcp",
        "TargetPort": request.port or context.port,
        "PublishedPort": context.port,
        "PublishMode": "host",
    }
    return {
        "Labels": {
            f"{LABEL}.installation": context.installation,
            f"{LABEL}.attempt": request.attempt_id,
            f"{LABEL}.owner": request.owner,
        },
        "TaskTemplate": {
            "ContainerSpec": _container(request, program, context, settings),
            "Resources": _resources(request.allocation, context, settings),
            "RestartPolicy": {"Condition": "none", "MaxAttempts": 0},
            "Placement": {"Constraints": [f"node.id=={context.node}"]},
            "Networks": [{"Target": context.network}],
            # The output goes to our log file; this is for errors before that.
            "LogDriver": {"Name": "json-file", "Options": {"max-size": "1m", "max-file": "1"}},
        },
        "Mode": {"Replicated": {"Replicas": 1}},
        # Virtual addresses and the ingress network need IPVS in the kernel, and fail silently without it.
        "EndpointSpec": {"Mode": "dnsrr", "Ports": [] if context.port is None else [port]},
    }


def _container(
    request: StartRequest, program: Program, context: ContainerContext, settings: SwarmSettings
) -> dict[str, Any]:
    # The agent on the node enforces the share of cores by this, because a service can only have a quota.
    cpus = {f"{LABEL}.cpus-milli": str(request.allocation.cpus_milli)}
    with_init = replace(program, variables={**program.variables, "TINI_KILL_PROCESS_GROUP": "1"})  # see entry.sh
    return {
        "Image": request.environment.image,
        "Command": ["/bin/sh", ENTRY_INSIDE],
        "Args": list(program.command),
        "Env": with_init.env,
        "Dir": program.cwd,
        "User": ":".join(map(str, context.user)),
        "Hostname": host_name(request),
        "Labels": {**labels(request, context.installation), **cpus},
        "StopSignal": "SIGTERM",
        "StopGracePeriod": settings.grace_s * _NS,
        "CapabilityDrop": ["ALL"],
        "CapabilityAdd": [f"CAP_{name}" for name in CAPABILITIES],
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        # Its first process is Docker's own small init, which reaps; all the other processes end with it.
        "Init": True,
        "Configs": [
            _delivered("Config", one, place, (0, 0), 0o444)
            for one, place in ((context.entry, ENTRY_INSIDE), *context.injected)
        ],
        "Secrets": (
            []
            if context.secrets is None
            else [_delivered("Secret", context.secrets, SECRETS_INSIDE, context.user, 0o400)]
        ),
        "Mounts": [
            *own_mounts(context.folders, program),
            *share_mounts(program),
            {
                "Type": "tmpfs",
                "Target": "/dev/shm",  # noqa: S108 - shared memory of the container, not a file of ours
                "TmpfsOptions": {"SizeBytes": request.allocation.memory_mib * MIB // SHM_PART, "Mode": 0o1777},
            },
            *requested_mounts(request, context.installation, settings.mounts, quota=context.volume_quota),
        ],
    }


def _delivered(kind: str, delivery: Delivery, target: str, owner: tuple[int, int], mode: int) -> dict[str, Any]:
    file = {"Name": target, "UID": str(owner[0]), "GID": str(owner[1]), "Mode": mode}
    return {f"{kind}ID": delivery.id, f"{kind}Name": delivery.name, "File": file}


def _resources(allocation: Allocation, context: ContainerContext, settings: SwarmSettings) -> dict[str, Any]:
    held: dict[str, Any] = {"MemoryBytes": allocation.memory_mib * MIB}
    if settings.cpu_hold == "quota":
        held["NanoCPUs"] = allocation.cpus_milli * 1_000_000
    vram = vram_of(allocation, declared=context.declares_vram)
    # Whenever a node changes, Swarm checks whether tasks still fit, with the wrong sign: it ends the task that takes
    # the last of the declared amount. Leaving one MiB of each share unreserved avoids that.
    spec = {"Kind": VRAM, "Value": max(1, vram - 1)}
    reserved = {"GenericResources": [{"DiscreteResourceSpec": spec}]} if vram else {}
    return {"Limits": {**held, "Pids": settings.processes_max}, "Reservations": {**held, **reserved}}


def vram_of(allocation: Allocation, *, declared: bool) -> int:
    """MiB that Swarm reserves: of real GPUs always, of simulated ones if the node declares any."""
    return sum(share.memory_mib for share in allocation.shares if declared or not share.simulated)
