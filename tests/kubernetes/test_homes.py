"""A home is a claim: it outlives its Pods, a full one lets the next Pod start, and file Pods open it."""

import asyncio
import hashlib
import io
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.kubernetes.conftest import PREFIX, kubectl
from tests.kubernetes.rig import FILES_IMAGE, IMAGE, KubernetesRig

from commonage.domain.errors import Conflict
from commonage.domain.materials import MaterialFile, Version
from commonage.domain.reasons.materials import CopyNeedsSpace
from commonage.engines.kubernetes.storage.files import ClusterCopies, ClusterFiles
from commonage.engines.settings import KubernetesStorageSettings
from commonage.files.safe_path import SafePath
from commonage.ports.files import Place, Upload
from commonage.ports.materials import Delivery
from commonage.storage.user_files import FolderFiles
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
HOME = Place(home="ada")
_MOUNT = """\
mkdir -p /places/home && mount -t tmpfs -o size=4m,mode=0777 home /places/home && touch /places/made
trap 'umount /places/home; exit' TERM
while sleep 1; do :; done
"""


@dataclass(frozen=True)
class Disk:
    """A file system of 4 MiB on a node, and the name of its class."""

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
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "4Mi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": name,
            "hostPath": {"path": f"{place}/home", "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
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
    storage = KubernetesStorageSettings(storage_class=disk.storage_class, home_mib=4, files_image=FILES_IMAGE)
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


@pytest.mark.skipif(not FILES_IMAGE, reason="COMMONAGE_TEST_FILES_IMAGE names no image with this program")
async def test_control_plane_cleans_a_full_home_without_a_session(site: KubernetesRig, tmp_path: Path) -> None:
    await ran(site, "mkdir work; echo kept >work/note; cat /dev/zero >full 2>/dev/null; true")
    engine = await site.engine()
    files = ClusterFiles(FolderFiles(SafePath(tmp_path / "homes")), site.settings, engine.file_pods)
    assert [one.name for one in (await files.list(HOME, ())).entries] == ["work", "full"]
    upload = Upload(("work", "new"), "0" * 32, 300_000)
    with pytest.raises(Conflict) as refused:
        await files.receive(HOME, upload, 0, sent(bytes(300_000)))
    assert refused.value.problem_code == "storage-full"
    await files.remove(HOME, ("full",))
    assert await files.receive(HOME, upload, 0, sent(bytes(300_000))) == 300_000
    await files.move(HOME, ("work", "new"), ("new",))
    file = await files.open(HOME, ("work", "note"))
    assert await file.read(0, 100) == b"kept\n"
    assert await ran(site, "stat -c '%u %a %s' new") == ["1000 644 300000"]


@pytest.mark.skipif(not FILES_IMAGE, reason="COMMONAGE_TEST_FILES_IMAGE names no image with this program")
async def test_material_is_copied_beside_edits_and_a_full_home_says_so(site: KubernetesRig) -> None:
    await ran(site, "true")
    copies = ClusterCopies(site.settings, (await site.engine()).file_pods)
    assert (await copies.deliver("course", HOME, delivery({"lab": b"one"}))).error is None
    assert await ran(site, "cat materials/course/lab; echo; echo mine >materials/course/lab") == ["one"]
    again = await copies.deliver("course", HOME, delivery({"lab": b"two"}))
    assert (again.error, again.edited) == (None, ("lab",))
    assert await ran(site, "cat materials/course/lab materials/course/lab.new-*") == ["mine", "two"]
    large = await copies.deliver("course", HOME, delivery({"lab": b"two", "big": bytes(6 << 20)}))
    assert isinstance(large.error, CopyNeedsSpace)


async def sent(content: bytes) -> AsyncIterator[bytes]:
    yield content


def delivery(files: Mapping[str, bytes]) -> Delivery:
    def blob(content: bytes) -> str:
        return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()

    made = {path: MaterialFile(blob(content), len(content)) for path, content in files.items()}
    tree = blob(repr(made).encode())
    return Delivery(Version(tree, tree, 1.8e9, made), lambda path: io.BytesIO(files[path]), time.time())
