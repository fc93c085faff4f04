"""Texts of `commonage.domain.reasons.attempts`."""

from __future__ import annotations

from commonage.domain.reasons import attempts as r
from commonage.domain.requests import format_duration, format_memory
from commonage.messages.template import Say, Texts, count, moment


def _stopped(error: str) -> str:
    """The message of another program, with a full stop."""
    error = error.strip()
    return error if error.endswith((".", "!", "?")) else f"{error}."


def _pulling(reason: r.PullingImage, _say: Say) -> str:
    name, at, _ = reason.image.partition("@")
    image = name if at else reason.image
    if reason.pulled_bytes is not None and reason.total_bytes is not None:
        return f"Pulling image {image}: {reason.pulled_bytes / 1e6:.0f} of {reason.total_bytes / 1e6:.0f} MB."
    return f"Pulling image {image}{f': {reason.step}' if reason.step else ''}."


def _namespace(reason: r.WaitingForNamespace, _say: Say) -> str:
    if reason.missing:
        return (
            f"Waiting for the namespace {reason.namespace}, which Commonage may not manage: it lacks the right "
            f"`{reason.missing}`. An admin must grant it (docs: operate/kubernetes-policies)."
        )
    if reason.error:
        return f"Waiting for the namespace {reason.namespace}: {_stopped(reason.error)}"
    return f"Waiting for the namespace {reason.namespace} and its policies."


def _over_share(reason: r.OverGpuShare, _say: Say) -> str:
    used = f"{format_memory(reason.used_mib)} of GPU memory on GPU {reason.gpu}"
    if not reason.share_mib:
        said = f"It held {used}, of which it has no share"
    else:
        over = format_memory(reason.used_mib - reason.share_mib)
        said = f"It held {used}, {over} more than its share of {format_memory(reason.share_mib)}"
    if reason.lasted_s is not None and reason.allowed_s is not None:
        lasted, allowed = format_duration(reason.lasted_s), format_duration(reason.allowed_s)
        said = f"{said}, for {lasted} ({allowed} allowed)"
    elif reason.needed_by is not None and reason.needed_by.is_queued:
        said = f"{said}, and a queued workload needs {format_memory(reason.needed_by.needed_mib)} of that GPU"
    elif reason.needed_by is not None:
        needed, free = format_memory(reason.needed_by.needed_mib), format_memory(reason.needed_by.free_mib)
        said = f"{said}, and other workloads there still need {needed} of that GPU, of which {free} are free"
    return f"{said}. Request {format_memory(reason.request_mib)} of GPU memory."


def _on_nodes(reason: r.OnNodes, say: Say) -> str:
    how = f" {reason.node}: {say(reason.cause)}" if reason.cause is not None else ""
    return f"On {reason.ready} of {count(reason.nodes, 'node')}.{how}"


_CONDITIONS = {"afterok": "succeeds", "afternotok": "does not succeed"}
_ENDED = {"stopped": "was stopped", "timed_out": "timed out", "lost": "was lost"}


def _dependency(reason: r.DependencyFailed, _say: Say) -> str:
    condition = _CONDITIONS.get(reason.condition, "ends")
    ended = _ENDED.get(reason.state, reason.state)
    return f"It depends on {reason.workload_id} ({reason.name}): it starts if that {condition}, and that {ended}."


def _drained(reason: r.NodeDrained, _say: Say) -> str:
    until = "" if reason.leave_by_at is None else f" and had to be empty by {moment(reason.leave_by_at)}"
    return f"Node {reason.node} was drained by {reason.by}{until}."


def _after(is_session: bool) -> str:
    return "Start it again when you need it." if is_session else "It queues again."


def _outside(reason: r.EndedFromOutside, _say: Say) -> str:
    on = f" on {reason.node}" if reason.node else ""
    by = {
        r.ExternalActor.DOCKER: "through Docker: by an admin, or as the daemon stopped",
        r.ExternalActor.DAEMON: "through Docker on its node, or as the daemon there stopped or restarted",
        r.ExternalActor.KUBERNETES: "through Kubernetes: its Pod was deleted, or its node was drained",
        r.ExternalActor.SWARM: "its node was drained in Docker Swarm, or its service was changed",
    }[reason.by]
    return f"Ended from outside{on}, {by}. Its exit code is not known."


_EXIT_CODE_LOSS = {
    r.ExitCodeLoss.CLAIM_UNREADABLE: (
        "It is not known whether it started: its claim is incomplete. Check the disk space."
    ),
    r.ExitCodeLoss.NOT_WRITTEN: "Its exit code could not be written. Check the disk space.",
    r.ExitCodeLoss.SHIM_KILLED: "Its supervising process was killed from outside, so its exit code is not known.",
    r.ExitCodeLoss.DAEMON_AWAY: "It ended while the Docker daemon was away, so its exit code is not known.",
    r.ExitCodeLoss.STARTED_TWICE: "Docker started it a second time, which was refused. Its exit code is not known.",
}


TEXTS: Texts = {
    r.Starting: lambda reason, _: f"Starting on {reason.node}." if reason.node else "Starting.",
    r.Running: "Running on {node}.",
    r.PreparingEnvironment: "Preparing environment {environment}: {step}.",
    r.PullingImage: _pulling,
    r.UnpackingFiles: "Unpacking its files.",
    r.RetryingStart: "{cause} The start is tried again in {pause_s}.",
    r.WaitingForDaemon: "Waiting for the Docker daemon, which does not answer.",
    r.WaitingForAgent: "Waiting for the agent of its node, which does not answer.",
    r.WaitingForSwarm: "Waiting for Docker Swarm.",
    r.WaitingForCluster: lambda reason, _: (
        f"Waiting for Kubernetes: {_stopped(reason.error)}" if reason.error else "Waiting for Kubernetes."
    ),
    r.WaitingForNamespace: _namespace,
    r.PreparingInCluster: "Preparing image, volumes and network on {node}.",
    r.AssignedToNode: "Assigned to {node}.",
    r.PreparingOnNode: "Preparing image and network on {node}.",
    r.SwarmRefuses: "Docker Swarm does not start it on {node}: {error}.",
    r.SwarmSeesNoRoom: lambda reason, _: (
        f"Docker Swarm sees no room on {reason.node} for {format_memory(reason.memory_mib)} of memory"
        + (f" and {format_memory(reason.gpu_memory_mib)} of GPU memory" if reason.gpu_memory_mib else "")
        + ": services other than those of Commonage hold it there (insufficient resources)."
    ),
    r.SwarmSeesNoGpuMemory: (
        "Node {node} has GPUs, but its Docker daemon declares no VRAM that Docker Swarm could reserve. An admin must "
        "run `commonage node join` for that node again."
    ),
    r.LogTruncated: (
        "Its log is larger than {limit_mib}, and the middle of it is left out. Print less, or write to a file."
    ),
    r.TimeLimitNear: "Its time limit ends it in {left_s}.",
    r.IdleWarning: lambda reason, _: (
        f"Nothing has happened in it for {format_duration(reason.idle_s)}. "
        f"{'It gives its GPU back and starts again without one' if reason.keeps_cpu else 'It is stopped'} in "
        f"{format_duration(reason.left_s)}, unless it is used or kept."
    ),
    r.Kept: lambda reason, say: (
        f"Kept by {reason.by} until {moment(reason.until_at)}.{'' if reason.limit is None else f' {say(reason.limit)}'}"
    ),
    r.Stopping: "Stopping. {cause}",
    r.Completed: "Exit code 0.",
    r.ExitCode: "Exit code {exit_code}.",
    r.Signaled: "Exit code {exit_code}: ended by signal {signal}.",
    r.CommandNotExecutable: "Exit code 126: the command exists and cannot be run. Make it executable (chmod +x).",
    r.CommandNotFound: "Exit code 127: the command was not found in its environment.",
    r.OutOfMemory: "Out of memory: it used more memory than requested and was ended. Request more memory.",
    r.ProcessesRemain: "{cause} Some of its processes cannot be ended.",
    r.StartFailed: lambda reason, _: f"Start failed: {_stopped(reason.error)}",
    r.InterposerNotLoaded: (
        "Its image does not load {path}, which enforces its share of a GPU: its C library is not glibc, or is older "
        "than that of the node. Use an image with a newer Debian, Ubuntu or Fedora, or request a whole GPU."
    ),
    r.StoppedBeforeStart: "Stopped before it started.",
    r.NeverStarted: "It was started several times, and the engine never reported it.",
    r.ContainerStartFailed: lambda reason, _: (
        f"Its container could not be started{f' on {reason.node}' if reason.node else ''}: {_stopped(reason.error)}"
    ),
    r.SwarmWithdrew: "Docker Swarm gave it up before it started on {node}.",
    r.ClusterWithdrew: lambda reason, _: f"{reason.node} did not run its Pod: {_stopped(reason.error)}",
    r.SharedFolderNotMounted: (
        "Node {node} does not see the folder {path}. The folder of the site must be mounted on every node under the "
        "same path (`commonage doctor` shows which folder)."
    ),
    r.PortTaken: "The port that was chosen for it is in use on {node}.",
    r.NodeLost: lambda reason, say: (
        f"Node {reason.node} was lost. {say(reason.cause)}"
        if reason.cause is not None
        else f"Node {reason.node} was lost, and it is not known how it ended."
    ),
    r.NodeRemovedFromCluster: "It is not in the Kubernetes cluster any more.",
    r.NodeOutOfService: "An admin marked it in Kubernetes as out of service.",
    r.EvictedByCluster: lambda reason, _: f"Kubernetes ended it on {reason.node}: {_stopped(reason.error)}",
    r.NodeRestarted: lambda reason, _: (
        f"Node {reason.node} was restarted while it ran." if reason.node else "Its node was restarted while it ran."
    ),
    r.DaemonRestarted: "The Docker daemon was restarted while it ran, and ended it.",
    r.RemovedFromOutside: "Its container or service was removed from outside.",
    r.SiteNotAnswering: "Waiting for a part of the site that does not answer.",
    r.Disappeared: "It disappeared, and it is not known how it ended.",
    r.ExitCodeLost: lambda reason, _: _EXIT_CODE_LOSS[reason.why],
    r.EndedFromOutside: _outside,
    r.NotDelivered: "It could not be handed to its site. {cause}",
    r.LostTooOften: "{cause} It was lost {losses} times and does not queue again.",
    r.StoppedBy: lambda reason, _: (
        f"Stopped by {reason.by}" + (f": {_stopped(reason.comment)}" if reason.comment else ".")
    ),
    r.ServerStopped: "The server was stopped.",
    r.TimeLimitReached: "Its time limit of {limit_s} is over.",
    r.IdleTooLong: "Nothing happened in it for {idle_s}.",
    r.GpuReleased: lambda reason, say: (
        f"{say(reason.cause)} Its GPU was given back." if reason.cause else f"{reason.by} released its GPU."
    ),
    r.DependencyNotFound: "It depends on {workload_id}, which does not exist.",
    r.DependencyFailed: _dependency,
    r.OverGpuShare: _over_share,
    r.NodeDrained: _drained,
    r.NodeRemoved: "Node {node} was removed by {by}.",
    r.NodeLeft: "Node {node} has left the site.",
    r.Preempted: lambda reason, _: (
        f"Preempted by a {reason.by_kind or 'workload'} of {reason.by_owner or 'another tenant'} with a higher "
        "priority. "
        f"{_after(reason.is_session)}"
    ),
    r.Reclaimed: lambda reason, _: f"Preempted: another tenant takes back what it lent. {_after(reason.is_session)}",
    r.GangMemberEnded: "Member {rank} of its gang {state}. {cause}",
    r.GangMemberMissing: "It cannot start without member {rank} of its gang, which has ended.",
    r.GangMemberStopping: "Member {rank} of its gang is being stopped.",
    r.GangOutOfRetries: "Member {rank} of its gang ended, and the gang has no retry left. {cause}",
    r.GangMemberRequeued: "Member {rank} of its gang starts again. {cause}",
    r.GangStartedInPart: "Not all members of its gang could start at once.",
    r.WaitingForOtherSessions: "Waiting for other sessions: {at_once} at a time start on {node}.",
    r.OnFirstUse: lambda reason, _: "Pulled on first use." if reason.is_image else "Made on first use.",
    r.EnvironmentFailed: lambda reason, _: (
        f"Environment {reason.environment} cannot be prepared: {_stopped(reason.error)}"
    ),
    r.AskingNode: "Asking the node for it.",
    r.NoEngineForSite: "No engine answers for site {site}.",
    r.OnNodes: _on_nodes,
    r.PodUnschedulable: lambda reason, _: f"The cluster does not place it on {reason.node}: {_stopped(reason.error)}",
    r.PlacementDeadlineMissed: "The cluster did not place it on {node} in time, and gave no reason.",
    r.PodRefusedByNode: lambda reason, _: f"Node {reason.node} refused its pod: {_stopped(reason.error)}",
    r.PodNotPrepared: lambda reason, _: (
        f"Node {reason.node} did not prepare volumes, device claims and network of its pod in time: "
        f"{_stopped(reason.error or 'it gave no reason')}"
    ),
    r.ClusterQuotaExceeded: lambda reason, _: (
        f"The cluster's quota for the namespace is used up: {_stopped(reason.error)}"
    ),
    r.ClusterAdmissionDenied: lambda reason, _: f"The cluster does not allow its pod: {_stopped(reason.error)}",
    r.WaitingForKueue: "Waiting for Kueue to admit it from the queue {queue}.",
    r.KueueStopped: lambda reason, _: f"Kueue stopped its pod: {_stopped(reason.error or 'it gave no reason')}",
}
