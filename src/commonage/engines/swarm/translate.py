"""From an order to the description of a service, in the words of Docker's API. Pure.

One attempt is one service of one task, on the machine that the planner chose, which is never started again. What a
service cannot say the machines' daemons must be set to (`no-new-privileges`, for one).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from commonage.domain.fleet import Lease
from commonage.domain.sightings import Order
from commonage.domain.workloads import Kind
from commonage.engines.containers.program import Program
from commonage.engines.dockerd.words import (
    CAPABILITIES,
    LABEL,
    MIB,
    SHM_PART,
    Folders,
    given_mounts,
    host_name,
    labels,
    network_labels,
    network_name,
    own_mounts,
)
from commonage.engines.swarm.deliveries import ENTRY_INSIDE, SECRETS_INSIDE, Delivery
from commonage.engines.swarm.settings import SwarmSettings

VRAM = "VRAM"
"""The generic resource that machines declare, in MiB."""
_NAME_MOST = 63
_SLUG_MOST = 40
_PLAIN = re.compile(r"[a-z0-9](?:-?[a-z0-9])*", re.ASCII)
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a service is given that the order does not say. Paths are the same on all machines of the site.

    `entry` is the config with the script that runs first, `secrets` the secret with the secret variables, if any;
    `injected` are configs with our files that it reads, each with its place in the container.

    `network` is its tenant's, by its name, of which a Swarm has but one; `node` is the id of its machine in the Swarm;
    `declares_vram`: the machine says how much VRAM it has. `volume_quota`: the
    daemon there holds volumes to their size. `port`: of the machine, which leads to it, and the same inside.
    """

    installation: str
    network: str
    folders: Folders
    entry: Delivery
    user: tuple[int, int]
    node: str
    secrets: Delivery | None = None
    injected: Sequence[tuple[Delivery, str]] = ()
    declares_vram: bool = False
    volume_quota: bool = False
    port: int | None = None


def service_names(order: Order) -> tuple[str, str]:
    """What it is called, and what if that is taken: a session after its user, anything else after the attempt."""
    if order.kind is not Kind.SESSION:
        name = f"cm-{order.attempt_id}"
        if not _PLAIN.fullmatch(name.lower()) or len(name) > _NAME_MOST:
            name = f"cm-{_digest(order.attempt_id)}"
        return name, f"{name[: _NAME_MOST - 9]}-{_digest(order.attempt_id)[:8]}"
    owner = order.owner
    if not _PLAIN.fullmatch(owner) or len(owner) > _SLUG_MOST:
        slug = re.sub(r"[^a-z0-9]+", "-", owner.lower()).strip("-")[:_SLUG_MOST].rstrip("-")
        owner = f"{slug}-{_digest(owner)[:8]}".lstrip("-")
    return f"jy-{owner}", f"jy-{owner}-{_digest(order.attempt_id)[:8]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def network_config(installation: str, tenant: str, subnet: str, *, encrypted: bool) -> dict[str, Any]:
    """A network over all machines for one tenant. No packet passes between two of them."""
    return {
        "Name": network_name(installation, tenant),
        "CheckDuplicate": True,
        "Driver": "overlay",
        "IPAM": {"Driver": "default", "Config": [{"Subnet": subnet}]},
        "Options": {"encrypted": ""} if encrypted else {},
        "Labels": network_labels(installation, tenant),
    }


def service_spec(order: Order, program: Program, around: Surroundings, settings: SwarmSettings) -> dict[str, Any]:
    """The description to create a service with, but for its name."""
    port = {"Protocol": "tcp", "TargetPort": around.port, "PublishedPort": around.port, "PublishMode": "host"}
    return {
        "Labels": {
            f"{LABEL}.installation": around.installation,
            f"{LABEL}.attempt": order.attempt_id,
            f"{LABEL}.owner": order.owner,
        },
        "TaskTemplate": {
            "ContainerSpec": _container(order, program, around, settings),
            "Resources": _resources(order.lease, around, settings),
            "RestartPolicy": {"Condition": "none", "MaxAttempts": 0},
            "Placement": {"Constraints": [f"node.id=={around.node}"]},
            "Networks": [{"Target": around.network}],
            # The output goes to a file of ours; this is for what goes wrong before that.
            "LogDriver": {"Name": "json-file", "Options": {"max-size": "1m", "max-file": "1"}},
        },
        "Mode": {"Replicated": {"Replicas": 1}},
        # Virtual addresses and the ingress network need IPVS in the kernel, and fail in silence without.
        "EndpointSpec": {"Mode": "dnsrr", "Ports": [] if around.port is None else [port]},
    }


def _container(order: Order, program: Program, around: Surroundings, settings: SwarmSettings) -> dict[str, Any]:
    # What the agent on the machine holds cores by, as a service can have a quota only.
    cpus = {f"{LABEL}.cpus-milli": str(order.lease.cpus_milli)}
    told = replace(program, variables={**program.variables, "TINI_KILL_PROCESS_GROUP": "1"})  # see entry.sh
    return {
        "Image": order.environment.image,
        "Command": ["/bin/sh", ENTRY_INSIDE],
        "Args": list(program.command),
        "Env": told.env,
        "Dir": program.cwd,
        "User": ":".join(map(str, around.user)),
        "Hostname": host_name(order),
        "Labels": {**labels(order, around.installation), **cpus},
        "StopSignal": "SIGTERM",
        "StopGracePeriod": settings.grace_s * _NS,
        "CapabilityDrop": ["ALL"],
        "CapabilityAdd": [f"CAP_{name}" for name in CAPABILITIES],
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        # Its first process is Docker's own small init, which reaps, and with which all the others end.
        "Init": True,
        "Configs": [
            _delivered("Config", one, place, (0, 0), 0o444)
            for one, place in ((around.entry, ENTRY_INSIDE), *around.injected)
        ],
        "Secrets": (
            [] if around.secrets is None else [_delivered("Secret", around.secrets, SECRETS_INSIDE, around.user, 0o400)]
        ),
        "Mounts": [
            *own_mounts(around.folders, program),
            {
                "Type": "tmpfs",
                "Target": "/dev/shm",  # noqa: S108 - shared memory of the container, not a file of ours
                "TmpfsOptions": {"SizeBytes": order.lease.memory_mib * MIB // SHM_PART, "Mode": 0o1777},
            },
            *given_mounts(order, around.installation, settings.mounts, quota=around.volume_quota),
        ],
    }


def _delivered(kind: str, delivery: Delivery, target: str, owner: tuple[int, int], mode: int) -> dict[str, Any]:
    file = {"Name": target, "UID": str(owner[0]), "GID": str(owner[1]), "Mode": mode}
    return {f"{kind}ID": delivery.id, f"{kind}Name": delivery.name, "File": file}


def _resources(lease: Lease, around: Surroundings, settings: SwarmSettings) -> dict[str, Any]:
    held: dict[str, Any] = {"MemoryBytes": lease.memory_mib * MIB}
    if settings.cpu_hold == "quota":
        held["NanoCPUs"] = lease.cpus_milli * 1_000_000
    vram = vram_of(lease, declared=around.declares_vram)
    # Whenever a machine changes Swarm looks whether tasks still fit, with the sign turned around: it ends the one that
    # takes the last of what the machine declares. A MiB of each share that is not reserved keeps a rest.
    spec = {"Kind": VRAM, "Value": max(1, vram - 1)}
    reserved = {"GenericResources": [{"DiscreteResourceSpec": spec}]} if vram else {}
    return {"Limits": {**held, "Pids": settings.processes_max}, "Reservations": {**held, **reserved}}


def vram_of(lease: Lease, *, declared: bool) -> int:
    """The MiB that Swarm reserves: of real cards always, of simulated ones where the machine declares any."""
    return sum(share.memory_mib for share in lease.shares if declared or not share.simulated)
