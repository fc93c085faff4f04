"""What is wrong with a node: why it takes no work, or only some, and whether its workloads may still run."""

from __future__ import annotations

from commonage.domain.reasons.base import Reason, reason

# --- state --------------------------------------------------------------------------------------------------------


@reason
class DrainedBy(Reason):
    """An admin drained the node."""

    by: str


@reason
class NeedsRepair(Reason):
    """The node has a fault. Its details are for admins."""


@reason
class NotReporting(Reason):
    """The node does not report. `silent_s`: for how long, once it is lost."""

    silent_s: float | None = None


@reason
class WorkloadLostThere(Reason):
    """A workload was lost on the node, which takes no work until it reports again."""


@reason
class RemovedFromSite(Reason):
    """The node was removed from the site, and its engine still lists it."""

    node: str


# --- disks and folders --------------------------------------------------------------------------------------------


@reason
class DiskNearlyFull(Reason):
    """Less than `min_mib` of disk space is free in one of these folders. Only sessions start."""

    folders: tuple[str, ...]
    free_mib: int
    min_mib: int


@reason
class FolderNotReadable(Reason):
    """The folder cannot be read. `error` is what the operating system says."""

    folder: str
    error: str


@reason
class SharedFolderEmpty(Reason):
    """The shared folder of the site is empty on the node: it may not be mounted."""

    folder: str


@reason
class SharedFolderSilent(Reason):
    """The file server of the shared folder does not answer."""

    folder: str
    silent_s: float


@reason
class SharedFolderNotSet(Reason):
    """The site has no shared folder, so that the node would have to see the data folder. `guide`: a page of the
    documentation."""

    guide: str


@reason
class FoldersNotMountable(Reason):
    """The agent cannot mount folders of workloads. `error` is what the operating system says."""

    folder: str
    error: str


# --- GPU driver and container daemon ------------------------------------------------------------------------------


@reason
class GpuDriverUnavailable(Reason):
    """The driver of the GPUs cannot be used. `error` says why, and what to do."""

    error: str


@reason
class EngineNotAnswering(Reason):
    """The engine of the site does not answer. `error` is what was tried and what came back."""

    error: str


@reason
class DaemonNotRunning(Reason):
    """The Docker daemon of the node is not there."""

    silent_s: float


@reason
class DaemonNotAnswering(Reason):
    """The Docker daemon of the node listens, and does not answer."""

    silent_s: float


@reason
class DaemonMapsUsers(Reason):
    """The Docker daemon of a Swarm node maps users, so that no container can open its folder."""


@reason
class DaemonWithoutSeccomp(Reason):
    """The Docker daemon has no seccomp profile, so that containers may make any system call."""


# --- agent --------------------------------------------------------------------------------------------------------


@reason
class AgentNotAnswering(Reason):
    """The agent of the node does not answer."""


@reason
class NoAgent(Reason):
    """The node has no agent, which mounts the folders of workloads."""


@reason
class AgentTooOld(Reason):
    """The agent of the node is of a version that cannot mount the folders of workloads."""


@reason
class FirewallNotBuilt(Reason):
    """The agent cannot build the firewall between containers and the network of the node."""

    error: str


@reason
class GatewayNotListening(Reason):
    """The agent cannot listen for containers, so that they cannot reach the control plane."""

    error: str


# --- Docker Swarm -------------------------------------------------------------------------------------------------


@reason
class SwarmNodeDown(Reason):
    """Docker Swarm does not reach the node. `error` is what Docker says."""

    error: str


@reason
class SwarmNodeNotReady(Reason):
    """Docker Swarm waits for the node. `state` is Docker's word."""

    state: str


@reason
class SwarmNodeNotActive(Reason):
    """Docker Swarm gives the node no work. `availability` is Docker's word."""

    availability: str


@reason
class NoNodeCertificate(Reason):
    """No certificate of the site is bound to the Swarm node."""

    node: str
    swarm_node_id: str


@reason
class HostNameChanged(Reason):
    """The node reports another host name than that of its certificate."""

    node: str
    host_name: str


@reason
class HostNameTaken(Reason):
    """The node reports the host name of another node."""

    node: str
    host_name: str


# --- workloads that may still run ---------------------------------------------------------------------------------


@reason
class EndingWorkloads(Reason):
    """The workloads of the node are ended before they start elsewhere."""


@reason
class WaitingForPause(Reason):
    """The workloads of the node start elsewhere once its agent has had time to pause them."""


@reason
class MayBeCutOff(Reason):
    """Most nodes are silent, or still see the node: the control plane may be the one that is cut off."""

    node: str


@reason
class MayRunWithoutAgent(Reason):
    """The node may only be cut off, and no agent pauses its workloads then."""

    node: str


@reason
class MayStillRun(Reason):
    """The attempt may still run on the node, so that it cannot start elsewhere yet."""

    node: str
    cause: Reason


@reason
class FencedByAgent(Reason):
    """The Docker daemon of the node did not answer, and the agent ended its workloads."""


@reason
class NotInSwarm(Reason):
    """The node is not in the Swarm any more. `nodes` are those that are."""

    node: str
    nodes: tuple[str, ...]


@reason
class NodeTakesNoWork(Reason):
    """The node of an attempt takes no work."""

    node: str
    cause: Reason


# --- refusals -----------------------------------------------------------------------------------------------------


@reason
class NodeInUse(Reason):
    """The node cannot be removed, as it takes work or runs some. `workloads`: their number; `names`: the first ones."""

    node: str
    state: str
    reasons: tuple[Reason, ...] = ()
    workloads: int = 0
    names: str = ""
