"""GPU modes on the real cluster that KUBECONFIG names, with a driver of devices that exists only as objects.

The test publishes ResourceSlices and a DeviceClass of its own, and units of an extended resource on a node. The
scheduler's part is real. No kubelet plugin prepares the claims, so that no container starts.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from commonage.domain.nodes import Isolation, Share
from commonage.engines.kubernetes.gpus.dra import Dra
from commonage.engines.kubernetes.gpus.mode import GpuMode, NodeObjects
from commonage.engines.kubernetes.gpus.plugin import Plugin
from commonage.engines.kubernetes.manifest import Manifest, owned
from commonage.server.doctor.cluster_checks import examine_cluster

pytestmark = pytest.mark.skipif("KUBECONFIG" not in os.environ, reason="needs a cluster: set KUBECONFIG")

NAME = f"kgpu-{uuid.uuid4().hex[:8]}"
DRIVER = f"{NAME}.commonage.dev"
GPU = "GPU-0a3b5c7d-0000-4000-8000-000000000001"
MIB = 1024
TOTAL_MIB = 80 * MIB
PROFILE = "7g.80gb"
RESOURCE = f"nvidia.com/mig-{PROFILE}"
WAIT_S = 120
IMAGE = os.environ.get("COMMONAGE_TEST_IMAGE", "localhost/commonage-lab/base:1")
MODE = Dra(DRIVER, NAME, f"{NAME}-mig")
RESOURCE_API = "/apis/resource.k8s.io/v1"


class Cluster:
    """The few calls that these tests need; what they create is deleted in reverse order."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http
        self._made: list[str] = []

    def get(self, path: str) -> Manifest:
        return self._ask("GET", path)

    def create(self, folder: str, manifest: Manifest) -> Manifest:
        made = self._ask("POST", folder, json=manifest)
        self._made.append(f"{folder}/{manifest['metadata']['name']}")
        return made

    def patch(self, path: str, changes: list[Manifest]) -> None:
        headers = {"Content-Type": "application/json-patch+json"}
        self._ask("PATCH", path, content=json.dumps(changes), headers=headers)

    def remove_all(self) -> None:
        for path in reversed(self._made):
            with suppress(httpx2.HTTPStatusError):
                self._ask("DELETE", path, params={"gracePeriodSeconds": "0", "propagationPolicy": "Background"})

    def wait(self, path: str, found: Callable[[Manifest], bool]) -> Manifest:
        until = time.monotonic() + WAIT_S
        while not found(now := self.get(path)):
            assert time.monotonic() < until, f"{path} did not get there: {json.dumps(now.get('status'))}"
            time.sleep(0.2)
        return now

    def _ask(self, method: str, path: str, **request: Any) -> Manifest:
        answer = self._http.request(method, path, **request)
        answer.raise_for_status()
        made: Manifest = answer.json()
        return made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    from lightkube.config.client_adapter import Client, ConnectionParams
    from lightkube.config.kubeconfig import KubeConfig

    config = KubeConfig.from_env().get()
    assert config is not None
    with Client(config, ConnectionParams(timeout=httpx2.Timeout(30), trust_env=False)) as http:
        found = Cluster(http)
        found.create("/api/v1/namespaces", {"metadata": {"name": NAME}})
        try:
            found.wait(f"/api/v1/namespaces/{NAME}/serviceaccounts", lambda one: bool(one["items"]))
            yield found
        finally:
            found.remove_all()


@pytest.fixture
def node(cluster: Cluster) -> str:
    return str(cluster.get("/api/v1/nodes")["items"][0]["metadata"]["name"])


def start(cluster: Cluster, mode: GpuMode, name: str, share: Share) -> Manifest:
    """Create the Pod and then the objects that it owns, as the engine does."""
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAME, "labels": {"commonage.dev/attempt": name}},
        "spec": {
            "containers": [{"name": "main", "image": IMAGE, "command": ["sleep", "60"]}],
            "restartPolicy": "Never",
        },
    }
    applied = mode.apply(pod, [share])
    made = cluster.create(f"/api/v1/namespaces/{NAME}/pods", applied.pod)
    for extra in applied.extras:
        cluster.create(f"{RESOURCE_API}/namespaces/{NAME}/resourceclaims", owned(extra, made))
    return made


def scheduled(pod: Manifest) -> Manifest:
    conditions = pod.get("status", {}).get("conditions", ())
    found: Manifest = next((one for one in conditions if one["type"] == "PodScheduled"), {})
    return found


def wait_until_bound(cluster: Cluster, name: str) -> Manifest:
    path = f"/api/v1/namespaces/{NAME}/pods/{name}"
    return cluster.wait(path, lambda pod: scheduled(pod).get("status") == "True")


def wait_until_refused(cluster: Cluster, name: str) -> str:
    path = f"/api/v1/namespaces/{NAME}/pods/{name}"
    pod = cluster.wait(path, lambda found: scheduled(found).get("reason") == "Unschedulable" and _is_final(found))
    return str(scheduled(pod)["message"])


def _is_final(pod: Manifest) -> bool:
    """Not only that the claim did not exist yet."""
    return "not found" not in scheduled(pod)["message"] and "waiting for" not in scheduled(pod)["message"]


def publish(cluster: Cluster, node: str) -> Manifest:
    """A node's GPU that several claims can share, as its driver would publish it, and the classes."""
    expression = f"device.driver == '{DRIVER}'"
    for name in (NAME, f"{NAME}-mig"):
        selectors = [{"cel": {"expression": expression}}]
        cluster.create(f"{RESOURCE_API}/deviceclasses", {"metadata": {"name": name}, "spec": {"selectors": selectors}})
    memory = {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}}
    memory["requestPolicy"]["validRange"]["max"] = "80Gi"  # type: ignore[index]  # a manifest
    device = {
        "name": "gpu-0",
        "attributes": {"uuid": {"string": GPU}, "type": {"string": "gpu"}, "productName": {"string": "Test GPU"}},
        "capacity": {"memory": memory},
        "allowMultipleAllocations": True,
    }
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [device],
    }
    return cluster.create(f"{RESOURCE_API}/resourceslices", {"metadata": {"name": NAME}, "spec": spec})


def gib(share_gib: int) -> Share:
    return Share(GPU, 0, "Test GPU", share_gib * MIB, 100, False, TOTAL_MIB, isolation=Isolation.ACCOUNTED)


def test_two_shares_fit_one_device_and_the_third_is_refused(cluster: Cluster, node: str) -> None:
    published = publish(cluster, node)
    if "allowMultipleAllocations" not in published["spec"]["devices"][0]:
        pytest.skip("the cluster's feature gate DRAConsumableCapacity is off")
    objects = NodeObjects(cluster.get(f"/api/v1/nodes/{node}"), [published])
    (device,) = MODE.devices(objects)
    assert (device.uuid, device.memory_mib, device.isolation) == (GPU, TOTAL_MIB, Isolation.ACCOUNTED)

    claims = f"{RESOURCE_API}/namespaces/{NAME}/resourceclaims"
    for name in ("cm-first", "cm-second"):
        start(cluster, MODE, name, gib(32))
        pod = wait_until_bound(cluster, name)
        assert pod["spec"]["nodeName"] == node
        claim = cluster.get(f"{claims}/{name}")
        assert MODE.granted(pod, [claim]) == (GPU,)
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert (result["device"], result["consumedCapacity"]) == ("gpu-0", {"memory": "32Gi"})

    start(cluster, MODE, "cm-third", gib(32))
    assert "cannot allocate all claims" in wait_until_refused(cluster, "cm-third")

    start(cluster, MODE, "cm-fourth", gib(16))
    wait_until_bound(cluster, "cm-fourth")


def test_units_of_a_device_plugin_are_given_once(cluster: Cluster, node: str) -> None:
    key = RESOURCE.replace("/", "~1")
    status = f"/api/v1/nodes/{node}/status"
    places = [f"/status/{kind}/{key}" for kind in ("capacity", "allocatable")]
    cluster.patch(status, [{"op": "add", "path": place, "value": "1"} for place in places])
    try:
        found = cluster.get(f"/api/v1/nodes/{node}")
        (device,) = Plugin().devices(NodeObjects(found))
        assert device.mig_profile == PROFILE
        share = Share(device.uuid, device.index, device.model, 0, 1000, True, 0, isolation=Isolation.MIG)
        start(cluster, Plugin(), "cm-only", share)
        assert wait_until_bound(cluster, "cm-only")["spec"]["nodeName"] == node
        start(cluster, Plugin(), "cm-more", share)
        assert f"Insufficient {RESOURCE}" in wait_until_refused(cluster, "cm-more")
    finally:
        cluster.patch(status, [{"op": "remove", "path": place} for place in places])


def test_doctor_reads_the_modes_rights_and_gates() -> None:
    report = examine_cluster(None, None, "default")
    assert [mode.mode for mode in report.modes] == ["fractioning", "dra", "hami", "env", "plugin"]
    assert report.version.startswith("v1.")
    assert report.nodes
