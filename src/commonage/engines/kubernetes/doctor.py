"""Rights and versions that a cluster lacks for this site, as text for an admin. `commonage doctor` calls it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from commonage.engines.kubernetes.client import NAMESPACES, NODES, Client
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.nodes import not_answering_since
from commonage.engines.kubernetes.tenants.rbac import GRANTS, Reach
from commonage.engines.settings import KubernetesSettings

_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RIGHTS: tuple[tuple[str, str, str, bool], ...] = (
    ("list", "", "pods", False),
    ("watch", "", "pods", False),
    ("list", "", "nodes", False),
    ("watch", "", "nodes", False),
    ("get", "", "pods", True),
    ("create", "", "pods", True),
    ("patch", "", "pods", True),
    ("delete", "", "pods", True),
    ("get", "", "pods/log", True),
    ("get", "", "pods/exec", True),
    ("create", "", "pods/exec", True),
    ("create", "", "secrets", True),
    ("patch", "", "secrets", True),
    ("create", "", "configmaps", True),
    ("patch", "", "configmaps", True),
    ("create", "", "services", True),
    ("patch", "", "services", True),
)
"""Verb, group, resource, and whether it is needed in the namespaces of Pods only. The engine works with no others."""
CLAIM_RIGHTS: tuple[tuple[str, str, str, bool], ...] = (
    ("get", "", "persistentvolumeclaims", True),
    ("list", "", "persistentvolumeclaims", True),
    ("create", "", "persistentvolumeclaims", True),
    ("patch", "", "persistentvolumeclaims", True),
    ("get", "storage.k8s.io", "storageclasses", False),
)
"""Further rights that it needs if it creates the claims of homes or volumes."""
FORWARDING: tuple[tuple[str, str, str, bool], ...] = (
    ("get", "", "pods/portforward", True),
    ("create", "", "pods/portforward", True),
)
"""Those for sessions and services, where they are reached through the API server."""
MEASURING = ("get", "", "nodes/proxy", False)
"""Without it nothing is measured, unless the nodes have agents."""
ADMITTING = ("create", "authentication.k8s.io", "tokenreviews", False)
"""Without it no agent of a node can join."""


def rights_of(settings: KubernetesSettings) -> list[tuple[str, str, str, bool]]:
    """Those that it needs with these settings. It gives itself those in the namespaces that it keeps."""
    claims = CLAIM_RIGHTS if settings.homes == "claim" else ()
    forwarding = FORWARDING if settings.reach == "port-forward" else ()
    rights = [*RIGHTS, *claims, *forwarding, ADMITTING if settings.agents else MEASURING]
    if settings.namespaces != "kept":
        return rights
    keeping = [one for one in GRANTS if one.keeping and one.reach is Reach.CLUSTER]
    own = [(verb, one.group, one.resource, False) for one in keeping for verb in one.verbs.split()]
    return [*(one for one in rights if not one[3]), *own]


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    said: str
    advice: str


async def examine_cluster(settings: KubernetesSettings) -> ClusterSummary:
    """Raises EngineFailure if the cluster does not answer."""
    client = Client(settings.kubeconfig, settings.context)
    client.open()
    try:
        version = await client.version()
        advice = [
            f"missing right: {verb} {resource} ({'namespace' if is_local else 'cluster'})"
            for verb, group, resource, is_local in rights_of(settings)
            if not await _may(client, settings, verb, group, resource, is_local)
        ]
        namespace = None
        if settings.namespaces == "single":
            namespace = await client.find(NAMESPACES.path(None, settings.namespace))
            if namespace is None:
                advice.append(
                    f"there is no namespace {settings.namespace}: kubectl create namespace {settings.namespace}"
                )
        nodes = (await client.list_all(NODES.path(None))).items
        down = sorted(one["metadata"]["name"] for one in nodes if not_answering_since(one) is not None)
        said = f"Kubernetes {version}, {len(nodes)} nodes{', not ready: ' + ', '.join(down) if down else ''}"
        advice += [*_of_security(namespace, settings)]
        if settings.user == 0 and (names := nodes_without_user_namespaces(nodes)):
            advice.append(
                f"Pods of root do not start on {', '.join(names)}, whose container runtime has no user namespaces: "
                "set kubernetes_user to another number than 0"
            )
        if settings.homes == "empty":
            advice.append("homes are gone when their Pod ends (kubernetes_homes)")
        return ClusterSummary(said, "; ".join(advice))
    finally:
        await client.close()


def nodes_without_user_namespaces(nodes: Sequence[Manifest]) -> list[str]:
    """Those whose default runtime says that it has none."""
    found = []
    for node in nodes:
        handlers = {
            one.get("name", ""): one.get("features") or {} for one in node["status"].get("runtimeHandlers") or ()
        }
        if handlers.get("", {}).get("userNamespaces") is False:
            found.append(node["metadata"]["name"])
    return sorted(found)


def _of_security(namespace: Manifest | None, settings: KubernetesSettings) -> Iterator[str]:
    labels: Mapping[str, str] = {} if namespace is None else namespace["metadata"].get("labels") or {}
    level = labels.get("pod-security.kubernetes.io/enforce", "")
    if level == "restricted" and settings.user == 0:
        yield "the namespace refuses root (Pod Security `restricted`): set kubernetes_user to another number than 0"
    if level in ("restricted", "baseline") and settings.homes == "host-path":
        yield f"the namespace refuses folders of nodes (Pod Security `{level}`), which kubernetes_homes needs"


async def _may(
    client: Client, settings: KubernetesSettings, verb: str, group: str, resource: str, is_local: bool
) -> bool:
    plain, _, subresource = resource.partition("/")
    asked: Manifest = {"verb": verb, "group": group, "resource": plain, "subresource": subresource}
    if verb == "bind":
        asked["name"] = f"{settings.namespace}-tenant"
    if is_local and settings.namespaces == "single":
        asked["namespace"] = settings.namespace
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    answer = await client.create(_REVIEW, {**review, "spec": {"resourceAttributes": asked}})
    return bool(answer["status"].get("allowed"))
