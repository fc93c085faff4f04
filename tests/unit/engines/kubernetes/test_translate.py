"""Pods and what they need, as golden files, valid for three versions of Kubernetes."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from commonage.domain.images import Environment
from commonage.domain.statuses import StartRequest
from commonage.domain.volumes import Mount, VolumeKind
from commonage.domain.workloads import Kind
from commonage.engines.containers.program import PORT, ContainerNetwork, Program, program_of
from commonage.engines.kubernetes.labels import label_value
from commonage.engines.kubernetes.tenants.network import network_policies
from commonage.engines.kubernetes.translate import (
    ENTRY,
    PodContext,
    claims_of,
    config_map_of,
    gang_policy,
    gang_service,
    is_restricted,
    literal,
    namespace_of,
    pod_name,
    pod_of,
    pull_pod,
    secret_of,
)
from commonage.engines.settings import KubernetesPolicySettings, KubernetesSettings, KubernetesStorageSettings
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import StartRequestFactory

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ("1.34", "1.36", "1.37")
JOB = replace(
    StartRequestFactory(
        Environment("torch", "Torch", image="registry.example/torch@sha256:1", variables=(("A", "b $c"),)),
        "node-7", lambda _behaviour: ("python", "train.py", "--out=$HOME/$(date)"), lambda: 1_800_000_000.0,
    )(Behaviour()),
    attempt_id="1k-1",
    workload_id="1k",
    secrets=(("TOKEN", "s3cret"),),
)  # fmt: skip
JOB = replace(JOB, allocation=replace(JOB.allocation, attempt_id="1k-1", memory_mib=2048, cpus_milli=1500))
SESSION = replace(JOB, kind=Kind.SESSION, command=(), wants_port=True, owner="Ada Löve", secrets=())
VOLUMES = (
    Mount("data", VolumeKind.FOLDER, "/srv/data", "/data", writable=False),
    Mount("fast", VolumeKind.SCRATCH, "", "/fast", writable=True, size_mib=512, memory=True),
)
GANG = replace(JOB, gang=("1k-1", "1m-1"), mounts=VOLUMES)
ROOT = KubernetesSettings(
    user=0, homes="host-path", homes_path="/srv/homes", cpu_hold="quota", pull="never", pull_secrets=("registry",),
    runtime_class="gvisor", priority_class="commonage",
)  # fmt: skip
CLAIMED = (
    Mount("results", VolumeKind.DOCKER, "results.physics.0123456789abcdef", "/results", writable=True, size_mib=500),
    Mount("datasets", VolumeKind.FOLDER, "/data/sets/x~1", "/volumes/datasets", writable=False),
    Mount("all", VolumeKind.FOLDER, "/data", "/volumes/all", writable=False),
)
CLAIMS = KubernetesSettings(
    homes="claim",
    storage=KubernetesStorageSettings(storage_class="fast", volume_class="cephfs", folders=(("/data", "datasets"),)),
)
CASES = {
    "job": (JOB, KubernetesSettings()),
    "session": (SESSION, KubernetesSettings(namespaces="tenant")),
    "gang": (GANG, KubernetesSettings()),
    "root": (JOB, ROOT),
    "claims": (replace(SESSION, home_mib=2048, mounts=CLAIMED), CLAIMS),
    "root-in-user-namespace": (JOB, KubernetesSettings(user=0)),
    "files": (replace(JOB, bundle_path="/data/1k.tar.gz"), KubernetesSettings()),
}


def context_of(request: StartRequest, settings: KubernetesSettings) -> PodContext:
    return PodContext("0123abcd", namespace_of(request.tenant, settings))


def program(request: StartRequest) -> Program:
    peers = tuple(pod_name(one) for one in request.gang)
    return program_of(request, ContainerNetwork("", frozenset(), PORT, peers), {}, {})


def manifests(request: StartRequest, settings: KubernetesSettings) -> list[dict[str, Any]]:
    context, ours = context_of(request, settings), program(request)
    pod = pod_of(request, ours, context, settings)
    known = {**pod, "metadata": {**pod["metadata"], "uid": "11111111-2222"}}
    made = [pod]
    if ours.secrets:
        made.append(secret_of(request, ours.secrets, known, context))
    if request.gang:
        made += [gang_service(request, context), gang_policy(request, context)]
    files = config_map_of(request, context)
    return [*made, *claims_of(request, context, settings), *([files] if files else [])]


@pytest.mark.parametrize("case", CASES)
def test_is_as_written_down(case: str) -> None:
    made = manifests(*CASES[case])
    for one in made:
        if one["kind"] == "ConfigMap":
            one["data"] = dict.fromkeys(one["data"], "…")
            one["metadata"]["name"] = "cm-files"
    for volume in made[0]["spec"]["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["name"] = "cm-files"
    # Only the first words of a session's command, because it contains a whole program.
    made[0]["spec"]["containers"][0]["args"] = [word[:60] for word in made[0]["spec"]["containers"][0]["args"]]
    text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    place = GOLDEN / f"{case}.json"
    if os.environ.get("COMMONAGE_WRITE_GOLDEN"):
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")
    assert text == place.read_text(encoding="utf-8"), "if that is right: COMMONAGE_WRITE_GOLDEN=1 pytest …"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_is_valid(case: str, version: str) -> None:
    request, settings = CASES[case]
    pull = pull_pod("registry.example/torch", "node-7", context_of(request, settings), settings, "abc")
    for one in [*manifests(request, settings), pull]:
        kubernetes_validate.validate(one, version, strict=True)


def test_restricted_pods_say_so() -> None:
    assert is_restricted(KubernetesSettings())
    assert not is_restricted(ROOT)


def test_words_are_not_expanded_by_the_cluster() -> None:
    assert literal("kill -9 $$ $(X)") == "kill -9 $$$$ $$(X)"


@pytest.mark.parametrize(
    ("attempt", "name"), [("1k-1", "cm-1k-1"), ("UPPER-1", "cm-"), ("a_b", "cm-"), ("x" * 80, "cm-")]
)
def test_names_are_names_of_pods(attempt: str, name: str) -> None:
    made = pod_name(attempt)
    assert made.startswith(name)
    assert len(made) <= 63
    assert made == made.lower()


def test_label_values_are_valid_and_differ() -> None:
    values = ["ada", "Ada Löve", "ada@example.org", "", "-x", "y" * 64]
    made = [label_value(one) for one in values]
    assert made[0] == "ada"
    assert len(set(made)) == len(values)
    assert all(len(one) <= 63 and "@" not in one and " " not in one for one in made)


def test_no_tenant_has_the_namespace_of_another_whatever_its_name() -> None:
    settings = KubernetesSettings(namespace="commonage", namespaces="tenant")
    other = namespace_of("Lab A", settings)
    assert namespace_of(other.removeprefix("commonage-"), settings) != other


def test_homes_in_one_share_are_folders_of_its_claim() -> None:
    shared = KubernetesSettings(homes="shared-claim")
    pod, *others = manifests(replace(JOB, secrets=(), bundle_path="/data/1k.tar.gz"), shared)
    [home] = [one for one in pod["spec"]["volumes"] if one["name"] == "home"]
    assert home["persistentVolumeClaim"]["claimName"] == "commonage-homes"
    for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
        [mount] = [one for one in container["volumeMounts"] if one["name"] == "home"]
        assert mount["mountPath"] == f"/home/{mount['subPath']}"
    assert not [one for one in others if one["kind"] == "PersistentVolumeClaim"]


def test_the_keys_of_a_config_map_are_those_that_a_cluster_accepts() -> None:
    made = config_map_of(SESSION, PodContext("lab", "commonage"))
    assert made is not None
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in made["data"])


@pytest.mark.parametrize("has_room", [True, False])
def test_program_writes_its_own_files_elsewhere_only_in_a_full_home(tmp_path: Path, has_room: bool) -> None:
    home = tmp_path if has_room else tmp_path / "missing"
    words = ["/bin/sh", "-c", ENTRY, "commonage", "/bin/sh", "-c", 'echo "$IPYTHONDIR $XDG_CACHE_HOME"']
    env = {"HOME": str(home), "XDG_CACHE_HOME": "/mine"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["/mine"] if has_room else ["/run/attempt/ipython", "/mine"])
    assert not list(tmp_path.iterdir())


def test_root_is_nobody_on_the_node_unless_its_folders_are_mounted() -> None:
    root = KubernetesSettings(user=0)
    assert pod_of(JOB, program(JOB), context_of(JOB, root), root)["spec"]["hostUsers"] is False
    assert "hostUsers" not in pod_of(JOB, program(JOB), context_of(JOB, ROOT), ROOT)["spec"]


def test_port_and_labels_are_those_that_the_network_policies_select() -> None:
    settings = KubernetesPolicySettings("0123abcd", single="commonage")
    policies = {one["metadata"]["name"]: one["spec"] for one in network_policies("commonage", {}, settings)}
    [proxy] = policies["commonage-proxy"]["ingress"]
    pod = pod_of(SESSION, program(SESSION), context_of(SESSION, KubernetesSettings()), KubernetesSettings())
    labels = pod["metadata"]["labels"]
    [kinds] = policies["commonage-proxy"]["podSelector"]["matchExpressions"]
    assert labels[kinds["key"]] in kinds["values"]
    assert [one["name"] for one in pod["spec"]["containers"][0]["ports"]] == [one["port"] for one in proxy["ports"]]
