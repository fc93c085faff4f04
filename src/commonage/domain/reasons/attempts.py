"""How an attempt starts, notices while it runs, and why it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from commonage.domain.reasons.base import Reason

# --- starting and running -----------------------------------------------------------------------------------------


class Starting(Reason):
    """The attempt is starting on its node."""

    node: str = ""


class Running(Reason):
    """The attempt runs."""

    node: str


class PreparingEnvironment(Reason):
    """The Python environment is being built for its first use. `step` is what the installer does."""

    environment: str
    step: str


class PullingImage(Reason):
    """The image is being pulled. `step` is what the engine says of it; amounts are in bytes, of all layers so far."""

    image: str
    step: str = ""
    pulled_bytes: int | None = None
    total_bytes: int | None = None


class UnpackingFiles(Reason):
    """The files that were sent along are being unpacked."""


class RetryingStart(Reason):
    """The start failed for a reason that may pass, and is tried again after a pause."""

    pause_s: float
    cause: Reason


class WaitingForDaemon(Reason):
    """The Docker daemon does not answer."""


class WaitingForAgent(Reason):
    """The agent of the node does not answer."""


class WaitingForSwarm(Reason):
    """Docker Swarm has not given the task to its node yet."""


class AssignedToNode(Reason):
    """Docker Swarm has given the task to the node."""

    node: str


class PreparingOnNode(Reason):
    """The node prepares image and network."""

    node: str


class SwarmRefuses(Reason):
    """Docker Swarm does not place the task on its node. `error` is what Docker says."""

    node: str
    error: str


class SwarmSeesNoRoom(Reason):
    """Services that Commonage did not create hold resources of the node in Docker Swarm."""

    node: str
    memory_mib: int
    gpu_memory_mib: int = 0


class SwarmSeesNoGpuMemory(Reason):
    """The Docker daemon of the node declares no GPU memory that Docker Swarm could reserve."""

    node: str


class WaitingForCluster(Reason):
    """Kubernetes has not bound the Pod to its node yet, or does not answer. `error` is what Kubernetes says."""

    error: str = ""


class WaitingForNamespace(Reason):
    """The tenant's namespace in the cluster, with its policies, is not ready.

    `missing` is the right that Commonage lacks, as verb and resource; `error` is what Kubernetes says.
    """

    namespace: str
    missing: str = ""
    error: str = ""


class PreparingInCluster(Reason):
    """The node prepares image, volumes and network of the Pod."""

    node: str


class LogTruncated(Reason):
    """The log reached its limit, and its middle is left out."""

    limit_mib: int


class TimeLimitNear(Reason):
    """The time limit ends the workload soon."""

    left_s: float


class IdleWarning(Reason):
    """The session has been idle for `idle_s`. In `left_s` it is stopped, or only its GPU is released (`keeps_cpu`)."""

    idle_s: float
    left_s: float
    keeps_cpu: bool = False


class Kept(Reason):
    """A user extended the workload. `limit` is why it was not extended for longer."""

    by: str
    until_at: float
    limit: Reason | None = None


class Stopping(Reason):
    """The workload is being stopped."""

    cause: Reason


# --- ended by itself ----------------------------------------------------------------------------------------------


class Completed(Reason):
    """The command ended with exit code 0."""


class ExitCode(Reason):
    """The command ended with another exit code."""

    exit_code: int


class Signaled(Reason):
    """A signal ended the command."""

    exit_code: int
    signal: int


class CommandNotExecutable(Reason):
    """The command exists and cannot be run (exit code 126)."""


class CommandNotFound(Reason):
    """The command was not found in its environment (exit code 127)."""


class OutOfMemory(Reason):
    """The command used more memory than requested and was ended."""


class ProcessesRemain(Reason):
    """The attempt ended, and some of its processes cannot be ended."""

    cause: Reason


# --- would not start ----------------------------------------------------------------------------------------------


class StartFailed(Reason):
    """The engine could not start the attempt. `error` is what the engine says."""

    error: str


class InterposerNotLoaded(Reason):
    """The image does not load the interposer that enforces the GPU share, so that its command was not started."""

    path: str


class StoppedBeforeStart(Reason):
    """The attempt was stopped before its command started."""


class NeverStarted(Reason):
    """The attempt was started several times, and the engine never reported it."""


class ContainerStartFailed(Reason):
    """The container could not run its command. `error` is what the engine says."""

    error: str
    node: str = ""


class SwarmWithdrew(Reason):
    """Docker Swarm gave the task up before it started. Docker's text is in the server's log."""

    node: str


class ClusterWithdrew(Reason):
    """The node refused the Pod, or gave it up, before its program was known to run. `error` is what Kubernetes says."""

    node: str
    error: str


class SharedFolderNotMounted(Reason):
    """The node does not see the shared folder of the site."""

    node: str
    path: str


class PortTaken(Reason):
    """The port that was chosen is in use on the node. Docker's text is in the server's log."""

    node: str


# --- not placed by a cluster ----------------------------------------------------------------------------------------


class NotPlaced(Reason, abstract=True):
    """The cluster did not run it. If nothing of the attempt ran, it queues again after a pause. `error` is the
    cluster's own message."""

    never_ran: ClassVar[bool] = True

    error: str = ""


class PodUnschedulable(NotPlaced):
    """The scheduler of the cluster does not bind the pod to the node of its allocation."""

    node: str


class PlacementDeadlineMissed(NotPlaced):
    """The cluster did not bind the pod to its node in time, and gave no reason."""

    node: str


class PodRefusedByNode(NotPlaced):
    """The node refused the pod, or the cluster took it away, before its program started."""

    node: str


class PodNotPrepared(NotPlaced):
    """The node did not prepare the pod's volumes, device claims or network in time, so its program did not start."""

    node: str


class ClusterQuotaExceeded(NotPlaced):
    """A ResourceQuota of the namespace has no room for the pod."""


class ClusterAdmissionDenied(Reason):
    """A policy or the API server of the cluster refused the pod. `error` is the cluster's own message."""

    error: str


class WaitingForKueue(Reason):
    """Kueue has not admitted the pod yet."""

    queue: str


class KueueStopped(NotPlaced):
    """Kueue stopped the pod."""


# --- lost ---------------------------------------------------------------------------------------------------------


class NodeLost(Reason):
    """The node was lost, and the exit code with it. `cause` says how that is known."""

    node: str
    cause: Reason | None = None


class NodeRemovedFromCluster(Reason):
    """The node is not in the Kubernetes cluster any more."""

    node: str


class NodeOutOfService(Reason):
    """An admin marked the node in Kubernetes as out of service, so no Pod runs on it."""

    node: str


class EvictedByCluster(Reason):
    """Kubernetes evicted the Pod, or preempted it for another. `error` is what Kubernetes says."""

    node: str
    error: str


class NodeRestarted(Reason):
    """The node was restarted while the attempt ran."""

    node: str = ""


class DaemonRestarted(Reason):
    """The Docker daemon was restarted, and ended the attempt."""


class RemovedFromOutside(Reason):
    """The container or service of the attempt was removed by something other than Commonage."""


class SiteNotAnswering(Reason):
    """A part of the site does not answer."""


class Disappeared(Reason):
    """The attempt is gone, and it is unknown how it ended."""


class ExitCodeLost(Reason):
    """The attempt ended, and its exit code is not known."""

    why: ExitCodeLoss


class EndedFromOutside(Reason):
    """Something other than Commonage ended the attempt."""

    by: ExternalActor
    node: str = ""


class ExitCodeLoss(StrEnum):
    """Why an exit code is not known."""

    CLAIM_UNREADABLE = "claim-unreadable"
    NOT_WRITTEN = "not-written"
    SHIM_KILLED = "shim-killed"
    DAEMON_AWAY = "daemon-away"
    STARTED_TWICE = "started-twice"


class ExternalActor(StrEnum):
    """A program outside the platform that ended an attempt."""

    DOCKER = "docker"
    DAEMON = "daemon"
    SWARM = "swarm"
    KUBERNETES = "kubernetes"


class NotDelivered(Reason):
    """The attempt could not be handed to its site, and never ran. The workload queues again after a pause."""

    never_ran: ClassVar[bool] = True

    cause: Reason


class LostTooOften(Reason):
    """The workload was lost, and has no requeues left."""

    losses: int
    cause: Reason


# --- stopped ------------------------------------------------------------------------------------------------------


class StoppedBy(Reason):
    """A user or an admin stopped the workload."""

    by: str
    comment: str = ""


class ServerStopped(Reason):
    """The server was stopped together with its node."""


class TimeLimitReached(Reason):
    """The time limit is over."""

    limit_s: int


class IdleTooLong(Reason):
    """Nothing happened in the session for longer than is allowed. It was stopped, or only lost its GPU."""

    idle_s: float


class GpuReleased(Reason):
    """The session ended, to start again without its GPU. `by` is empty where `cause` says why."""

    by: str = ""
    cause: Reason | None = None


class DependencyNotFound(Reason):
    """The workload that it depends on does not exist."""

    workload_id: str


class DependencyFailed(Reason):
    """The workload that it depends on ended in a state that never meets the condition."""

    workload_id: str
    name: str
    condition: str
    state: str


class OverGpuShare(Reason):
    """The attempt held more GPU memory than its share. `share_mib` 0: it was given no part of this GPU."""

    gpu: str
    used_mib: int
    share_mib: int
    request_mib: int
    lasted_s: float | None = None
    allowed_s: float | None = None
    needed_by: NeededBy | None = None


@dataclass(frozen=True, slots=True)
class NeededBy:
    """Workloads that need the memory: a queued one, or those on the same GPU, whose shares have `free_mib` left."""

    is_queued: bool
    needed_mib: int
    free_mib: int = 0


class NodeDrained(Reason):
    """The node is drained. `leave_by_at`: when it must be empty."""

    node: str
    by: str
    leave_by_at: float | None = None


class NodeRemoved(Reason):
    """An admin removed the node."""

    node: str
    by: str


class NodeLeft(Reason):
    """The node left the site."""

    node: str


class Preempted(Reason):
    """A workload with a higher priority needs the resources. Owner and kind are empty if it is of another tenant."""

    by_owner: str
    by_kind: str
    is_session: bool


class Reclaimed(Reason):
    """Another tenant reclaims resources that it lent."""

    is_session: bool


# --- gangs --------------------------------------------------------------------------------------------------------


class GangMemberEnded(Reason):
    """Another member of the gang ended without success."""

    rank: int
    state: str
    cause: Reason


class GangMemberMissing(Reason):
    """Another member of the gang has ended, and the gang cannot start without it."""

    rank: int


class GangMemberStopping(Reason):
    """Another member of the gang is being stopped."""

    rank: int


class GangOutOfRetries(Reason):
    """Another member of the gang failed or was lost, and the gang has no retry left."""

    rank: int
    cause: Reason


class GangMemberRequeued(Reason):
    """Another member of the gang left its node, so the whole gang starts again."""

    rank: int
    cause: Reason


class GangStartedInPart(Reason):
    """Not all members of the gang could start at once."""


# --- environments -------------------------------------------------------------------------------------------------


class WaitingForOtherSessions(Reason):
    """Sessions start a few at a time on each node, and others are ahead."""

    at_once: int
    node: str


class OnFirstUse(Reason):
    """The environment is built, or its image pulled, on first use."""

    is_image: bool


class EnvironmentFailed(Reason):
    """The environment cannot be prepared. `error` is what the installer or the registry says."""

    environment: str
    error: str


class AskingNode(Reason):
    """The node is being asked for the image."""


class NoEngineForSite(Reason):
    """No engine answers for the site."""

    site: str


class OnNodes(Reason):
    """The image is on some nodes. `cause`: the state on `node`, where it is being pulled or failed."""

    ready: int
    nodes: int
    node: str = ""
    cause: Reason | None = None
