"""The rights of the control plane in the cluster: one table, from which roles and the reference are made.

A ClusterRole for the whole cluster, and one that is bound in each tenant's namespace alone. The admin installs both;
the control plane binds the second to itself in the namespaces that it makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.names import metadata
from commonage.engines.settings import KubernetesPolicySettings

_RBAC, _NETWORK = "rbac.authorization.k8s.io", "networking.k8s.io"
_SNAPSHOTS = "snapshot.storage.k8s.io"
_API = f"{_RBAC}/v1"
BOUND_ROLE = "TENANT"  # stands in the table for the name of the role of the tenants' namespaces


class Reach(StrEnum):
    TENANTS = "tenants"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Grant:
    """`names`, if not empty, are the only objects. `verbs` are separated by spaces.

    `keeping`: needed only where Commonage keeps the tenants' namespaces.
    """

    reach: Reach
    group: str
    resource: str
    verbs: str
    why: str
    names: tuple[str, ...] = ()
    keeping: bool = False


_T, _C = Reach.TENANTS, Reach.CLUSTER
_ALL: tuple[str, ...] = ()
GRANTS = (
    Grant(_T, "", "pods", "create delete get list patch watch", "Each attempt is a pod."),
    Grant(_T, "", "pods/log", "get", "Output of attempts."),
    Grant(_T, "", "pods/exec", "create get", "Terminals, and files of jobs. Over WebSockets the verb is `get`, too."),
    Grant(_T, "", "pods/portforward", "create get", "Sessions and services, with `kubernetes_reach = port-forward`."),
    Grant(_T, "", "secrets", "create patch", "Secret variables of an attempt, and the registry's account."),
    Grant(_T, "", "configmaps", "create patch", "Files that start the program of an attempt."),
    Grant(_T, "", "services", "create patch", "Names of a gang's members."),
    Grant(_T, "", "events", "list", "The cluster's messages about an attempt."),
    Grant(_T, "", "persistentvolumeclaims", "create get list patch", "Homes and volumes; they grow with the quota."),
    Grant(_T, "", "resourcequotas", "create delete get list patch", "The tenant's quota.", _ALL, True),
    Grant(_T, "", "limitranges", "create delete get list patch", "Defaults of containers.", _ALL, True),
    Grant(_T, _NETWORK, "networkpolicies", "create patch", "Members of a gang reach each other."),
    Grant(_T, _NETWORK, "networkpolicies", "delete get list", "The tenant's firewall.", _ALL, True),
    Grant(_T, _SNAPSHOTS, "volumesnapshots", "list", "A namespace that has any is not deleted.", _ALL, True),
    Grant(_T, "resource.k8s.io", "resourceclaims", "create delete get list patch watch", "Devices of an attempt."),
    Grant(_T, "kueue.x-k8s.io", "localqueues", "get list", "The tenant's queue, where Kueue manages the namespace."),
    Grant(_C, "", "nodes", "get list watch", "Capacity, labels, taints and conditions of nodes."),
    Grant(_C, "", "pods", "list watch", "Requests of other Pods on a node."),
    Grant(_C, "", "namespaces", "get", "The queue of Kueue that a namespace names."),
    Grant(_C, "", "namespaces", "create delete list patch", "A namespace for each tenant.", _ALL, True),
    Grant(_C, _RBAC, "rolebindings", "create delete get list patch", "Access to new namespaces.", _ALL, True),
    Grant(_C, _RBAC, "clusterroles", "bind", "It binds this role to itself.", (BOUND_ROLE,), True),
    Grant(_C, "", "persistentvolumeclaims", "list", "How much storage each tenant has requested."),
    Grant(_C, "storage.k8s.io", "storageclasses", "get list watch", "Whether claims of a class can grow."),
    Grant(_C, "resource.k8s.io", "deviceclasses", "get list watch", "The GPUs that drivers offer."),
    Grant(_C, "resource.k8s.io", "resourceslices", "get list watch", "The devices of each node."),
    Grant(_C, "resource.k8s.io", "resourceclaims", "get list watch", "The devices that pods of others hold."),
    Grant(
        _C,
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        "get list watch",
        "Whether HAMi shares the GPUs.",
    ),
    Grant(_C, "kueue.x-k8s.io", "clusterqueues", "get list watch", "Flavors of the tenants' queues."),
    Grant(_C, "kueue.x-k8s.io", "resourceflavors", "get list watch", "Node labels of a flavor."),
)


def tenant_role_name(settings: KubernetesPolicySettings) -> str:
    return f"{settings.prefix}-tenant"


def roles(settings: KubernetesPolicySettings) -> tuple[Manifest, ...]:
    """The ServiceAccount's two ClusterRoles, and the ClusterRoleBinding of the first."""
    return _roles(f"{settings.prefix}-cluster", [one for one in GRANTS if one.reach is Reach.CLUSTER], settings)


def keeping_roles(settings: KubernetesPolicySettings) -> tuple[Manifest, ...]:
    """The additional roles that an installation with `rules` needs to keep the tenants' namespaces."""
    own = [one for one in GRANTS if one.reach is Reach.CLUSTER and one.keeping]
    return _roles(f"{settings.prefix}-namespaces", own, settings)


def _roles(name: str, in_cluster: Sequence[Grant], settings: KubernetesPolicySettings) -> tuple[Manifest, ...]:
    in_tenants = [one for one in GRANTS if one.reach is Reach.TENANTS]
    return (
        _role(name, in_cluster, settings),
        _role(tenant_role_name(settings), in_tenants, settings),
        {
            "apiVersion": _API,
            "kind": "ClusterRoleBinding",
            "metadata": metadata(name, settings.installation, {}),
            **_to(name, settings),
        },
    )


def role_binding(namespace: str, settings: KubernetesPolicySettings) -> Manifest:
    return {
        "apiVersion": _API,
        "kind": "RoleBinding",
        "metadata": metadata("commonage", settings.installation, {}, namespace=namespace, part="policy"),
        **_to(tenant_role_name(settings), settings),
    }


def _to(role: str, settings: KubernetesPolicySettings) -> Manifest:
    subject = {"kind": "ServiceAccount", "name": settings.service_account, "namespace": settings.namespace}
    return {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }


def _role(name: str, grants: Sequence[Grant], settings: KubernetesPolicySettings) -> Manifest:
    return {
        "apiVersion": _API,
        "kind": "ClusterRole",
        "metadata": metadata(name, settings.installation, {}),
        "rules": [_rule(grant, settings) for grant in grants],
    }


def rules(reach: Reach) -> list[Manifest]:
    """The rules of a role for an installation whose admin makes the namespaces."""
    return [_plain_rule(grant) for grant in GRANTS if grant.reach is reach and not grant.keeping]


def _plain_rule(grant: Grant) -> Manifest:
    return {"apiGroups": [grant.group], "resources": [grant.resource], "verbs": grant.verbs.split()}


def _rule(grant: Grant, settings: KubernetesPolicySettings) -> Manifest:
    rule = _plain_rule(grant)
    if grant.names:
        rule["resourceNames"] = [tenant_role_name(settings) if name == BOUND_ROLE else name for name in grant.names]
    return rule


_ABOUT = {
    Reach.TENANTS: "In the tenants' namespaces",
    Reach.CLUSTER: "In the whole cluster",
}


def reference() -> str:
    """The page about these grants."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Access in a Kubernetes cluster\n"
    yield (
        "The control plane uses one ServiceAccount with these rights, `create tokenreviews` if nodes have\n"
        "[agents](../operate/kubernetes-agent.md), and `get nodes/proxy` if kubelets measure usage. It needs some\n"
        "only where it keeps [the tenants' namespaces]"
        "(../operate/kubernetes-policies.md#let-commonage-keep-the-namespaces).\n"
        "The admission policy `own` bounds its changes of namespaces and role bindings to its tenants' namespaces\n"
        "([policies](../operate/kubernetes-policies.md))."
    )
    for reach, grants in groupby(GRANTS, lambda grant: grant.reach):
        yield f"\n## {_ABOUT[reach]}\n"
        yield "| group | resource | verbs | needed | why |"
        yield "|---|---|---|---|---|"
        for grant in grants:
            verbs = ", ".join(f"`{verb}`" for verb in grant.verbs.split())
            only = " No other role than that of the tenants' namespaces." if grant.names else ""
            group = f"`{grant.group}`" if grant.group else "core"
            needed = "where it keeps namespaces" if grant.keeping else "always"
            yield f"| {group} | `{grant.resource}` | {verbs} | {needed} | {grant.why}{only} |"
