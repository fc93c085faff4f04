"""Notes about engines for admins: how an engine isolates workloads, what it does not limit, and what it needs."""

from __future__ import annotations

from commonage.domain.reasons.base import Reason

# --- processes ----------------------------------------------------------------------------------------------------


class NotIsolated(Reason):
    """Workloads are plain processes of the server's account, so that users can read and stop each other's work."""


class ControlGroupsMissing(Reason):
    """The server may use no control groups: memory is watched, CPU is only counted."""


class MemoryNotLimited(Reason):
    """The kernel does not let the server limit memory by control groups. It watches memory instead."""


class CpuNotLimited(Reason):
    """The kernel does not let the server limit CPU by control groups. Requests are counted, not enforced."""


# --- Docker -------------------------------------------------------------------------------------------------------


class DockerInUse(Reason):
    """The version and the storage driver of the Docker daemon."""

    version: str
    storage: str


class UsersMapped(Reason):
    """The daemon maps users, so that root in a container is no user of the node."""


class UsersNotMapped(Reason):
    """The daemon does not map users, so that root in a container is root of the node, with few capabilities."""


class NoLiveRestore(Reason):
    """All workloads end when the daemon is restarted."""


class SwapNotLimited(Reason):
    """The kernel does not limit swap, so that a workload can use as much again there as it has memory."""


# --- Kubernetes ---------------------------------------------------------------------------------------------------


class KubernetesInUse(Reason):
    """The version of Kubernetes, and whether Pods meet the Pod Security level `restricted`."""

    version: str
    is_restricted: bool


class HomesEndWithPods(Reason):
    """Homes are space of each Pod, and are gone when it ends."""


# --- Docker Swarm -------------------------------------------------------------------------------------------------


class SwarmInUse(Reason):
    """The version of Docker, and the folder that all nodes of the Swarm must see under the same path."""

    version: str
    folder: str


class NodeLossNoticed(Reason):
    """How long the Swarm takes to notice that a node is lost. `is_slow`: it can be made faster."""

    after_s: float
    is_slow: bool


class NodesWithoutAgent(Reason):
    """These nodes have no agent."""

    nodes: tuple[str, ...]


class PlainHttpToHub(Reason):
    """The agents of these nodes are of an earlier version, so that containers reach the hub by plain HTTP."""

    nodes: tuple[str, ...]


class PrivilegesMayBeGained(Reason):
    """Containers may gain privileges, because no-new-privileges is off in the node's Docker daemon."""


class NodeNotice(Reason):
    """The agent of a node noticed a problem."""

    node: str
    cause: Reason


# --- volumes ------------------------------------------------------------------------------------------------------


class VolumeIsLink(Reason):
    """The volume is a link in the home, so that nothing enforces that it is only read."""


class VolumeSizeNotEnforced(Reason):
    """The size of the volume is not enforced on these nodes. `enforced_on`: the nodes where it is."""

    nodes: tuple[str, ...]
    enforced_on: tuple[str, ...] = ()
