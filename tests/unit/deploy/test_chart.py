"""The Helm chart and its generated files: it renders, is valid for Kubernetes, and refers only to existing objects."""

import base64
import importlib.util
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from commonage.agent import run_in_pod
from commonage.agent.kubernetes.agent import LINKED
from commonage.engines.kubernetes.agents import AUDIENCE, AUTHORITY_KEY
from commonage.engines.kubernetes.doctor import CLAIM_RIGHTS, MEASURING, RIGHTS
from commonage.engines.kubernetes.tenants.rbac import GRANTS, Reach
from commonage.metrics.series import SERIES
from commonage.server.processes.components import check_places
from commonage.server.proxy_rules import READY_PATH
from commonage.server.secrets import read_given_secrets
from commonage.server.settings.settings import Settings

ROOT = Path(__file__).parents[3]
MINORS = ("1.34", "1.36", "1.37")
OUTSIDE = {"postgresql": {"enabled": False}}
DATABASES = {"control": {"db": {"url": "postgresql://a:b@db/c"}}, "hub": {"db": {"url": "postgresql+psycopg://a@db/j"}}}
MONITORING = {part: {"enabled": True} for part in ("serviceMonitor", "prometheusRule", "dashboards")}
SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "trial": {"control": {"storage": {"type": "emptyDir"}}, "postgresql": {"storage": {"type": "emptyDir"}}},
    "production": {
        **OUTSIDE,
        **DATABASES,
        "existingSecret": "commonage-secrets",
        "publicUrl": "https://hub.example.org",
        "sessionHost": "*.hub.example.org",
        "settings": {"engine": "process", "tenants": [{"name": "physics"}]},
        "proxy": {"service": {"type": "NodePort", "nodePorts": {"http": 30080}}, "nodeSelector": {"role": "core"}},
        "ingress": {"enabled": True, "hosts": ["hub.example.org"], "tls": [{"hosts": ["hub.example.org"]}]},
        "monitoring": MONITORING,
    },
    "agents-of-gpus": {"agent": {"hostPID": True, "runtimeClassName": "nvidia", "priorityClassName": "high"}},
    "without-agents": {"agent": {"enabled": False}},
    "tenants": {"workloads": {"tenantNamespaces": True}},
    "hub": {
        "hub": {
            "config": {"Authenticator": {"admin_users": ["ada"]}},
            "extraConfig": {"10-more": "c.JupyterHub.log_level = 10"},
            "extraEnv": {
                "A": "1",
                "C": {"name": "D", "value": "2"},
                "B": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            },
            "tolerations": [{"key": "core", "operator": "Exists"}],
        },
        "imagePullSecrets": [{"name": "registry"}, "another"],
    },
}


@pytest.fixture(scope="module")
def kustomize() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kustomize", ROOT / "scripts" / "kustomize.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def manifests(kustomize: ModuleType, values: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for part in kustomize.rendered(values).values() for one in part]


def pods(rendered: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in rendered if one["kind"] in ("Deployment", "StatefulSet")]


def test_helm_finds_nothing_to_complain_about(kustomize: ModuleType) -> None:
    found = helm_python.lint(kustomize.CHART, strict=True)
    assert [one for one in found["messages"] if one["severity"] > 1] == []
    assert found["errors"] == []


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("name", SETS)
def test_each_kubernetes_accepts_the_manifests(kustomize: ModuleType, name: str, minor: str) -> None:
    for one in manifests(kustomize, SETS[name]):
        if "monitoring.coreos.com" not in one["apiVersion"]:  # a custom resource
            kubernetes_validate.validate(one, minor, strict=True)


@pytest.mark.parametrize("name", SETS)
def test_pods_pass_the_restricted_standard_and_share_no_claim(kustomize: ModuleType, name: str) -> None:
    claims: list[str] = []
    for pod in pods(manifests(kustomize, SETS[name])):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        # Names of Services become variables such as COMMONAGE_HUB_PORT, which are settings.
        assert pod["enableServiceLinks"] is False
        mounted = [one["persistentVolumeClaim"] for one in pod["volumes"] if "persistentVolumeClaim" in one]
        claims += [one["claimName"] for one in mounted]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            own = container["securityContext"]
            assert not own["allowPrivilegeEscalation"]
            assert own["readOnlyRootFilesystem"]
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert "requests" in container["resources"]
        for container in pod["containers"]:
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    assert len(claims) == len(set(claims))


@pytest.mark.parametrize("name", SETS)
def test_settings_are_those_of_the_server(kustomize: ModuleType, name: str) -> None:
    [found] = [
        one["data"]["commonage.toml"]
        for one in manifests(kustomize, SETS[name])
        if one["kind"] == "ConfigMap" and "commonage.toml" in one.get("data", {})
    ]
    settings = Settings.model_validate(tomllib.loads(found))
    check_places(settings)
    assert settings.session_host == SETS[name].get("sessionHost", "none")


def test_values_override_the_charts_settings(kustomize: ModuleType) -> None:
    [found] = kustomize.rendered({"settings": {"trusted_proxies": ["10.1.0.0/16"]}})["settings.yaml"]
    assert tomllib.loads(found["data"]["commonage.toml"])["trusted_proxies"] == ["10.1.0.0/16"]


def test_forwarding_headers_of_nobody_are_believed_by_default(kustomize: ModuleType) -> None:
    [found] = kustomize.rendered({})["settings.yaml"]
    assert tomllib.loads(found["data"]["commonage.toml"])["trusted_proxies"] == []


@pytest.mark.parametrize("part", ["hub", "control", "postgresql"])
def test_only_components_reach_the_inner_ports(kustomize: ModuleType, part: str) -> None:
    """Pods of workloads that reach the hub could write the headers that its proxy writes."""
    rendered = kustomize.rendered({"postgresql": {"enabled": True}})["networkpolicy.yaml"]
    [policy] = [one["spec"] for one in rendered if one["metadata"]["name"] == f"commonage-{part}"]
    assert policy["policyTypes"] == ["Ingress"]
    inner = [one for one in policy["ingress"] if one["ports"][0]["port"] in (5432, 8081, 8082)]
    assert inner
    for one in inner:
        for peer in one["from"]:
            assert set(peer) == {"podSelector"}, "Pods of the release's own namespace"
            labels = peer["podSelector"]["matchLabels"]
            assert labels["app.kubernetes.io/component"] in ("proxy", "hub", "control")


def test_helm_test_reaches_the_proxy_where_only_the_ingress_controller_may(kustomize: ModuleType) -> None:
    controller = {"namespaceSelector": {"matchLabels": {"name": "ingress"}}}
    rendered = kustomize.rendered({"networkPolicy": {"proxyIngress": [controller]}})
    [pod] = rendered["test.yaml"]
    [proxy] = [one for one in rendered["networkpolicy.yaml"] if one["metadata"]["name"] == "commonage-proxy"]
    [users] = [one for one in proxy["spec"]["ingress"] if one["ports"] == [{"port": 8000}]]
    assert users["from"][0] == controller
    labels = users["from"][1]["podSelector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()


def test_a_proxy_gets_users_once_it_has_rules_and_the_hub_reaches_it_before(kustomize: ModuleType) -> None:
    rendered = kustomize.rendered({})["proxy.yaml"]
    [made] = [one for one in rendered if one["kind"] == "Deployment"]
    [container] = made["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == READY_PATH
    assert made["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    services = {one["metadata"]["name"]: one["spec"] for one in rendered if one["kind"] == "Service"}
    assert services["commonage-proxy-api"]["publishNotReadyAddresses"]
    assert "publishNotReadyAddresses" not in services["commonage-proxy-public"]


def test_traces_are_off_unless_a_collector_is_named(kustomize: ModuleType) -> None:
    def settings(values: dict[str, Any]) -> Settings:
        [found] = kustomize.rendered(values)["settings.yaml"]
        return Settings.model_validate(tomllib.loads(found["data"]["commonage.toml"]))

    assert settings({}).tracing_endpoint is None
    traced = settings({"tracing": {"endpoint": "http://collector.monitoring:4318", "share": 0.1}})
    assert (traced.tracing_endpoint, traced.tracing_share) == ("http://collector.monitoring:4318", 0.1)


def test_values_have_the_forms_of_zero_to_jupyterhub(kustomize: ModuleType) -> None:
    [hub] = [one for one in kustomize.rendered(SETS["hub"])["hub.yaml"] if one["kind"] == "Deployment"]
    pod = hub["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}, {"name": "another"}]
    env = pod["containers"][0]["env"]
    assert {"name": "A", "value": "1"} in env
    assert {"name": "D", "value": "2"} in env
    assert {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}} in env


def test_the_secret_has_what_the_server_reads(kustomize: ModuleType, tmp_path: Path) -> None:
    [secret] = [one for one in kustomize.rendered({})["secrets.yaml"] if one["metadata"]["name"] == "commonage-secrets"]
    for name, value in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(value))
        (tmp_path / name).chmod(0o440)
    assert read_given_secrets(tmp_path).proxy_token


@pytest.mark.parametrize(
    "values",
    [
        {"hubb": {}},
        {"proxy": {"service": {"type": "Ingress"}}},
        {"sessionHost": "hub.example.org"},
        {"control": {"storage": {"type": "nfs"}}},
        {"hub": {"db": {"url": "sqlite:///hub.sqlite"}}},
    ],
)
def test_the_schema_refuses_what_means_nothing(kustomize: ModuleType, values: dict[str, Any]) -> None:
    with helm_python.Chart.load(kustomize.CHART) as chart, pytest.raises(helm_python.HelmError):
        chart.validate_schema(values)


def test_a_missing_database_is_named(kustomize: ModuleType) -> None:
    with pytest.raises(helm_python.HelmError, match=r"control\.db\.url"):
        kustomize.rendered(OUTSIDE)


def test_the_kustomize_base_is_the_chart(kustomize: ModuleType) -> None:
    there = {path.name: path.read_text() for path in kustomize.BASE.glob("*.yaml")}
    assert there == kustomize.base(), "run scripts/kustomize.py"


def test_the_rules_of_the_roles_are_those_of_the_table(kustomize: ModuleType) -> None:
    for path, text in kustomize.rules_files().items():
        assert path.read_text() == text, "run scripts/kustomize.py"


def test_the_control_plane_has_the_rights_that_the_engine_needs(kustomize: ModuleType) -> None:
    roles = {one["kind"]: one["rules"] for one in kustomize.rendered({})["rbac.yaml"] if "rules" in one}

    def may(verb: str, group: str, resource: str, kind: str) -> bool:
        return any(
            verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"]
            for rule in roles[kind]
        )

    missing = [one for one in RIGHTS if not may(one[0], one[1], one[2], "Role" if one[3] else "ClusterRole")]
    assert missing == []
    # It changes nothing outside the namespace of its Pods.
    assert {verb for rule in roles["ClusterRole"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not may(*MEASURING[:3], "ClusterRole")


def test_the_control_plane_may_change_namespaces_only_where_it_keeps_them(kustomize: ModuleType) -> None:
    assert "tenants.yaml" not in {name for name, found in kustomize.rendered({}).items() if found}
    rendered = kustomize.rendered({"workloads": {"tenantNamespaces": True, "namespace": "work"}}, "ai")
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in rendered["tenants.yaml"]}

    own = [one for one in GRANTS if one.keeping and one.reach is Reach.CLUSTER]
    role = by_name["ClusterRole", "work-namespaces"]
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        ([one.resource], one.verbs.split()) for one in own
    ]
    assert role["rules"][-1]["resourceNames"] == ["work-tenant"]
    assert ("ClusterRole", "work-tenant") in by_name
    account = {"kind": "ServiceAccount", "name": "commonage-control", "namespace": "ai"}
    assert by_name["ClusterRoleBinding", "work-namespaces"]["subjects"] == [account]
    policy = by_name["ValidatingAdmissionPolicy", "work-own"]["spec"]
    assert "system:serviceaccount:ai:commonage-control" in policy["matchConditions"][0]["expression"]
    assert "CHART" not in yaml.safe_dump(rendered["tenants.yaml"])
    [settings] = [one["data"]["commonage.toml"] for one in rendered["settings.yaml"] if one["kind"] == "ConfigMap"]
    assert tomllib.loads(settings)["kubernetes_namespaces"] == "kept"


def test_without_rbac_the_chart_has_the_policies_alone(kustomize: ModuleType) -> None:
    values = {"workloads": {"tenantNamespaces": True}, "rbac": {"create": False}}
    kinds = {one["kind"] for one in kustomize.rendered(values)["tenants.yaml"]}

    assert kinds == {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def test_agents_have_the_least_privileges_that_work(kustomize: ModuleType) -> None:
    rendered = manifests(kustomize, {})
    [made] = [one for one in rendered if one["kind"] == "DaemonSet"]
    pod = made["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostIPC", "hostPID", "runtimeClassName"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    folders = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert set(folders.values()) == {"/proc", "/sys"}
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    for name, path in folders.items():
        assert mounts[name]["readOnly"], name
        assert mounts[name]["mountPath"] == f"/host{path}"
    account = pod["serviceAccountName"]
    subjects = [one["name"] for role in rendered if "subjects" in role for one in role["subjects"]]
    assert account not in subjects, "an agent needs no right in the cluster"
    [source] = [one["projected"]["sources"][0] for one in pod["volumes"] if "projected" in one]
    assert source["serviceAccountToken"]["audience"] == AUDIENCE
    arguments = run_in_pod.parser().parse_args(container["args"][1:])
    assert str(arguments.token.parent) == mounts["token"]["mountPath"]
    assert str(arguments.state) == mounts["state"]["mountPath"]
    assert container["readinessProbe"]["exec"]["command"][-1] == str(arguments.state / LINKED)


def test_agents_wait_for_the_certificate_by_a_variable_and_no_volume(kustomize: ModuleType) -> None:
    """The kubelet retries a volume after ever longer pauses, up to two minutes, and a variable every ten seconds."""
    [made] = [one for one in manifests(kustomize, {}) if one["kind"] == "DaemonSet"]
    spec = made["spec"]["template"]["spec"]
    [volume] = [one["configMap"] for one in spec["volumes"] if "configMap" in one]
    references = [one["valueFrom"].get("configMapKeyRef") for one in spec["containers"][0]["env"] if "valueFrom" in one]
    assert volume["optional"]
    assert {"name": volume["name"], "key": AUTHORITY_KEY} in references


def test_agents_see_processes_only_if_the_values_say_so(kustomize: ModuleType) -> None:
    [made] = [one for one in manifests(kustomize, SETS["agents-of-gpus"]) if one["kind"] == "DaemonSet"]
    pod = made["spec"]["template"]["spec"]
    assert (pod["hostPID"], pod["runtimeClassName"], pod["priorityClassName"]) == (True, "nvidia", "high")
    assert "hostNetwork" not in pod


def test_agents_and_control_plane_find_each_other(kustomize: ModuleType) -> None:
    rendered = kustomize.rendered({}, "physics")
    [text] = [one["data"]["commonage.toml"] for one in rendered["settings.yaml"]]
    settings = Settings.model_validate(tomllib.loads(text))
    assert settings.kubernetes_agents == "physics/commonage-agent"
    names = {one["kind"]: one["metadata"]["name"] for one in rendered["agent.yaml"]}
    assert names["ServiceAccount"] == names["ConfigMap"] == "commonage-agent"
    [made] = [one for one in rendered["agent.yaml"] if one["kind"] == "DaemonSet"]
    arguments = run_in_pod.parser().parse_args(made["spec"]["template"]["spec"]["containers"][0]["args"][1:])
    assert arguments.control == "commonage-control.physics.svc.cluster.local"
    assert (arguments.agents_port, arguments.join_port) == (settings.agents_port, settings.joining_port)
    [service] = [
        one
        for one in rendered["control.yaml"]
        if one["kind"] == "Service" and one["metadata"]["name"] == "commonage-control"
    ]
    assert {settings.agents_port, settings.joining_port} <= {one["port"] for one in service["spec"]["ports"]}
    rules = {one["kind"]: one["rules"] for one in rendered["agent.yaml"] if "rules" in one}
    assert rules == {
        "Role": [
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["commonage-agent"], "verbs": ["patch"]}
        ],
        "ClusterRole": [{"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}],
    }


def test_without_agents_nothing_of_them_is_left(kustomize: ModuleType) -> None:
    rendered = kustomize.rendered(SETS["without-agents"])
    assert rendered["agent.yaml"] == []
    others = yaml.safe_dump([one for part in rendered.values() for one in part])
    assert "agent" not in others
    assert "8444" not in others


def test_control_plane_may_make_claims(kustomize: ModuleType) -> None:
    rendered = kustomize.rendered({})["rbac.yaml"]
    for verb, group, resource, is_local in CLAIM_RIGHTS:
        kind = "Role" if is_local else "ClusterRole"
        rules = [rule for one in rendered if one["kind"] == kind for rule in one["rules"]]
        assert any(
            verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"] for rule in rules
        ), (verb, resource)


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ({}, {"homes": "empty"}),
        ({"dynamic": {"storageClass": "fast"}}, {"homes": "claim", "storage_class": "fast", "home_size": 10240}),
        ({"type": "dynamic", "capacity": "512Mi"}, {"homes": "claim", "storage_class": "", "home_size": 512}),
        (
            {"type": "dynamic", "dynamic": {"storageAccessModes": ["ReadWriteOnce"]}},
            {"homes": "claim", "access_mode": "ReadWriteOnce"},
        ),
        ({"type": "static", "static": {"pvcName": "nfs"}}, {"homes": "shared-claim", "homes_claim": "nfs"}),
        ({"type": "none", "dynamic": {"storageClass": "fast"}}, {"homes": "empty"}),
    ],
)
def test_homes_are_as_the_values_of_zero_to_jupyterhub_say(
    kustomize: ModuleType, storage: dict[str, Any], expected: dict[str, Any]
) -> None:
    rendered = kustomize.rendered({"singleuser": {"storage": storage}})["settings.yaml"]
    settings = Settings.model_validate(tomllib.loads(rendered[0]["data"]["commonage.toml"]))
    assert {name: getattr(settings, f"kubernetes_{name}") for name in expected} == expected


def test_pods_of_workloads_end_no_others_and_reach_the_gateway(kustomize: ModuleType) -> None:
    rendered = kustomize.rendered({}, "physics")
    settings = tomllib.loads(rendered["settings.yaml"][0]["data"]["commonage.toml"])
    [priority] = [one for one in rendered["workloads.yaml"] if one["kind"] == "PriorityClass"]
    assert priority["preemptionPolicy"] == "Never"
    assert settings["kubernetes_priority_class"] == priority["metadata"]["name"]
    [namespace] = [one for one in rendered["workloads.yaml"] if one["kind"] == "Namespace"]
    assert settings["kubernetes_namespace"] == namespace["metadata"]["name"] == "physics-workloads"
    [gateway] = [
        one for one in rendered["control.yaml"] if one["kind"] == "Service" and "gateway" in one["metadata"]["name"]
    ]
    host = f"{gateway['metadata']['name']}.{gateway['metadata']['namespace']}.svc.cluster.local"
    assert settings["gateway_url"] == f"http://{host}"


@pytest.mark.parametrize("stage", ["staging", "production"])
def test_the_example_for_argo_cd_renders(kustomize: ModuleType, stage: str) -> None:
    application = yaml.safe_load((ROOT / "deploy" / "argocd" / f"{stage}.yaml").read_text())
    rendered = manifests(kustomize, application["spec"]["source"]["helm"]["valuesObject"])
    # Without a cluster to ask, the chart would make another Secret at each sync.
    assert "commonage-secrets" not in {one["metadata"]["name"] for one in rendered}


def test_alerts_and_dashboards_use_metrics_that_exist(kustomize: ModuleType) -> None:
    known = {one.name for one in SERIES}
    rules = yaml.safe_load((kustomize.CHART / "files" / "rules.yaml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for path in (kustomize.CHART / "files" / "dashboards").glob("*.json"):
        expressions += [
            target["expr"] for panel in json.loads(path.read_text())["panels"] for target in panel["targets"]
        ]
    used = {name for one in expressions for name in re.findall(r"\bcommonage_\w+", one)}
    assert used
    assert used - known == set()
