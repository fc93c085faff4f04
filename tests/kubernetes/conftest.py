"""Tests on the cluster that KUBECONFIG names (`make test-kube`). Without one, nothing here is collected."""

import asyncio
import json
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.kubernetes.rig import KubernetesRig

collect_ignore_glob = [] if os.environ.get("KUBECONFIG") else ["test_*.py"]
pytest.register_assert_rewrite(
    "commonage.testing.engine_contract", "commonage.testing.exec_contract", "commonage.testing.engine_rig"
)
PREFIX = os.environ.get("COMMONAGE_TEST_NAMESPACE_PREFIX", "commonage-test")


def kubectl(*words: str, text: str | None = None) -> str:
    program = os.environ.get("KUBECTL", "kubectl")
    done = subprocess.run([program, *words], input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="package")
def namespace() -> Iterator[str]:
    """A namespace for this run, removed at its end."""
    name = f"{PREFIX}-{secrets.token_hex(3)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    kubectl("create", "-f", "-", text=json.dumps(made))
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="package")
def priority_class() -> Iterator[str]:
    """Pods of this class preempt no others."""
    name = f"{PREFIX}-{secrets.token_hex(3)}"
    made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    kubectl("create", "-f", "-", text=json.dumps({**made, "value": 0, "preemptionPolicy": "Never"}))
    try:
        yield name
    finally:
        kubectl("delete", "priorityclass", name)


@pytest.fixture
async def rig(tmp_path: Path, namespace: str, priority_class: str) -> AsyncIterator[KubernetesRig]:
    nodes = json.loads(await asyncio.to_thread(kubectl, "get", "nodes", "-o", "json"))["items"]
    free = next(one["metadata"]["name"] for one in nodes if not one["spec"].get("taints"))
    rig = KubernetesRig(tmp_path, namespace, free, priority_class=priority_class)
    try:
        yield rig
    finally:
        await rig.end_all(forget=True)
