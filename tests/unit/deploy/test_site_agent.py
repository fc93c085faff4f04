"""The manifests of a site agent in a cluster (deploy/kustomize/site-agent)."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from commonage.engines.kubernetes.tenants.rbac import Reach, rules
from commonage.server.settings.settings import Settings

FOLDER = Path(__file__).parents[3] / "deploy" / "kustomize" / "site-agent"


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name, of the files that the kustomization names."""
    files = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    found = [one for name in files for one in yaml.safe_load_all((FOLDER / name).read_text())]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


@pytest.fixture(scope="module")
def pod(manifests: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = manifests["Deployment", "commonage-site-agent"]["spec"]["template"]["spec"]
    return found


def test_kubernetes_accepts_them(manifests: dict[tuple[str, str], dict[str, Any]]) -> None:
    for one in manifests.values():
        kubernetes_validate.validate(one, "1.34", strict=True)


def test_the_agent_has_the_rights_of_the_table_in_its_namespace_of_pods_alone(
    manifests: dict[tuple[str, str], dict[str, Any]], pod: dict[str, Any]
) -> None:
    [settings] = [_settings(one) for one in pod["containers"]]
    role = manifests["Role", "commonage-site-agent"]
    assert (role["rules"], role["metadata"]["namespace"]) == (rules(Reach.TENANTS), settings.kubernetes_namespace)
    assert manifests["ClusterRole", "commonage-site-agent"]["rules"] == rules(Reach.CLUSTER)
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        [subject] = manifests[kind, "commonage-site-agent"]["subjects"]
        assert manifests["ServiceAccount", subject["name"]]["metadata"]["namespace"] == subject["namespace"]


def test_the_agent_may_keep_namespaces_where_the_admin_says_so(pod: dict[str, Any]) -> None:
    folder = FOLDER.parent / "site-agent-tenants"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found = [one for name in ("access.yaml", "network.yaml") for one in yaml.safe_load_all((folder / name).read_text())]
    for one in found:
        kubernetes_validate.validate(one, "1.34", strict=True)

    [settings] = [_settings(one) for one in pod["containers"]]
    [binding] = [one for one in found if one["kind"] == "ClusterRoleBinding"]
    account = {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "commonage-site"}
    assert binding["subjects"] == [account]
    names = {one["metadata"]["name"] for one in found if one["kind"] == "ClusterRole"}
    assert names == {f"{settings.kubernetes_namespace}-{role}" for role in ("namespaces", "tenant")}
    [change] = yaml.safe_load(kustomization["patches"][0]["patch"])
    assert _settings({"env": [change["value"]]}).kubernetes_namespaces == "kept"
    [policy] = [one for one in found if one["kind"] == "NetworkPolicy"]
    [peer] = policy["spec"]["ingress"][0]["from"]
    assert list(peer["namespaceSelector"]["matchLabels"].values()) == [settings.kubernetes_namespace]


def test_what_the_settings_name_is_there(manifests: dict[tuple[str, str], dict[str, Any]], pod: dict[str, Any]) -> None:
    for container in (*pod["initContainers"], *pod["containers"]):
        settings = _settings(container)
        assert ("Namespace", settings.kubernetes_namespace) in manifests
        assert manifests["PriorityClass", settings.kubernetes_priority_class or ""]["preemptionPolicy"] == "Never"
        service, namespace, _ = (settings.kubernetes_address or "").split(".")
        assert manifests["Service", service]["metadata"]["namespace"] == namespace


def test_the_pod_passes_the_restricted_standard(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["enableServiceLinks"] is False
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not container["securityContext"]["allowPrivilegeEscalation"]


def _settings(container: dict[str, Any]) -> Settings:
    given = {one["name"]: one["value"] for one in container["env"]}
    ours = {name.removeprefix("COMMONAGE_").lower(): value for name, value in given.items() if "COMMONAGE_" in name}
    return Settings.model_validate(ours)
