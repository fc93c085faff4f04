"""Pods of a namespace that Kueue manages, and gangs in one that denies traffic, on the double of a cluster."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.kubernetes.rig import IMAGE, KubernetesRig

from commonage.domain.reasons.attempts import WaitingForKueue
from commonage.domain.statuses import StartRequest
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.translate import pod_name
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import FOREVER
from commonage.testing.fakes.kubernetes.cluster import FakeCluster
from commonage.testing.fakes.kubernetes.store import (
    CLUSTER_QUEUES,
    FLAVORS,
    LOCAL_QUEUES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    Kind,
)

pytestmark = pytest.mark.anyio
QUEUE = "kueue.x-k8s.io/queue-name"
GATE = "kueue.x-k8s.io/admission"
OURS: Manifest = {"gpu": "a100"}
OTHERS: Manifest = {"gpu": "a100", "zone": "b"}
TOLERATION = {"key": "gpu", "operator": "Exists"}


@dataclass
class Site:
    cluster: FakeCluster
    rig: KubernetesRig

    def pod(self, request: StartRequest) -> Manifest:
        return self.cluster.store.get(PODS, ("commonage", pod_name(request.attempt_id)))

    def use_kueue(self) -> None:
        """The node is of the flavor `a100`; another flavor with more of its labels is of other tenants."""
        store = self.cluster.store
        node = store.get(NODES, ("", "node-1"))
        store.update(NODES, node | {"metadata": node["metadata"] | {"labels": node["metadata"]["labels"] | OTHERS}})
        for name, labels in (("plain", {}), ("a100", OURS), ("others", OTHERS)):
            spec = {"nodeLabels": labels, "tolerations": [TOLERATION] if name == "a100" else []}
            store.create(FLAVORS, {"metadata": {"name": name}, "spec": spec})
        groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "plain"}, {"name": "a100"}]}]
        store.create(CLUSTER_QUEUES, {"metadata": {"name": "physics"}, "spec": {"resourceGroups": groups}})
        local = {"metadata": {"name": "default", "namespace": "commonage"}, "spec": {"clusterQueue": "physics"}}
        store.create(LOCAL_QUEUES, local)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with FakeCluster(tmp_path / "cluster", nodes=["node-1"], images=[IMAGE]) as cluster:
        rig = KubernetesRig(tmp_path / "data", "commonage", "node-1", kubeconfig=cluster.kubeconfig)
        yield Site(cluster, rig)
        await rig.end_all(forget=True)


async def test_pod_goes_to_the_queue_of_its_namespace_with_the_flavor_of_its_node(site: Site) -> None:
    site.use_kueue()
    request = await site.rig.started(site.rig.start_request(FOREVER))
    pod = site.pod(request)
    assert pod["metadata"]["labels"][QUEUE] == "default"
    assert pod["spec"]["nodeSelector"] == OURS
    assert TOLERATION in pod["spec"]["tolerations"]


async def test_pod_that_kueue_holds_says_so(site: Site) -> None:
    site.use_kueue()

    def hold(kind: Kind, manifest: Manifest) -> str:
        if kind is PODS:
            manifest["spec"]["schedulingGates"].append({"name": GATE})
        return ""

    site.cluster.admit_by(hold)
    request = site.rig.start_request(FOREVER)
    await (await site.rig.engine()).start(request)

    async def waits() -> bool:
        status = await site.rig.status(request.attempt_id)
        return status is not None and status.reason == WaitingForKueue(queue="default")

    await site.rig.until(waits, "it waits for Kueue")


async def test_pod_without_kueue_has_no_queue(site: Site) -> None:
    request = await site.rig.started(site.rig.start_request(FOREVER))
    pod = site.pod(request)
    assert QUEUE not in pod["metadata"]["labels"]
    assert "nodeSelector" not in pod["spec"]


async def test_members_of_a_gang_may_reach_each_other_until_their_pod_is_gone(site: Site) -> None:
    one = site.rig.start_request(FOREVER)
    gang = (one.attempt_id, f"{one.attempt_id[:-1]}2")
    await site.rig.started(replace(one, gang=gang))
    policy = site.cluster.store.get(NETWORK_POLICIES, ("commonage", pod_name(one.attempt_id)))
    labels = site.pod(one)["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    (source,) = policy["spec"]["ingress"][0]["from"]
    (among,) = source["podSelector"]["matchExpressions"]
    assert (labels[among["key"]] in among["values"], len(among["values"])) == (True, 2)
    (owner,) = policy["metadata"]["ownerReferences"]
    assert owner["uid"] == site.pod(one)["metadata"]["uid"]


async def test_gang_starts_without_the_right_to_make_policies(site: Site) -> None:
    site.cluster.admit_by(lambda kind, _: "no policies" if kind is NETWORK_POLICIES else "")
    one = site.rig.start_request(Behaviour(exit_code=3))
    assert (await site.rig.ended(replace(one, gang=(one.attempt_id,)))).exit_code == 3
