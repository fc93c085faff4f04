"""Texts of `commonage.domain.reasons.nodes`."""

from __future__ import annotations

from commonage.domain.reasons import nodes as r
from commonage.domain.requests import format_duration, format_memory
from commonage.messages.template import Say, Texts, count, moment, sentence

_JOIN = "Run `commonage node join` for it again"
_UNDECIDED = (
    "Its workloads start elsewhere once it reports again, or once it is switched off and an admin runs "
    "`commonage node rm --force {node}`."
)


def _disk(reason: r.DiskNearlyFull, _say: Say) -> str:
    free, least = format_memory(reason.free_mib), format_memory(reason.min_mib)
    where = " or ".join(reason.folders)
    return (
        f"Only {free} are free on the disk of {where}, and {least} are required. Only sessions start, to delete files."
    )


def _in_use(reason: r.NodeInUse, say: Say) -> str:
    node, why = reason.node, "".join(f" {say(one)}" for one in reason.reasons)
    if reason.state == "ready":
        return (
            f"Node {node} is ready and takes work. Drain it first (`commonage node drain {node}`), and remove it once "
            "nothing runs there."
        )
    runs = f"{count(reason.workloads, 'workload')} ({reason.names})"
    if reason.state == "lost":
        return (
            f"Node {node} is lost, and may still run {runs}.{why} If it certainly runs nothing any more, remove it "
            f"with force (`commonage node rm --force {node}`): its workloads then count as lost."
        )
    return (
        f"Node {node} is {reason.state} and still runs {runs}.{why} Wait until they end, or make them leave: "
        f"`commonage node drain --requeue {node}` requeues jobs now, with `--by TIME` all workloads must leave by then."
    )


TEXTS: Texts = {
    r.DrainedBy: "Drained by {by}.",
    r.NeedsRepair: "An admin has to repair it. It takes no new work.",
    r.NotReporting: lambda reason, _: (
        "It does not report."
        if reason.silent_s is None
        else f"It has not reported for {format_duration(reason.silent_s)}."
    ),
    r.SiteUnreachable: lambda reason, _: (
        f"Site {reason.site} has been unreachable since {moment(reason.since)}. This is its last known state: its "
        "workloads continue there, and new ones start once it is connected again."
    ),
    r.UnreachableJoinService: lambda reason, _: (
        f"Site {reason.site} has been unreachable since {moment(reason.since)}, and its own site agent admits its "
        "nodes. Run `commonage doctor` on the appliance, and try again when `commonage site ls` shows it connected."
    ),
    r.NodesCannotJoin: (
        "No node can join site {site}: its site agent has no join service. On the appliance, set `engine` to `swarm` "
        "and `site_address` to its address there, and restart the site agent; older releases have no join service."
    ),
    r.WorkloadLostThere: "A workload was lost there. It takes no work until its next report.",
    r.RemovedFromSite: (
        "{node} was removed from this site. Let it join again (`commonage node join`), or remove it from its engine."
    ),
    r.DiskNearlyFull: _disk,
    r.FolderNotReadable: lambda reason, _: f"Folder {reason.folder} cannot be read: {sentence(reason.error)}",
    r.SharedFolderEmpty: "The shared folder {folder} is empty. Check whether it is mounted.",
    r.SharedFolderSilent: "The file server of the shared folder {folder} has not answered for {silent_s}.",
    r.SharedFolderNotSet: (
        "The setting shared_dir is missing, so that this node would have to see the data folder with the secrets of "
        "the site. Set a shared_dir ({guide})."
    ),
    r.FoldersNotMountable: lambda reason, _: (
        f"The agent cannot mount folders of workloads in {reason.folder}: {sentence(reason.error)} It must run as "
        "root, with the capability SYS_ADMIN if it is a container."
    ),
    r.GpuDriverUnavailable: lambda reason, _: sentence(reason.error),
    r.EngineNotAnswering: lambda reason, _: sentence(reason.error),
    r.DaemonNotRunning: "Its Docker daemon has not been running for {silent_s}.",
    r.DaemonNotAnswering: "Its Docker daemon has not answered for {silent_s}.",
    r.DaemonMapsUsers: (
        "Its Docker daemon maps users (userns-remap), so that no container can open its own folder on the shared "
        "folder of the site. Remove userns-remap from /etc/docker/daemon.json there and restart Docker."
    ),
    r.DaemonWithoutSeccomp: (
        "Its Docker daemon has no seccomp profile, so that containers may make any system call. Remove seccomp-profile "
        "from /etc/docker/daemon.json there and restart Docker, on a kernel with seccomp."
    ),
    r.AgentNotAnswering: "Its agent does not answer.",
    r.NoAgent: (
        "It has no agent, which mounts the folders of workloads. `commonage node join` installs one; with "
        "`swarm_without_agents` it takes work without."
    ),
    r.AgentTooOld: f"Its agent is too old to mount the folders of workloads. {_JOIN}.",
    r.FirewallNotBuilt: lambda reason, _: (
        f"The firewall between containers and the network of this node is not in place: {sentence(reason.error)}"
    ),
    r.GatewayNotListening: lambda reason, _: (
        f"Containers cannot reach the control plane: {sentence(reason.error)} End the program that has the port "
        "(ss -tlnp), or set another hub_port and control_port."
    ),
    r.ClusterNodeNotReady: lambda reason, _: f"Kubernetes reports it as not ready: {sentence(reason.error)}",
    r.ClusterNodeCordoned: "It is cordoned in Kubernetes (`kubectl uncordon`).",
    r.ClusterNodeTainted: "A taint in Kubernetes keeps Pods away: {taint}.",
    r.ClusterNodeSilent: (
        "Node {node} does not answer Kubernetes, so that its Pods may still run. Bring it back. If it is off for "
        "certain, taint it with node.kubernetes.io/out-of-service, or delete it from the cluster."
    ),
    r.SwarmNodeDown: lambda reason, _: f"Docker Swarm does not reach it: {sentence(reason.error)}",
    r.SwarmNodeNotReady: "Docker Swarm waits for it (state {state}).",
    r.SwarmNodeNotActive: "Docker Swarm gives it no work (availability {availability}).",
    r.NoNodeCertificate: (
        "No certificate of this site is bound to its Swarm node {swarm_node_id}. Run `commonage node join` for it, or "
        "remove it with `commonage node rm {node}`."
    ),
    r.HostNameChanged: (
        "Docker there reports the host name {host_name}, and its certificate is that of {node}. Change the host name "
        "back, or drain it and run `commonage node join` for it again."
    ),
    r.HostNameTaken: (
        "Docker there reports the host name {host_name}, which is that of another node. Give it another host name and "
        "run `commonage node join` for it, or remove it with `commonage node rm {node}`."
    ),
    r.EndingWorkloads: "Its workloads are ended there before they start elsewhere.",
    r.WaitingForPause: "Its workloads start elsewhere once its agent has had time to pause them.",
    r.MayBeCutOff: (
        f"Most nodes are silent, or still see it, so the control plane may be the one that is cut off. {_UNDECIDED}"
    ),
    r.MayRunWithoutAgent: f"It may be partitioned, and has no agent that would pause its workloads. {_UNDECIDED}",
    r.MayStillRun: "It may still run on node {node}. {cause}",
    r.FencedByAgent: "Its Docker daemon did not answer, and its agent ended its workloads.",
    r.NotInSwarm: lambda reason, _: (
        f"Node {reason.node} is not in the Swarm any more. In it: {', '.join(reason.nodes) or 'none'}."
    ),
    r.NodeTakesNoWork: "Node {node} takes no work. {cause}",
    r.NodeInUse: _in_use,
    r.NodeRefusedPods: "The cluster refused a pod there, so it gets no work until {until_at}. {cause}",
}
