"""The namespaces that Commonage keeps, on the double of a cluster; tests/kubernetes has the same on a real one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kubernetes.namespaces_contract import KeptSite, NamespacesContract, physics
from tests.kubernetes.rig import IMAGE, KubernetesRig

from commonage.domain.tenants import Tenant
from commonage.engines.kubernetes.client import NAMESPACES, Client, Unreachable
from commonage.engines.kubernetes.manifest import Manifest
from commonage.testing.fakes.kubernetes import server
from commonage.testing.fakes.kubernetes.cluster import FakeCluster
from commonage.testing.fakes.kubernetes.store import NAMESPACES as NAMESPACE_KIND
from commonage.testing.fakes.kubernetes.store import SNAPSHOTS

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path / "cluster", nodes=["node-1"], images=[IMAGE]) as cluster:
        yield cluster


@pytest.fixture
async def site(tmp_path: Path, cluster: FakeCluster) -> AsyncIterator[KeptSite]:
    def forbid(verb: str, resource: str, forbidden: bool) -> None:
        (cluster.server.forbidden.add if forbidden else cluster.server.forbidden.discard)((verb, resource))

    rig = KubernetesRig(tmp_path / "data", "commonage", "node-1", kubeconfig=cluster.kubeconfig, namespaces="kept")
    admin = Client(cluster.kubeconfig)
    admin.open()
    yield KeptSite(rig, admin, forbid)
    await rig.end_all(forget=True)
    await admin.close()


class TestNamespacesOnDouble(NamespacesContract):
    @pytest.fixture
    async def site(self, site: KeptSite) -> KeptSite:  # that of this module
        return site


async def test_a_cluster_that_does_not_answer_makes_no_tenant_wait(site: KeptSite, cluster: FakeCluster) -> None:
    await site.ready(physics(1))
    cluster.server.set_outage(True)
    with pytest.raises(Unreachable):
        await site.keep(physics(1))
    cluster.server.set_outage(False)
    await site.rig.ended(site.request(lasts_s=0.0))


async def test_a_namespace_of_others_is_left_alone(site: KeptSite, cluster: FakeCluster) -> None:
    cluster.store.create(NAMESPACE_KIND, {"metadata": {"name": site.namespace}})

    [why] = (await site.keep(physics(1), Tenant("other"))).values()

    assert "is not of this installation" in why.error  # type: ignore[attr-defined]
    assert await site.admin.find(NAMESPACES.path(None, "commonage-other"))


async def test_a_namespace_with_a_snapshot_stays_until_the_last_is_gone(
    site: KeptSite, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await site.ready(physics(1))
    cluster.store.create(SNAPSHOTS, {"metadata": {"name": "before-exam", "namespace": site.namespace}})

    await site.keep()
    assert cluster.store.find(NAMESPACE_KIND, ("", site.namespace)) is not None
    assert f"{site.namespace} (VolumeSnapshot before-exam)" in caplog.text

    cluster.store.remove(SNAPSHOTS, (site.namespace, "before-exam"))
    await site.keep()
    assert is_going(cluster.store.find(NAMESPACE_KIND, ("", site.namespace)))


async def test_a_cluster_without_snapshots_deletes_empty_namespaces(
    site: KeptSite, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(server._PLURALS, (SNAPSHOTS.api, SNAPSHOTS.plural))
    await site.ready(physics(1))
    await site.keep()
    assert is_going(cluster.store.find(NAMESPACE_KIND, ("", site.namespace)))


async def test_a_namespace_stays_while_snapshots_may_not_be_listed(site: KeptSite, cluster: FakeCluster) -> None:
    await site.ready(physics(1))
    site.forbid("list", "volumesnapshots", True)
    await site.keep()
    assert not is_going(cluster.store.find(NAMESPACE_KIND, ("", site.namespace)))


def is_going(namespace: Manifest | None) -> bool:
    return namespace is None or "deletionTimestamp" in namespace["metadata"]
