"""GPUs through the whole engine, on the double of a cluster: claims of shared devices, and units of a device plugin."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.kubernetes.gpus import GIB, GPU, device_class, part, resource_slice, with_shares
from tests.kubernetes.rig import IMAGE, KubernetesRig

from commonage.domain.nodes import Device, Isolation, Share
from commonage.domain.reasons.attempts import PodUnschedulable, RetryingStart
from commonage.domain.statuses import Phase, StartRequest
from commonage.engines.kubernetes.gpus.mode import GRANTED, VISIBLE, annotation
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.translate import is_gated, pod_name
from commonage.testing.engine_rig import FOREVER
from commonage.testing.fakes.kubernetes.cluster import FakeCluster
from commonage.testing.fakes.kubernetes.store import CLASSES, DEVICE_CLAIMS, NODES, PODS, SLICES, ApiError, Kind

pytestmark = pytest.mark.anyio

DRIVER = "gpu.nvidia.com"
NODE = "node-1"
UNIT = "nvidia.com/gpu"


@dataclass
class Site:
    cluster: FakeCluster
    rig: KubernetesRig

    def publish(self) -> None:
        self.cluster.store.create(CLASSES, device_class(DRIVER, DRIVER))
        self.cluster.store.create(SLICES, resource_slice("slice-1", DRIVER, NODE))

    def offer_unit(self) -> None:
        """One GPU of a device plugin, with the labels of feature discovery."""
        node = self.cluster.store.get(NODES, ("", NODE))
        labels = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}
        metadata = node["metadata"] | {"labels": node["metadata"]["labels"] | labels}
        allocatable = node["status"]["allocatable"] | {UNIT: "1"}
        status = node["status"] | {"allocatable": allocatable}
        self.cluster.store.change(NODES, ("", NODE), metadata=metadata, status=status)

    def request(self, *shares: Share) -> StartRequest:
        return with_shares(self.rig.start_request(FOREVER), shares)

    def pod(self, request: StartRequest) -> Manifest:
        return self.cluster.store.get(PODS, ("commonage", pod_name(request.attempt_id)))

    def claim(self, request: StartRequest) -> Manifest | None:
        return self.cluster.store.find(DEVICE_CLAIMS, ("commonage", pod_name(request.attempt_id)))

    async def devices(self) -> tuple[Device, ...]:
        (node,) = await (await self.rig.engine()).nodes()
        return node.devices


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with FakeCluster(tmp_path / "cluster", nodes=[NODE], images=[IMAGE]) as cluster:
        rig = KubernetesRig(tmp_path / "data", "commonage", NODE, kubeconfig=cluster.kubeconfig, room_timeout_s=0.0)
        yield Site(cluster, rig)
        await rig.end_all(forget=True)


def results(claim: Manifest | None) -> list[Manifest]:
    assert claim is not None
    found: list[Manifest] = claim["status"]["allocation"]["devices"]["results"]
    return found


async def test_shares_of_one_device_are_given_until_it_is_full(site: Site) -> None:
    site.publish()
    (device,) = await site.devices()
    assert (device.uuid, device.model, device.memory_mib) == (GPU, "Test GPU", 80 * GIB)
    assert device.isolation is Isolation.ACCOUNTED
    first = await site.rig.started(site.request(part(32)))
    second = await site.rig.started(site.request(part(32)))
    for one in (first, second):
        (given,) = results(site.claim(one))
        assert (given["device"], given["consumedCapacity"]) == ("gpu-0", {"memory": "32768Mi"})

    third = await site.rig.ended(site.request(part(32)))
    assert isinstance(third.reason, PodUnschedulable)
    assert "cannot allocate all claims" in third.reason.error
    await (await site.rig.engine()).stop(first.attempt_id, 60)
    await site.rig.phase(first.attempt_id, Phase.ENDED)
    await site.rig.started(site.request(part(48)))


async def test_claim_belongs_to_its_pod_and_the_pod_tells_its_device(site: Site) -> None:
    site.publish()
    request = await site.rig.started(site.request(part(32)))

    async def is_noted() -> bool:
        return annotation(site.pod(request), GRANTED) == GPU

    await site.rig.until(is_noted, "the device is noted")
    claim = site.claim(request)
    assert claim is not None
    assert [one["uid"] for one in claim["metadata"]["ownerReferences"]] == [site.pod(request)["metadata"]["uid"]]
    await (await site.rig.engine()).stop(request.attempt_id, 60)
    await site.rig.phase(request.attempt_id, Phase.ENDED)
    await (await site.rig.engine()).forget(request.attempt_id)

    async def is_gone() -> bool:
        return site.claim(request) is None

    await site.rig.until(is_gone, "the claim goes with its Pod")


@pytest.mark.parametrize("is_still_there", [True, False], ids=["mode-there", "mode-gone"])
async def test_restart_between_pod_and_claim_makes_the_claim(site: Site, *, is_still_there: bool) -> None:
    """Also if the cluster has the mode no more: the Pod was made for it."""
    site.publish()
    is_away = True

    def refuse(kind: Kind, _manifest: Manifest) -> str:
        if kind is DEVICE_CLAIMS and is_away:
            raise ApiError(503, "ServiceUnavailable", "no claims now")
        return ""

    site.cluster.admit_by(refuse)
    engine = await site.rig.engine()
    request = site.request(part(32))
    await engine.start(request)

    async def waits_for_claim() -> bool:
        found = site.cluster.store.find(PODS, ("commonage", pod_name(request.attempt_id)))
        return found is not None and is_gated(found)

    await site.rig.until(waits_for_claim, "the Pod is made, and its claim is not")
    before = site.pod(request)
    assert site.claim(request) is None
    await site.rig.restart()
    if not is_still_there:
        site.cluster.store.remove(CLASSES, ("", DRIVER))
        await site.rig.restart()
    is_away = False
    await site.rig.phase(request.attempt_id, Phase.RUNNING)
    assert results(site.claim(request))
    assert site.pod(request)["metadata"]["uid"] == before["metadata"]["uid"]


async def test_restart_between_claim_and_gate_makes_nothing_twice(site: Site) -> None:
    site.publish()

    def cut(kind: Kind, _manifest: Manifest) -> str:
        if kind is DEVICE_CLAIMS:
            site.cluster.server.set_outage(True)
        return ""

    site.cluster.admit_by(cut)
    request = site.request(part(32))
    await (await site.rig.engine()).start(request)

    async def has_claim() -> bool:
        return site.claim(request) is not None

    await site.rig.until(has_claim, "the claim is made")
    before = site.claim(request)
    assert before is not None
    assert is_gated(site.pod(request))
    site.cluster.server.set_outage(False)
    await site.rig.restart()
    await site.rig.phase(request.attempt_id, Phase.RUNNING)
    (claim,) = site.cluster.store.all(DEVICE_CLAIMS)
    assert claim["metadata"]["uid"] == before["metadata"]["uid"]


async def test_share_of_a_mode_that_is_not_there_waits_and_says_so(site: Site) -> None:
    assert not await site.devices()
    request = site.request(part(32))
    await (await site.rig.engine()).start(request)

    async def is_told() -> bool:
        status = await site.rig.status(request.attempt_id)
        return (
            status is not None
            and isinstance(status.reason, RetryingStart)
            and "no GPUs now" in str(status.reason.cause)
        )

    await site.rig.until(is_told, "the reason is told")
    assert site.cluster.store.find(PODS, ("commonage", pod_name(request.attempt_id))) is None
    await (await site.rig.engine()).stop(request.attempt_id, 60)
    await site.rig.phase(request.attempt_id, Phase.ENDED)


async def test_unit_of_a_device_plugin_is_given_once(site: Site) -> None:
    site.offer_unit()
    (device,) = await site.devices()
    assert (device.model, device.memory_mib, device.slots) == ("Tesla T4", 15360, 1)
    share = Share(device.uuid, 0, device.model, device.memory_mib, 1000, True, device.memory_mib)
    request = await site.rig.started(site.request(share))
    (container,) = site.pod(request)["spec"]["containers"]
    assert container["resources"]["limits"][UNIT] == "1"
    assert VISIBLE not in {one["name"] for one in container["env"]}
    refused = await site.rig.ended(site.request(share))
    assert isinstance(refused.reason, PodUnschedulable)
    assert f"Insufficient {UNIT}" in refused.reason.error


async def test_pod_of_others_takes_the_unit(site: Site) -> None:
    site.offer_unit()
    assert [one.faults for one in await site.devices()] == [()]
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["sleep", "600"],
        "resources": {"limits": {UNIT: "1"}, "requests": {UNIT: "1"}},
    }
    pod: Manifest = {
        "metadata": {"name": "other", "namespace": "commonage"},
        "spec": {"containers": [container], "nodeName": NODE},
        "status": {"phase": "Running"},
    }
    site.cluster.store.create(PODS, pod)

    async def is_held() -> bool:
        return all(one.faults for one in await site.devices())

    await site.rig.until(is_held, "the unit is held by others")


async def test_pod_without_a_share_sees_no_gpu(site: Site) -> None:
    site.publish()
    request = await site.rig.started(site.request())
    (container,) = site.pod(request)["spec"]["containers"]
    assert {"name": VISIBLE, "value": "void"} in container["env"]
    assert site.claim(request) is None
