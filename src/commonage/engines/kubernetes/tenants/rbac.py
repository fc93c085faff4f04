"""The rights of the control plane in the cluster: one table, from which roles and the reference are made.

A ClusterRole for the whole cluster, and one that is bound in each tenant's namespace alone. The admin installs both;
the control plane binds the second to itself in the namespaces that it makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.names import metadata
from commonage.engines.settings import KubernetesPolicySettings

_RBAC = "rbac.authorization.k8s.io"
_API = f"{_RBAC}/v1"
BOUND_ROLE = "TENANT"  # stands in the table for the name of the role of the tenants' namespaces


class Reach(StrEnum):
    TENANTS = "tenants"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Grant:
    """`names`, if not empty, are the only objects. `verbs` are separated by spaces."""

    reach: Reach
    group: str
    resource: str
    verbs: str
    why: str
    names: tuple[str, ...] = ()


_T, _C = Reach.TENANTS, Reach.CLUSTER
GRANTS = (
    Grant(_T, "", "pods", "create delete get list patch watch", "Each attempt is a pod."),
    Grant(_T, "", "pods/log", "get", "Output of attempts."),
    Grant(_T, "", "pods/exec", "create get", "Terminals, and files of jobs. Over WebSockets the verb is `get`, too."),
    Grant(_T, "", "pods/portforward", "create get", "Sessions and services, with `kubernetes_reach = port-forward`."),
    Grant(_T, "", "secrets", "create delete list patch", "Secret variables of an attempt, and the registry's account."),
    Grant(_T, "", "configmaps", "create delete list patch", "Files that start the program of an attempt."),
    Grant(_T, "", "services", "create delete list patch", "Names of a gang's members."),
    Grant(_T, "", "events", "get list watch", "The cluster's messages about an attempt."),
    Grant(_T, "", "persistentvolumeclaims", "create get patch", "Homes and volumes; they grow with the quota."),
    Grant(_T, "", "resourcequotas", "create delete get list patch", "The tenant's quota."),
    Grant(_T, "", "limitranges", "create delete get list patch", "Defaults of containers."),
    Grant(_T, "networking.k8s.io", "networkpolicies", "create delete get list patch", "The tenant's firewall."),
    Grant(_T, "resource.k8s.io", "resourceclaims", "create delete get list patch watch", "Devices of an attempt."),
    Grant(_T, "snapshot.storage.k8s.io", "volumesnapshots", "create delete get list patch", "Snapshots of claims."),
    Grant(_T, "kueue.x-k8s.io", "localqueues", "get list", "The tenant's queue, where Kueue manages the namespace."),
    Grant(_T, "kueue.x-k8s.io", "workloads", "get list watch", "Why Kueue holds or ends a pod."),
    Grant(_C, "", "nodes", "get list watch", "Capacity, labels, taints and conditions of nodes."),
    Grant(_C, "", "pods", "list watch", "What pods of others request of a node."),
    Grant(_C, "", "namespaces", "create delete get list patch watch", "A namespace for each tenant."),
    Grant(_C, _RBAC, "rolebindings", "create delete get list patch", "Access to new namespaces."),
    Grant(_C, _RBAC, "clusterroles", "bind", "It binds this role to itself.", (BOUND_ROLE,)),
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
    cluster = f"{settings.prefix}-cluster"
    return (
        _role(cluster, Reach.CLUSTER, settings),
        _role(tenant_role_name(settings), Reach.TENANTS, settings),
        {
            "apiVersion": _API,
            "kind": "ClusterRoleBinding",
            "metadata": metadata(cluster, settings.installation, {}),
            **_to(cluster, settings),
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


def _role(name: str, reach: Reach, settings: KubernetesPolicySettings) -> Manifest:
    return {
        "apiVersion": _API,
        "kind": "ClusterRole",
        "metadata": metadata(name, settings.installation, {}),
        "rules": [_rule(grant, settings) for grant in GRANTS if grant.reach is reach],
    }


def rules(reach: Reach) -> list[Manifest]:
    """The rules of a role without `names`, for an installation with one namespace for all tenants."""
    return [_plain_rule(grant) for grant in GRANTS if grant.reach is reach]


def cluster_reads() -> list[Manifest]:
    """The rules for the cluster of an installation that makes no namespaces."""
    reads = ("get", "list", "watch")
    found = [rule for rule in rules(Reach.CLUSTER) if rule["apiGroups"] != [_RBAC]]
    return [{**rule, "verbs": [verb for verb in rule["verbs"] if verb in reads]} for rule in found]


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
        "[agents](../operate/kubernetes-agent.md), and `get nodes/proxy` if kubelets measure usage.\n"
        "The admission policy `own` bounds its changes of namespaces and role bindings to its tenants' namespaces\n"
        "([policies](../operate/kubernetes-policies.md))."
    )
    for reach, grants in groupby(GRANTS, lambda grant: grant.reach):
        yield f"\n## {_ABOUT[reach]}\n"
        yield "| group | resource | verbs | why |"
        yield "|---|---|---|---|"
        for grant in grants:
            verbs = ", ".join(f"`{verb}`" for verb in grant.verbs.split())
            only = " No other role than that of the tenants' namespaces." if grant.names else ""
            group = f"`{grant.group}`" if grant.group else "core"
            yield f"| {group} | `{grant.resource}` | {verbs} | {grant.why}{only} |"
