"""A site agent with the engine Kubernetes, over the double of a cluster: `tests/kubernetes` walks a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.acceptance.cluster_appliance import Joined, Loop, joined, walk_cut, walk_job, walk_service, walk_way_back
from tests.kubernetes.rig import IMAGE

from commonage.server.processes.ports import free_port
from commonage.testing.fakes.kubernetes.cluster import FakeCluster

pytestmark = pytest.mark.timeout(600)
ADDRESS = "127.0.0.8"
"""Where Pods reach the appliance."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    folder, loop = tmp_path_factory.mktemp("cluster-appliance"), Loop()
    cluster = FakeCluster(folder / "cluster", nodes=["node-1"], images=[IMAGE])
    loop.run(cluster.__aenter__())
    variables = {
        "COMMONAGE_KUBERNETES_KUBECONFIG": str(cluster.kubeconfig),
        "COMMONAGE_KUBERNETES_ADDRESS": ADDRESS,
        "COMMONAGE_GPUS": "simulated:1x24GiB",  # of this machine, which is no node of the cluster
    }
    with joined(folder, loop, IMAGE, variables) as made:
        yield made
    loop.run(cluster.__aexit__())
    loop.close()


def test_the_nodes_are_those_of_the_cluster(site: Joined) -> None:
    [node] = [one for one in site.platform.client("admin", "--admin").nodes() if one.site == "clinic"]
    assert (node.name, node.cpus_milli, node.devices) == ("node-1", 64_000, [])


def test_a_job_runs_on_the_cluster(site: Joined) -> None:
    walk_job(site)


def test_a_pod_reaches_the_platform_by_the_link(site: Joined) -> None:
    walk_way_back(site, ADDRESS)


def test_a_service_is_opened_through_the_tunnel(site: Joined) -> None:
    walk_service(site, free_port())


def test_a_job_survives_a_cut_of_the_link_and_the_end_of_the_agent(site: Joined) -> None:
    walk_cut(site)
