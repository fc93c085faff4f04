"""Texts of `commonage.domain.reasons.engines`."""

from __future__ import annotations

from collections.abc import Sequence

from commonage.domain.reasons import engines as r
from commonage.messages.template import Say, Texts

_MAX_NAMED = 4


def _named(nodes: Sequence[str]) -> str:
    more = len(nodes) - _MAX_NAMED
    return ", ".join(nodes) if more <= 1 else f"{', '.join(nodes[:_MAX_NAMED])} and {more} more"


def _node_loss(reason: r.NodeLossNoticed, _say: Say) -> str:
    notice = f"The loss of a node is noticed after {reason.after_s:.0f} s."
    return (
        f"{notice} `docker swarm update --dispatcher-heartbeat 2s` shortens that to 6 s." if reason.is_slow else notice
    )


def _volume_size(reason: r.VolumeSizeNotEnforced, _say: Say) -> str:
    if not reason.enforced_on:
        return "Its size is not enforced here."
    return f"Its size is enforced on {_named(reason.enforced_on)}, not on {_named(reason.nodes)}."


TEXTS: Texts = {
    r.NotIsolated: (
        "Workloads run as plain processes under the server's own account, so that users can read and stop each other's "
        "work. Use a container engine where they do not trust each other."
    ),
    r.ControlGroupsMissing: (
        "The server may use no control groups here. Memory is watched every few seconds instead of limited, CPU is "
        "counted but not limited, and a process that clears its environment can outlive its workload."
    ),
    r.MemoryNotLimited: "The kernel does not let the server limit memory by control groups. Memory is watched instead.",
    r.CpuNotLimited: (
        "The kernel does not let the server limit CPU by control groups. Requests are counted, not enforced."
    ),
    r.DockerInUse: "Docker {version}, storage driver {storage}.",
    r.UsersMapped: "The Docker daemon maps users: root in a container is no user of this node.",
    r.UsersNotMapped: (
        "The Docker daemon does not map users: root in a container is root of this node, with few capabilities. To map "
        'them, set "userns-remap": "default" in /etc/docker/daemon.json.'
    ),
    r.NoLiveRestore: (
        "When the Docker daemon is restarted, all workloads end and queue again. To keep them running, set "
        '"live-restore": true in /etc/docker/daemon.json.'
    ),
    r.SwapNotLimited: (
        "The kernel does not limit swap: a workload may use as much swap as it has memory, in addition to it."
    ),
    r.KubernetesInUse: lambda reason, _: (
        f"Kubernetes {reason.version}. Pods "
        + ("meet" if reason.is_restricted else "do not meet")
        + " the Pod Security level `restricted`."
    ),
    r.HomesEndWithPods: ("Homes are deleted when their Pod ends. Set kubernetes_homes to keep the files of users."),
    r.SwarmInUse: "Docker {version} with Swarm. All nodes must see {folder} under this path.",
    r.NodeLossNoticed: _node_loss,
    r.NodesWithoutAgent: (
        "{nodes} without an agent: no workload runs there unless swarm_without_agents allows it. Then containers reach "
        "the node, the site and the ports of other tenants; everybody on the site's network reaches their ports; their "
        "tokens cross it in plain text; no GPUs are known, and nothing is measured. `commonage node join` installs an "
        "agent."
    ),
    r.PlainHttpToHub: (
        "{nodes}: the agent is of an earlier version, so that containers reach the hub by plain HTTP over the site's "
        "network, and everybody there reaches their ports. Run `commonage node join` again."
    ),
    r.PrivilegesMayBeGained: (
        "Its containers may gain privileges, for example by a set-user-ID program (no-new-privileges is off). Run "
        '`commonage node join` for it again, or set "no-new-privileges": true in /etc/docker/daemon.json there and '
        "restart Docker."
    ),
    r.NodeNotice: "{node}: {cause}",
    r.VolumeIsLink: "Here it is a link in ~/volumes, so that read-only is not enforced.",
    r.VolumeSizeNotEnforced: _volume_size,
}
