"""The policies of tenants on a real cluster: what they admit, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.kubectl import Kubectl

from commonage.domain.tenants import Bounds, Quota, Tenant
from commonage.engines.kubernetes.client import Client
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.tenants.applier import ClientApplier
from commonage.engines.kubernetes.tenants.namespaces import manifests_of, namespace_of
from commonage.engines.kubernetes.tenants.pods import container_security, pod_security
from commonage.engines.kubernetes.tenants.policy_files import policy_files
from commonage.engines.kubernetes.tenants.rbac import GRANTS, Reach
from commonage.engines.kubernetes.tenants.reconciler import TenantReconciler, TenantsReport
from commonage.engines.settings import KubernetesPolicySettings

pytestmark = pytest.mark.skipif(not os.environ.get("KUBECONFIG"), reason="needs a cluster that KUBECONFIG names")

PREFIX = os.environ.get("COMMONAGE_TEST_KUBE_PREFIX", "commonage-test")
IMAGE = os.environ.get("COMMONAGE_TEST_KUBE_IMAGE", "localhost/commonage-lab/base:1")
FOLDER = "/srv/commonage-test"
BOUNDED = Tenant("physics", quota=Quota(Bounds(cpus_milli=1000, memory_mib=1000, storage_mib=100), Bounds(0, 0)))
ROOTS = Tenant("roots")
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Site:
    settings: KubernetesPolicySettings
    admin: Kubectl
    platform: Kubectl  # with the control plane's token

    def pod(self, tenant: Tenant = BOUNDED, name: str = "one", **spec: Any) -> Manifest:
        """A pod as users' programs get it, with these fields of its spec instead."""
        security = pod_security(tenant.name, (1000, 1000), self.settings)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace_of(tenant.name, self.settings)},
            "spec": {**security, "restartPolicy": "Never", "containers": [self.container(tenant)], **spec},
        }

    def container(self, tenant: Tenant = BOUNDED, **fields: Any) -> Manifest:
        return {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sleep", "600"],
            "resources": {"requests": {"cpu": "800m", "memory": "32Mi"}, "limits": {"memory": "32Mi"}},
            "securityContext": container_security(tenant.name, self.settings),
            **fields,
        }


def made(settings: KubernetesPolicySettings, folder: Path) -> Iterator[Site]:
    admin = Kubectl()
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": settings.namespace}}
    files = [("-f", str(folder / name)) for name in ("access.yaml", "admission.yaml")]
    options = [part for pair in files for part in pair]
    for name, text in policy_files(settings).items():
        (folder / name).write_text(text, encoding="utf-8")
    try:
        admin.must("create", "-f", "-", manifest=system)
        admin.must("create", "serviceaccount", settings.service_account, "-n", settings.namespace)
        admin.must("apply", *options)
        token = admin.must("create", "token", settings.service_account, "-n", settings.namespace).strip()
        site = Site(settings, admin, admin.with_token(token, folder / "token.json"))
        until(lambda: "tenants' namespaces" in site.platform.refusal(other_namespace()))
        until(lambda: not asyncio.run(turns(site, [BOUNDED, ROOTS]))[0].failed)
        until(lambda: "seccomp" in admin.refusal(site.pod(ROOTS, securityContext={})))
        yield site
    finally:
        names = [namespace_of(tenant.name, settings) for tenant in (BOUNDED, ROOTS)]
        admin.run("delete", "namespace", settings.namespace, *names, "--ignore-not-found", "--wait=false")
        admin.run("delete", "--ignore-not-found", *options)


async def turns(site: Site, tenants: Sequence[Tenant]) -> list[TenantsReport]:
    """Two turns of the loop, through the engine's client with the control plane's token."""
    client = Client(Path(site.platform.config))
    client.open()
    try:
        reconciler = TenantReconciler(ClientApplier(client), site.settings)
        return [await reconciler.turn(tenants) for _ in range(2)]
    finally:
        await client.close()


def until(holds: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.2)


def other_namespace() -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose namespaces Pod Security guards, too."""
    registry = IMAGE.rpartition("/")[0]
    settings = KubernetesPolicySettings(
        f"{PREFIX}-a", f"{PREFIX}-a-system", prefix=f"{PREFIX}-a", root_tenants=("roots",), registries=(registry,)
    )
    yield from made(settings, tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="module")
def with_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with folders of its nodes, which only our own policies guard."""
    settings = KubernetesPolicySettings(
        f"{PREFIX}-b", f"{PREFIX}-b-system", prefix=f"{PREFIX}-b", host_folders=(FOLDER,), root_tenants=("roots",)
    )
    yield from made(settings, tmp_path_factory.mktemp("policies"))


def test_a_second_turn_changes_nothing(site: Site) -> None:
    _, report = asyncio.run(turns(site, [BOUNDED, ROOTS]))

    assert (report.applied, report.removed, report.failed) == ([], [], {})


def test_every_object_is_as_wanted(site: Site) -> None:
    for wanted in manifests_of([BOUNDED, ROOTS], site.settings):
        found = asyncio.run(site.admin.get(wanted))

        assert found is not None
        assert contains(found, wanted), wanted["metadata"]


def contains(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return all(key in found and contains(found[key], value) for key, value in wanted.items())
    return bool(found == wanted)


def test_admits_pods_as_the_platform_makes_them(site: Site) -> None:
    assert site.platform.refusal(site.pod()) == ""
    assert site.platform.refusal(site.pod(ROOTS)) == ""


def test_quota_refuses_what_is_beyond_it(site: Site) -> None:
    site.platform.must("create", "-f", "-", manifest=site.pod())
    try:
        refusal = site.platform.refusal(site.pod(name="two"))
    finally:
        site.platform.must("delete", "pod", "one", "-n", namespace_of("physics", site.settings), "--wait=false")

    assert "exceeded quota" in refusal
    assert "requests.cpu" in refusal


def test_quota_refuses_claims_beyond_the_storage(site: Site) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "big", "namespace": namespace_of("physics", site.settings)},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "101Mi"}}},
    }

    assert "exceeded quota" in site.platform.refusal(claim)


def test_pod_security_refuses_privileged_pods(site: Site) -> None:
    pod = site.pod(containers=[site.container(securityContext={"privileged": True})])

    assert "violates PodSecurity" in site.platform.refusal(pod)


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeName": "node1"},
        {"nodeSelector": {"kubernetes.io/os": "linux"}},
        {"tolerations": [{"operator": "Exists"}]},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]}
                        ]
                    }
                }
            }
        },
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_only_the_platform_chooses_nodes(site: Site, spec: dict[str, Any]) -> None:
    assert "Only Commonage places pods here" in site.admin.refusal(site.pod(ROOTS, **spec))
    assert site.platform.refusal(site.pod(ROOTS, **spec)) == ""


@pytest.mark.parametrize(
    ("path", "value"),
    [("nodeSelector", {"kubernetes.io/hostname": "node1"}), ("tolerations/-", {"operator": "Exists"})],
)
def test_nobody_else_chooses_the_node_of_a_pod_that_is_there(site: Site, path: str, value: dict[str, str]) -> None:
    pod = site.pod(ROOTS, f"gated-{path[:4].lower()}", schedulingGates=[{"name": "example.org/later"}])
    site.admin.must("create", "-f", "-", manifest=pod)
    assert "Only Commonage places pods here" in refusal_to_add(site.admin, pod, f"/spec/{path}", value)
    assert refusal_to_add(site.platform, pod, f"/spec/{path}", value) == ""
    assert refusal_to_add(site.admin, pod, "/metadata/labels", {"team": "red"}) == ""
    kueue, own = "kueue-system:kueue", f"{pod['metadata']['namespace']}:default"
    assert refusal_to_add(site.admin, pod, f"/spec/{path}", value, as_account=kueue) == ""
    assert "Only Commonage" in refusal_to_add(site.admin, pod, f"/spec/{path}", value, as_account=own)


def refusal_to_add(user: Kubectl, pod: Manifest, path: str, value: Any, as_account: str = "") -> str:
    """`as_account`: NAMESPACE:NAME of a ServiceAccount that may do everything."""
    where = ("pod", pod["metadata"]["name"], "-n", pod["metadata"]["namespace"])
    other = (f"--as=system:serviceaccount:{as_account}", "--as-group=system:masters") if as_account else ()
    change = json.dumps([{"op": "add", "path": path, "value": value}])
    return user.run("patch", *where, "--type=json", "--dry-run=server", "-p", change, *other).stderr


@pytest.mark.parametrize(
    "image", ["busybox", "evil/x:1", "registry.example.org/x", "localhost/commonage-lab-evil/x:1", "localhost/other"]
)
def test_refuses_images_of_other_registries(site: Site, image: str) -> None:
    refusal = site.platform.refusal(site.pod(containers=[site.container(image=image)]))

    assert "Images come from localhost/commonage-lab/ here" in refusal


def test_refuses_init_containers_with_images_of_other_registries(site: Site) -> None:
    container = site.container(image="docker.io/library/busybox:1")

    assert "Images come from" in site.platform.refusal(site.pod(initContainers=[{**container, "name": "first"}]))


def folder_volume(path: str) -> dict[str, Any]:
    return {"volumes": [{"name": "data", "hostPath": {"path": path}}]}


def test_admits_declared_folders_of_nodes(with_folders: Site) -> None:
    for path in (FOLDER, f"{FOLDER}/below"):
        assert with_folders.platform.refusal(with_folders.pod(**folder_volume(path))) == ""


def test_nobody_else_mounts_folders_of_nodes(with_folders: Site) -> None:
    for path in (FOLDER, f"{FOLDER}/homes/ada"):
        refusal = with_folders.admin.refusal(with_folders.pod(**folder_volume(path)))
        assert "Only Commonage mounts folders of the node" in refusal


@pytest.mark.parametrize("path", ["/", "/etc", f"{FOLDER}-other", "/srv"])
def test_refuses_other_folders_of_nodes(with_folders: Site, path: str) -> None:
    refusal = with_folders.platform.refusal(with_folders.pod(**folder_volume(path)))

    assert f"did not declare. Declared are: {FOLDER}" in refusal


def secured(**fields: Any) -> dict[str, Any]:
    return {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **fields}}


@pytest.mark.parametrize(
    ("spec", "container", "words"),
    [
        ({"hostNetwork": True}, {}, "share the node's namespaces"),
        ({"hostPID": True}, {}, "share the node's namespaces"),
        ({"hostIPC": True}, {}, "share the node's namespaces"),
        ({}, {"ports": [{"containerPort": 80, "hostPort": 80}]}, "hostPort"),
        ({}, {"securityContext": {"privileged": True}}, "cannot be privileged"),
        ({}, {"securityContext": {}}, "allowPrivilegeEscalation"),
        ({}, secured(runAsNonRoot=False), "runAsNonRoot"),
        ({}, secured(capabilities={"add": ["SYS_ADMIN"]}), "capabilities"),
        ({}, secured(seccompProfile={"type": "Unconfined"}), "seccomp"),
        ({"automountServiceAccountToken": True}, {}, "no access to the cluster"),
        ({"volumes": [{"name": "data", "nfs": {"server": "nfs", "path": "/"}}]}, {}, "only by claims"),
        (
            {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]},
            {},
            "no access to the cluster",
        ),
        ({"hostUsers": False, **folder_volume(FOLDER)}, {}, "hostUsers: false cannot mount"),
        ({}, secured(capabilities={"drop": ["MKNOD"]}), "Drop the capabilities ALL"),
        ({}, secured(appArmorProfile={"type": "Unconfined"}), "the node's protection"),
        ({}, secured(seLinuxOptions={"type": "spc_t"}), "the node's protection"),
        ({}, {"livenessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}}}, "Remove host"),
        ({}, {"lifecycle": {"preStop": {"httpGet": {"host": "10.0.0.1", "port": 80}}}}, "Remove host"),
    ],
)
def test_our_own_policies_refuse_what_pod_security_does_not(
    with_folders: Site, spec: dict[str, Any], container: dict[str, Any], words: str
) -> None:
    pod = with_folders.pod(**{"containers": [with_folders.container(**container)], **spec})

    assert words in with_folders.platform.refusal(pod)


def test_policies_have_no_warnings_of_types(site: Site, with_folders: Site) -> None:
    for one in (site, with_folders):
        selector = f"commonage.dev/installation={one.settings.installation}"
        found = asyncio.run(
            one.admin.list("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", selector, "")
        )

        assert found
        for policy in found:
            assert not policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings"), policy["metadata"]


def test_the_control_plane_may_do_all_in_its_table(site: Site) -> None:
    namespace = namespace_of("physics", site.settings)
    refused = []
    for grant in GRANTS:
        resource, _, below = grant.resource.partition("/")
        asked = {"group": grant.group, "resource": resource, "subresource": below}
        if grant.reach is Reach.TENANTS:
            asked["namespace"] = namespace
        if grant.names:
            asked["name"] = f"{site.settings.prefix}-tenant"
        refused += [(verb, grant.resource) for verb in grant.verbs.split() if not may(site, verb, asked)]

    assert refused == []


def may(site: Site, verb: str, asked: Mapping[str, str]) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**asked, "verb": verb}},
    }
    answer = json.loads(site.platform.must("create", "--validate=false", "-o", "json", "-f", "-", manifest=review))
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize(
    "arguments",
    [
        "get secrets -n kube-system",
        "get secrets -A",
        "get secrets -n {system}",
        "create configmap x -n default",
        "create serviceaccount x -n {tenant}",
        "create token default -n {tenant}",
        "delete node node-that-is-not-there",
        "taint node --all x=y:NoSchedule",
        "get clusterroles",
        "create clusterrolebinding x --clusterrole=cluster-admin --user=x",
        "create rolebinding x --clusterrole=cluster-admin --user=x -n {tenant}",
        "create rolebinding x --clusterrole={role} --serviceaccount={system}:commonage -n kube-system",
        "create rolebinding x --clusterrole={role} --user=x -n {tenant}",
        "create namespace elsewhere",
        "label namespace kube-system commonage.dev/installation=x",
        "delete namespace kube-system --dry-run=server",
        "delete namespace {system} --dry-run=server",
        "delete validatingadmissionpolicy --all",
        "run x --image=x -n default",
    ],
)
def test_the_control_plane_may_do_nothing_else(site: Site, arguments: str) -> None:
    names = {
        "system": site.settings.namespace,
        "tenant": namespace_of("physics", site.settings),
        "role": f"{site.settings.prefix}-tenant",
    }

    done = site.platform.run(*arguments.format(**names).split())

    assert done.returncode
    assert "forbidden" in done.stderr.lower() or "denied" in done.stderr.lower(), done.stderr


def test_removes_what_is_ours_and_unwanted_and_nothing_else(site: Site) -> None:
    namespace = namespace_of("roots", site.settings)
    foreign = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "foreign", "namespace": namespace},
        "spec": {"podSelector": {}},
    }
    ours: Manifest = json.loads(json.dumps(foreign))
    ours["metadata"] |= {
        "name": "old",
        "labels": {"commonage.dev/installation": site.settings.installation, "commonage.dev/part": "policy"},
    }
    for manifest in (foreign, ours):
        site.admin.must("create", "-f", "-", manifest=manifest)

    report, _ = asyncio.run(turns(site, [BOUNDED, ROOTS]))

    assert report.removed == [f"NetworkPolicy {namespace}/old"]
    assert asyncio.run(site.admin.get(foreign)) is not None


def test_the_namespace_of_a_tenant_that_is_gone_is_deleted_once_it_is_empty(site: Site) -> None:
    gone = Tenant("leaving")
    name = namespace_of(gone.name, site.settings)
    until(lambda: not asyncio.run(turns(site, [BOUNDED, ROOTS, gone]))[0].failed)
    site.admin.must("create", "-f", "-", manifest=site.pod(gone))

    report = asyncio.run(turns(site, [BOUNDED, ROOTS]))[0]
    assert (report.removed, report.left) == ([], {name: ("Pod one",)})

    site.admin.must("delete", "pod", "one", "-n", name, "--grace-period=0", "--force")
    assert asyncio.run(turns(site, [BOUNDED, ROOTS]))[0].removed == [f"Namespace {name}"]
