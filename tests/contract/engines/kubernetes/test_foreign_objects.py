"""Objects that tenants and node components write into a cluster: none of them ends the engine, or takes other nodes."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tests.kubernetes.rig import IMAGE, KubernetesRig

from commonage.domain.errors import EngineFailure, Unavailable
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons.devices import GpuHeldByOthers
from commonage.domain.reasons.nodes import EngineNotAnswering
from commonage.engines.kubernetes.client import Client
from commonage.engines.kubernetes.gpus.hami import REGISTER
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.elastic_pools import PoolCloud
from commonage.engines.kubernetes.placement.quantities import MAX_DEVICES
from commonage.engines.kubernetes.storage.sizes import used_in
from commonage.testing.engine_rig import FOREVER
from commonage.testing.fakes.kubernetes.cluster import FakeCluster
from commonage.testing.fakes.kubernetes.store import NODES, PODS

pytestmark = pytest.mark.anyio
NODE, OTHER, UNIT = "node-1", "node-2", "nvidia.com/gpu"


@dataclass
class Site:
    cluster: FakeCluster
    rig: KubernetesRig

    def change_node(self, allocatable: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> None:
        node = self.cluster.store.get(NODES, ("", NODE))
        status = node["status"] | {"allocatable": node["status"]["allocatable"] | (allocatable or {})}
        metadata = node["metadata"] | {"annotations": annotations or {}}
        self.cluster.store.change(NODES, ("", NODE), metadata=metadata, status=status)

    def create_pod(self, requests: dict[str, object]) -> None:
        """A tenant's own Pod, which names its node itself."""
        container = {"name": "main", "image": "unknown", "resources": {"requests": requests}}
        spec = {"nodeName": NODE, "containers": [container]}
        metadata = {"name": "foreign", "namespace": "default"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        self.cluster.store.create(PODS, pod)

    async def nodes(self) -> dict[str, NodeReport]:
        return {one.name: one for one in await (await self.rig.engine()).nodes()}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with FakeCluster(tmp_path / "cluster", nodes=[NODE, OTHER], images=[IMAGE]) as cluster:
        rig = KubernetesRig(tmp_path / "data", "commonage", NODE, kubeconfig=cluster.kubeconfig)
        yield Site(cluster, rig)
        await rig.end_all(forget=True)


async def test_a_pod_that_requests_a_thousand_gpus_holds_those_of_its_node(site: Site) -> None:
    site.change_node({UNIT: "2"})
    site.create_pod({UNIT: "1k"})
    devices = (await site.nodes())[NODE].devices
    assert [GpuHeldByOthers() in one.faults for one in devices] == [True, True]


async def test_a_node_that_offers_no_number_of_gpus_has_none(site: Site) -> None:
    site.change_node({UNIT: "many"})
    assert (await site.nodes())[NODE].devices == ()


async def test_a_placeholder_that_cannot_be_read_ends_no_loop_of_node_pools() -> None:
    class Forged:
        async def nodes(self) -> list[Manifest]:
            return [{}]

        async def release(self, nodes: list[Manifest]) -> None:
            raise KeyError("resources")

    pools: Any = Forged()
    pool: Any = None
    with pytest.raises(Unavailable, match="node pools is not of the expected form"):
        await PoolCloud(pool, lambda: pools).machines()


@pytest.mark.parametrize("offered", ["1k", "1000000001", "1e400"])
async def test_a_node_that_offers_countless_gpus_has_a_bounded_number(site: Site, offered: str) -> None:
    site.change_node({UNIT: offered})
    assert len((await site.nodes())[NODE].devices) == MAX_DEVICES


async def test_a_node_that_cannot_be_read_keeps_its_sizes_and_takes_no_work(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    before = (await site.nodes())[NODE]
    site.change_node({"cpu": "many"})

    async def is_noticed() -> bool:
        return bool((await site.nodes())[NODE].faults)

    await site.rig.until(is_noticed, "the node has a fault")
    found = await site.nodes()
    assert (found[NODE].cpus_milli, found[NODE].memory_mib) == (before.cpus_milli, before.memory_mib)
    assert isinstance(found[NODE].faults[0], EngineNotAnswering)
    assert found[OTHER].faults == ()
    assert len([one for one in caplog.records if one.exc_info and NODE in one.message]) == 1


async def test_a_pod_that_cannot_be_read_keeps_no_engine_from_opening(site: Site) -> None:
    site.create_pod({"cpu": "plenty"})
    assert not any(one.faults for one in (await site.nodes()).values())


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{"id": "x", "type": 5}]),
        json.dumps([{"id": 5}, 5, None, {"id": "x", "devmem": "1"}]),
        json.dumps([{"id": "x\0", "devmem": 1}]),
        "[" * 100_000,
        "[" + "9" * 5000 + "]",
        "x,1," + "9" * 5000 + ",1,T4,0,true,0:",
    ],
)
async def test_no_registration_of_hami_ends_the_engine(site: Site, text: str) -> None:
    site.change_node(annotations={REGISTER: text})
    assert set(await site.nodes()) == {NODE, OTHER}


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"podRef": {"uid": "UID"}, "containers": [{}]},
        {"podRef": {"uid": "UID"}, "containers": [{"name": "main", "cpu": {"usageCoreNanoSeconds": 10**400}}]},
        {"podRef": {"uid": "UID"}, "containers": [{"name": "main", "cpu": {"usageCoreNanoSeconds": "1"}}]},
        5,
    ],
)
async def test_an_unexpected_answer_of_a_kubelet_is_left_out(
    site: Site, pod: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await site.rig.engine()
    request = await site.rig.started(site.rig.start_request(FOREVER))
    [run] = [one for one in site.cluster.store.all(PODS) if one["metadata"]["namespace"] == "commonage"]
    said = json.loads(json.dumps({"pods": [pod]}).replace("UID", run["metadata"]["uid"]))
    monkeypatch.setattr(site.cluster, "summary", lambda _node: said)
    assert await engine.measure() == []
    assert request.attempt_id


@pytest.mark.parametrize(
    "volume",
    [{"pvcRef": {}, "usedBytes": 1}, {"pvcRef": {"namespace": "a", "name": "b"}, "usedBytes": "many"}, 5],
)
def test_use_of_claims_that_cannot_be_read_is_an_engine_failure(volume: object) -> None:
    with pytest.raises(EngineFailure, match="summary of a kubelet"):
        used_in({"pods": [{"volume": [volume]}]})


async def test_line_ends_in_an_annotation_cut_no_watch() -> None:
    pod: Manifest = {"metadata": {"name": "a", "annotations": {"note": "one\x85two\u2028three\0"}}}
    line = json.dumps({"type": "ADDED", "object": pod}, ensure_ascii=False)
    client = Client()
    client._http = httpx.AsyncClient(
        base_url="http://cluster",
        transport=httpx.MockTransport(lambda _: httpx.Response(200, content=f"{line}\n{line}")),
    )
    events = [one async for one in client.watch("/api/v1/pods", "")]
    notes = [one.object["metadata"]["annotations"]["note"] for one in events if one.kind == "ADDED"]
    assert notes == ["one\x85two\u2028three\ufffd"] * 2
    await client.close()
