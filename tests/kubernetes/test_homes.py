"""A home is a claim: it outlives its Pods, and a full one lets the next Pod start."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.kubernetes.conftest import PREFIX, kubectl
from tests.kubernetes.rig import IMAGE, KubernetesRig

from commonage.engines.settings import KubernetesStorageSettings
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
_MOUNT = """\
mkdir -p /places/home && mount -t tmpfs -o size=1m,mode=0777 home /places/home && touch /places/made
trap 'umount /places/home; exit' TERM
while sleep 1; do :; done
"""


@dataclass(frozen=True)
class Disk:
    """A file system of 1 MiB on a node, and the name of its class."""

    node: str
    storage_class: str


@pytest.fixture
def disk(namespace: str) -> Iterator[Disk]:
    """A privileged Pod mounts it, in a namespace of its own; a PersistentVolume leads to it."""
    nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    node = next(one["metadata"]["name"] for one in nodes if not one["spec"].get("taints"))
    name = f"{PREFIX}-{secrets.token_hex(3)}"
    place = f"/var/lib/kubelet/{name}"  # a folder whose mounts are shared with the node
    container = {
        "name": "mount",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", _MOUNT],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": [{"name": "places", "mountPath": "/places", "mountPropagation": "Bidirectional"}],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/places/made"]}, "periodSeconds": 1},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mount", "namespace": name},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 10,
            "containers": [container],
            "volumes": [{"name": "places", "hostPath": {"path": place, "type": "DirectoryOrCreate"}}],
        },
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Mi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": name,
            "hostPath": {"path": f"{place}/home", "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": "home-ada"},
        },
    }
    kubectl("create", "namespace", name)
    try:
        kubectl("create", "-f", "-", text=json.dumps(pod))
        kubectl("-n", name, "wait", "--for=condition=Ready", "pod/mount", "--timeout=60s")
        kubectl("create", "-f", "-", text=json.dumps(volume))
        yield Disk(node, name)
    finally:
        kubectl("-n", namespace, "delete", "pvc", "home-ada", "--ignore-not-found")
        kubectl("delete", "pv", name, "--ignore-not-found")
        kubectl("delete", "namespace", name)


@pytest.fixture
async def site(tmp_path: Path, namespace: str, priority_class: str, disk: Disk) -> AsyncIterator[KubernetesRig]:
    storage = KubernetesStorageSettings(storage_class=disk.storage_class, home_mib=1)
    rig = KubernetesRig(tmp_path, namespace, disk.node, priority_class=priority_class, homes="claim", storage=storage)
    try:
        yield rig
    finally:
        await rig.end_all(forget=True)


async def ran(rig: KubernetesRig, script: str) -> list[str]:
    request = rig.start_request(Behaviour(), command=("sh", "-c", script))
    ended = await rig.ended(request)
    assert ended.exit_code == 0, ended
    return await rig.lines(request.attempt_id)


async def test_home_outlives_pods_and_a_full_one_lets_the_next_start(site: KubernetesRig, namespace: str) -> None:
    assert await ran(site, 'echo kept >note; echo "$IPYTHONDIR."') == ["."]
    assert await ran(site, "cat note; cat /dev/zero >full 2>/dev/null || df -k . | grep -c 100%") == ["kept", "1"]
    cleans = 'for one in "$JUPYTER_RUNTIME_DIR" "$IPYTHONDIR"; do mkdir "$one" && echo "$one"; done; rm full'
    assert await ran(site, cleans) == ["/run/attempt/jupyter", "/run/attempt/ipython"]
    assert await ran(site, 'cat note; ls -A; echo "$IPYTHONDIR."') == ["kept", "note", "."]
    claim = json.loads(await asyncio.to_thread(kubectl, "-n", namespace, "get", "pvc", "home-ada", "-o", "json"))
    assert claim["status"]["phase"] == "Bound"
