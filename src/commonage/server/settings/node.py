"""The settings of this node, and of the engine that runs workloads: Docker and Swarm."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator

from commonage.domain.requests import parse_labels
from commonage.gpu.detect import check_wanted
from commonage.gpu.slots import parse_slots
from commonage.server.settings.fields import (
    Mib,
    Milli,
    Mounts,
    OptionalPath,
    OptionalText,
    PrivateRange,
    Takes,
    check_domain,
    setting,
    split_list,
)
from commonage.wire.hub import docs_page

_RESERVED_LABELS = ("node", "site", "engine")  # every node has them


def _gpus(value: str) -> str:
    return check_domain(lambda: check_wanted(value))


def _slots(value: str) -> str:
    check_domain(lambda: parse_slots(value))
    return value


def _labels(value: object) -> object:
    """The names and values that a variable writes as `zone=basement,rack=7`; a file has a table."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("not of the form zone=basement,rack=7")
    return {name.strip(): text.strip() for name, _, text in pairs}


def _known_labels(labels: dict[str, str]) -> dict[str, str]:
    found = dict(check_domain(lambda: parse_labels(labels.items(), field="it")))
    reserved = next((name for name in _RESERVED_LABELS if name in found), None)
    if reserved is not None:
        raise ValueError(f"{reserved} is a label that every node already has")
    return found


def _source_ranges(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        try:
            ipaddress.ip_network(one)
        except ValueError as error:
            raise ValueError(f"{one} is not like 10.0.0.7 or 10.0.0.0/24: {error}") from None
    return value


Labels = Annotated[
    dict[str, str],
    BeforeValidator(_labels),
    AfterValidator(_known_labels),
    Takes("a table of names with values in the file, or zone=basement,rack=7"),
]


class NodeSettings(BaseModel):
    """What this node offers, and how its GPUs and cores are shared."""

    node_name: OptionalText = setting(None, "Name of this node. Default: the host name.", "a name")
    node_labels: Labels = setting(
        {}, "Labels of this node, such as `zone=basement`. Users select nodes by label with `--on`."
    )
    cpus: Milli | None = setting(
        None, "Cores that workloads may use. Default: all cores. Set it to keep cores for other programs."
    )
    memory: Mib | None = setting(
        None, "Memory that workloads may use. Default: all memory. Set it to keep memory for other programs."
    )
    cpu_hold: Literal["share", "quota"] = setting(
        "share",
        "How the cores of a request are enforced. `share`: a workload gets its request when cores are short and may "
        "use idle cores. `quota`: it never gets more than its request, so that run times are comparable.",
    )
    gpus: Annotated[str, AfterValidator(_gpus)] = setting(
        "auto",
        "GPUs that workloads may use. `auto` takes the real GPUs, or simulates one if there are none.",
        "auto, nvml, amd, none, or simulated:2x24GiB",
        flag="--gpus",
    )
    gpu_isolation: Literal["auto", "driver-limit", "mig", "mps", "cooperative"] = setting(
        "auto",
        "Isolation level of GPU shares. `auto` takes the strongest level that holds on the GPU. If a level is named "
        f"and does not hold on a GPU, that GPU takes no workloads ({docs_page('concepts/gpu-sharing')}).",
    )
    gpu_slots: Annotated[str, BeforeValidator(str), AfterValidator(_slots)] = setting(
        "",
        "Number of equal slots of each GPU, for all GPUs or by model. Default: shares of any size.",
        "a number like 3, or A100=4,T4=2",
    )
    warm_sessions: bool = setting(
        True,
        "Start sessions from a waiting process that has loaded the libraries. Faster, but needs about 130 MiB of "
        "memory for each environment.",
    )


class EngineSettings(BaseModel):
    """The engine, and how it uses Docker or Swarm."""

    engine: Literal["process", "docker", "swarm"] = setting(
        "process",
        "What runs workloads: processes of this machine, containers of its Docker daemon, or services of its Swarm.",
        flag="--engine",
    )
    docker_url: str = setting("unix:///var/run/docker.sock", "Socket of this machine's Docker daemon.", "unix:///…")
    docker_image: OptionalText = setting(
        None,
        "Image of the built-in environments. It needs a shell, and for sessions `jupyterhub-singleuser`.",
        "the name of an image",
    )
    docker_pull: Literal["missing", "never"] = setting(
        "missing", "Whether an image that is missing on a node is pulled. Use `never` without a network."
    )
    docker_mounts: Mounts = setting(
        (),
        "Folders of this machine that are mounted in every container, read-only unless `:rw` is added. `{user}` and "
        "`{tenant}` are replaced by the names of the workload's user and tenant.",
    )
    docker_networks: PrivateRange = setting(
        "10.213.0.0/16",
        "Address range for the networks of the tenants. Change it if your site already uses this range.",
    )
    shared_dir: OptionalPath = setting(
        None,
        "Folder that every node of a Swarm has under this path, for workspaces and logs. Default: the data folder; "
        f"then only the node of the control plane takes workloads ({docs_page('operate/swarm')}).",
        "a folder",
    )
    swarm_without_agents: bool = setting(
        False,
        "Whether Swarm nodes without an agent take workloads. If true, root of any node of the Swarm can redirect the "
        f"folders of workloads on such a node ({docs_page('operate/swarm')}).",
    )
    swarm_address: OptionalText = setting(
        None,
        "Address at which containers on all nodes reach the hub. Default: this machine's address in the Swarm.",
        "an IP address of this machine",
    )
    swarm_networks: PrivateRange = setting(
        "10.214.0.0/16",
        "Address range for the overlay networks of the tenants in a Swarm. Change it if your site already uses it.",
        "a private range like 10.214.0.0/16",
    )
    swarm_encrypted: bool = setting(
        False, "Whether the overlay networks of the tenants are encrypted between nodes. This costs some bandwidth."
    )
    port_source_ranges: Annotated[
        tuple[str, ...],
        BeforeValidator(split_list),
        AfterValidator(_source_ranges),
        Takes("addresses or networks like 10.0.0.0/24, separated by commas"),
    ] = setting(
        (),
        "Addresses that may connect to the ports of sessions and services on Swarm nodes, in addition to this "
        "machine's own addresses. Add a network from which users call services directly by plain HTTP, or this "
        "machine's address behind NAT.",
    )
