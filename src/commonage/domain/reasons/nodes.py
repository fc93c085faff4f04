"""Faults of nodes: why a node takes no work, or only some, and whether its workloads may still run."""

from __future__ import annotations

from commonage.domain.reasons.base import Reason

# --- state --------------------------------------------------------------------------------------------------------


class DrainedBy(Reason):
    """An admin drained the node."""

    by: str


class NeedsRepair(Reason):
    """The node has a fault. Its details are for admins."""


class NotReporting(Reason):
    """The node does not report. `silent_s`: for how long, once it is lost."""

    silent_s: float | None = None


class SiteUnreachable(Reason):
    """The link to the site is down `since` then (unix seconds). Its workloads continue; their last known state is
    shown.
    """

    site: str
    since: float


class UnreachableJoinService(Reason):
    """No node can join the site now: its own join service makes the tokens, and its link is down `since` then."""

    site: str
    since: float


class NodesCannotJoin(Reason):
    """No node can join this site: its site agent has no join service."""

    site: str


class WorkloadLostThere(Reason):
    """A workload was lost on the node, which takes no work until it reports again."""


class RemovedFromSite(Reason):
    """The node was removed from the site, and its engine still lists it."""

    node: str


# --- disks and folders --------------------------------------------------------------------------------------------


class DiskNearlyFull(Reason):
    """Less than `min_mib` of disk space is free in one of these folders. Only sessions start."""

    folders: tuple[str, ...]
    free_mib: int
    min_mib: int


class FolderNotReadable(Reason):
    """The folder cannot be read. `error` is what the operating system says."""

    folder: str
    error: str


class SharedFolderEmpty(Reason):
    """The shared folder of the site is empty on the node: it may not be mounted."""

    folder: str


class SharedFolderSilent(Reason):
    """The file server of the shared folder does not answer."""

    folder: str
    silent_s: float


class SharedFolderNotSet(Reason):
    """The site has no shared folder, so that the node would have to see the data folder. `guide`: a page of the
    documentation."""

    guide: str


class FoldersNotMountable(Reason):
    """The agent cannot mount folders of workloads. `error` is what the operating system says."""

    folder: str
    error: str


# --- GPU driver and container daemon ------------------------------------------------------------------------------


class GpuDriverUnavailable(Reason):
    """The driver of the GPUs cannot be used. `error` says why, and what to do."""

    error: str


class EngineNotAnswering(Reason):
    """The engine of the site does not answer. `error` has the request and the answer."""

    error: str


class DaemonNotRunning(Reason):
    """The Docker daemon of the node does not run."""

    silent_s: float


class DaemonNotAnswering(Reason):
    """The Docker daemon of the node accepts connections, but does not answer."""

    silent_s: float


class DaemonMapsUsers(Reason):
    """The Docker daemon of a Swarm node maps users, so that no container can open its folder."""


class DaemonWithoutSeccomp(Reason):
    """The Docker daemon has no seccomp profile, so that containers may make any system call."""


# --- agent --------------------------------------------------------------------------------------------------------


class AgentNotAnswering(Reason):
    """The agent of the node does not answer."""


class NoAgent(Reason):
    """The node has no agent, which mounts the folders of workloads."""


class AgentTooOld(Reason):
    """The agent of the node is of a version that cannot mount the folders of workloads."""


class FirewallNotBuilt(Reason):
    """The agent cannot build the firewall between containers and the network of the node."""

    error: str


class GatewayNotListening(Reason):
    """The agent cannot listen for containers, so that they cannot reach the control plane."""

    error: str


# --- Kubernetes ---------------------------------------------------------------------------------------------------


class ClusterNodeNotReady(Reason):
    """The node is not ready in Kubernetes. `error` is what Kubernetes says."""

    error: str


class ClusterNodeCordoned(Reason):
    """The node is cordoned in Kubernetes."""


class ClusterNodeTainted(Reason):
    """The node has a taint in Kubernetes, which keeps Pods away."""

    taint: str


class ClusterNodeSilent(Reason):
    """The node does not answer Kubernetes, so that its Pods may still run."""

    node: str


# --- Docker Swarm -------------------------------------------------------------------------------------------------


class SwarmNodeDown(Reason):
    """Docker Swarm does not reach the node. `error` is what Docker says."""

    error: str


class SwarmNodeNotReady(Reason):
    """Docker Swarm waits for the node. `state` is Docker's word."""

    state: str


class SwarmNodeNotActive(Reason):
    """Docker Swarm gives the node no work. `availability` is Docker's word."""

    availability: str


class NoNodeCertificate(Reason):
    """No certificate of the site is bound to the Swarm node."""

    node: str
    swarm_node_id: str


class HostNameChanged(Reason):
    """The node reports another host name than that of its certificate."""

    node: str
    host_name: str


class HostNameTaken(Reason):
    """The node reports the host name of another node."""

    node: str
    host_name: str


# --- Kubernetes ---------------------------------------------------------------------------------------------------


class NodeRefusedPods(Reason):
    """The cluster refused to run a pod on the node, which gets no work until then."""

    until_at: float
    cause: Reason


# --- workloads that may still run ---------------------------------------------------------------------------------


class EndingWorkloads(Reason):
    """The workloads of the node are ended before they start elsewhere."""


class WaitingForPause(Reason):
    """The workloads of the node start elsewhere once its agent has had time to pause them."""


class MayBeCutOff(Reason):
    """Most nodes are silent, or still reach the node: the control plane itself may be partitioned."""

    node: str


class MayRunWithoutAgent(Reason):
    """The node may be partitioned, and has no agent that would pause its workloads."""

    node: str


class MayStillRun(Reason):
    """The attempt may still run on the node, so that it cannot start elsewhere yet."""

    node: str
    cause: Reason


class FencedByAgent(Reason):
    """The Docker daemon of the node did not answer, and the agent ended its workloads."""


class NotInSwarm(Reason):
    """The node is not in the Swarm any more. `nodes` are those that are."""

    node: str
    nodes: tuple[str, ...]


class NodeTakesNoWork(Reason):
    """The node of an attempt takes no work."""

    node: str
    cause: Reason


# --- refusals -----------------------------------------------------------------------------------------------------


class NodeInUse(Reason):
    """The node cannot be removed, as it takes work or runs some. `workloads`: their number; `names`: the first ones."""

    node: str
    state: str
    reasons: tuple[Reason, ...] = ()
    workloads: int = 0
    names: str = ""
