from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.nodes import NodeReport
from commonage.domain.reasons.nodes import ClusterNodeCordoned, ClusterNodeNotReady, ClusterNodeTainted
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.capacity import Capacity, effective_requests
from commonage.engines.kubernetes.placement.quantities import milli


def node(name: str = "n1", *, ready: str = "True", taints: list[Any] | None = None, cordoned: bool = False) -> Manifest:
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "A100"}},
        "spec": {"taints": taints or [], "unschedulable": cordoned},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": ready, "message": "kubelet stopped posting node status"}],
        },
    }


def container(cpu: str, memory: str = "0", name: str = "c", **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def pod(uid: str, *containers: Any, on: str = "n1", phase: str = "Running", **spec: Any) -> Manifest:
    return {
        "metadata": {"uid": uid, "name": uid},
        "spec": {"nodeName": on, "containers": list(containers), **spec},
        "status": {"phase": phase},
    }


def ours(manifest: Manifest) -> Manifest:
    manifest["metadata"]["labels"] = {"commonage.dev/installation": "here"}
    return manifest


def put(capacity: Capacity, nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> None:
    for one in nodes:
        capacity.put_node(one)
    for one in pods:
        capacity.put_pod(one)


def only(capacity: Capacity) -> NodeReport:
    (report,) = capacity.reports()
    return report


def test_reads_quantities_as_kubernetes_does() -> None:
    read = {text: milli(text) for text in ("2", "500m", "1.5", "2Ki", "1e3", "1E", "5u", "0.5Gi", ".5k")}
    assert read == {
        "2": 2000, "500m": 500, "1.5": 1500, "2Ki": 2_048_000, "1e3": 1_000_000, "1E": 10**21, "5u": 1,
        "0.5Gi": 512 * 1024**2 * 1000, ".5k": 500_000,
    }  # fmt: skip


def test_counts_the_larger_of_init_containers_and_containers() -> None:
    one = pod("a", container("1"), container("500m"), initContainers=[container("2"), container("1")])
    assert effective_requests(one)["cpu"] == 2000


def test_counts_sidecars_beside_containers_and_later_init_containers() -> None:
    sidecar = container("500m", restartPolicy="Always")
    before = pod("a", container("1"), initContainers=[container("2"), sidecar])
    after = pod("b", container("1"), initContainers=[sidecar, container("2")])
    assert effective_requests(before)["cpu"] == 2000
    assert effective_requests(after)["cpu"] == 2500


def test_requests_of_the_pod_replace_sums_and_overhead_is_added() -> None:
    one = pod(
        "a", container("1", "1Gi"), resources={"requests": {"cpu": "3"}}, overhead={"cpu": "250m", "memory": "64Mi"}
    )
    assert effective_requests(one) == {"cpu": 3250, "memory": (1024 + 64) * 1024**2 * 1000}


def test_counts_the_larger_request_during_a_resize() -> None:
    one = pod("a", container("1"))
    one["status"]["containerStatuses"] = [{"name": "c", "allocatedResources": {"cpu": "2"}}]
    assert effective_requests(one)["cpu"] == 2000
    one["spec"]["containers"] = [container("3")]
    one["status"]["conditions"] = [{"type": "PodResizePending", "reason": "Infeasible"}]
    assert effective_requests(one)["cpu"] == 2000


def test_foreign_pods_reduce_a_node_until_they_end_and_ours_do_not() -> None:
    capacity = Capacity("here")
    capacity.put_node(node())
    capacity.put_pod(pod("a", container("1", "1Gi")))
    capacity.put_pod(ours(pod("b", container("2", "2Gi"))))
    assert (only(capacity).cpus_milli, only(capacity).memory_mib) == (3000, 7 * 1024)
    capacity.put_pod(pod("a", container("1", "1Gi"), phase="Succeeded"))
    assert (only(capacity).cpus_milli, only(capacity).memory_mib) == (4000, 8 * 1024)


def test_a_nominated_pod_counts() -> None:
    capacity = Capacity("here")
    capacity.put_node(node())
    waits = pod("a", container("1"), on="", phase="Pending")
    waits["status"]["nominatedNodeName"] = "n1"
    capacity.put_pod(waits)
    assert only(capacity).cpus_milli == 3000


def test_reports_taints_that_are_not_tolerated_and_cordoned_nodes_as_faults() -> None:
    taints = [
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        {"key": "team", "value": "a", "effect": "NoExecute"},
        {"key": "slow", "effect": "PreferNoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
    ]
    capacity = Capacity("here", [{"key": "gpu", "operator": "Exists"}])
    capacity.put_node(node(taints=taints, cordoned=True))
    report = only(capacity)
    assert report.faults == (ClusterNodeCordoned(), ClusterNodeTainted(taint="team=a:NoExecute"))
    assert report.labels == (("nvidia.com/gpu.product", "A100"),)


def test_a_node_that_is_not_ready_says_why() -> None:
    capacity = Capacity("here")
    capacity.put_node(node(ready="Unknown"))
    assert only(capacity).faults == (ClusterNodeNotReady(error="kubelet stopped posting node status"),)


def test_only_changed_nodes_are_reported_again() -> None:
    seen: list[str] = []

    def devices(manifest: Manifest, _foreign: object) -> tuple[()]:
        seen.append(manifest["metadata"]["name"])
        return ()

    capacity = Capacity("here", devices_of=devices)
    nodes = [node(f"n{number}") for number in range(1000)]
    pods = [pod(f"p{number}", container("100m"), on=f"n{number % 1000}") for number in range(10_000)]
    put(capacity, nodes, pods)
    assert len(capacity.reports()) == 1000
    assert len(seen) == 1000
    capacity.put_pod(ours(pod("x", container("1"), on="n7")))
    capacity.put_pod(pod("p3", container("200m"), on="n3"))
    capacity.put_pod(pod("p5", container("100m"), on="n5"))
    assert capacity.reports()[0].cpus_milli == 3000
    assert seen[1000:] == ["n3"]


_CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["n1", "n2", ""]), st.integers(0, 900), st.booleans()),
    max_size=25,
)


@given(_CHANGES)
def test_changes_one_by_one_equal_a_fresh_list(changes: list[tuple[str, str, int, bool]]) -> None:
    followed = Capacity("here")
    last: dict[str, Manifest] = {}
    put(followed, [node("n1"), node("n2")], [])
    for uid, on, cpus, is_removed in changes:
        if is_removed:
            last.pop(uid, None)
            followed.remove_pod(uid)
        else:
            last[uid] = pod(uid, container(f"{cpus}m"), on=on)
            followed.put_pod(last[uid])
        followed.reports()
    fresh = Capacity("here")
    put(fresh, [node("n1"), node("n2")], last.values())
    assert followed.reports() == fresh.reports()


_REQUESTS = st.lists(st.integers(0, 50), max_size=4)


@given(_REQUESTS, st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=4))
def test_effective_requests_bound_every_moment_of_a_pod(main: list[int], inits: list[tuple[int, bool]]) -> None:
    one = pod(
        "a",
        *(container(str(cpus), name=f"m{at}") for at, cpus in enumerate(main)),
        initContainers=[
            container(str(cpus), name=f"i{at}", **({"restartPolicy": "Always"} if stays else {}))
            for at, (cpus, stays) in enumerate(inits)
        ],
    )
    moments, sidecars = [0], 0
    for cpus, stays in inits:
        moments.append(sidecars + cpus)
        sidecars += cpus if stays else 0
    moments.append(sidecars + sum(main))
    assert effective_requests(one)["cpu"] == max(moments) * 1000
