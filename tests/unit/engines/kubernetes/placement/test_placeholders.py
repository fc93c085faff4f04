"""Placeholders: valid Pods, and each new node ends the wait of one of them."""

from collections.abc import Collection, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.engines.kubernetes.manifests import assert_golden

from commonage.domain.nodes import MachineKind, NodePoolPolicy
from commonage.domain.resources import NodePool
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.placeholders import Place, machines, placeholder, release, without
from commonage.engines.kubernetes.translate import PodContext
from commonage.engines.settings import KubernetesSettings

LABELS = (("cloud.example/pool", "l4"),)
KIND = MachineKind(7500, 28_000, 1, "NVIDIA L4", 24_576, labels=LABELS)
POOL = NodePool(NodePoolPolicy("burst", KIND, engine="kubernetes", most=4), "kubernetes", "", "")
CONTEXT = PodContext("lab", "commonage")
NOW = 1_800_000_000.0


def made(name: str, nodes: Collection[str] = (), bound: str = "", until: float = NOW + 900) -> Manifest:
    settings = KubernetesSettings(
        tolerations=({"key": "nvidia.com/gpu", "operator": "Exists"},), placeholder_class="commonage-placeholder"
    )
    pod = placeholder(name, POOL, Place(CONTEXT, nodes, until), settings)
    pod["metadata"]["uid"] = f"uid-{name}"
    if bound:
        pod["spec"]["nodeName"] = bound
    return pod


def node(name: str, *, ready: bool = True, gpus: int = 1, **spec: Any) -> Manifest:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {**dict(LABELS), "other": "x"}},
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "allocatable": {"cpu": "7900m", "memory": "29Gi", "nvidia.com/gpu": str(gpus)},
        },
    }


def names(pods: Sequence[Manifest]) -> list[str]:
    return [one["metadata"]["name"] for one in pods]


def test_a_placeholder_asks_for_one_node_and_none_that_is_there() -> None:
    root = placeholder("burst-2", POOL, Place(CONTEXT, (), NOW), KubernetesSettings(user=0, pull_secrets=("reg",)))
    first = placeholder(
        "burst-1",
        POOL,
        Place(CONTEXT, ("node-b", "node-a"), NOW),
        KubernetesSettings(tolerations=({"key": "gpu", "operator": "Exists"},), placeholder_class="low"),
    )
    assert_golden("placeholders", [first, root])


def test_one_goes_when_a_node_of_the_pool_can_take_work() -> None:
    waiting = [made("p1", ["old"]), made("p2", ["old"])]
    assert release(waiting, [node("old")], NOW).gone == []
    assert release(waiting, [node("old"), node("new", ready=False)], NOW).gone == []
    assert release(waiting, [node("old"), node("new", gpus=0)], NOW).gone == []
    assert release(waiting, [node("new", taints=[{"key": "starting", "effect": "NoSchedule"}])], NOW).gone == []
    assert release(waiting, [node("new", unschedulable=True)], NOW).gone == []
    found = release(waiting, [node("old"), node("new")], NOW)
    assert (names(found.gone), [(one["metadata"]["name"], taken) for one, taken in found.renewed]) == (
        ["p1"],
        [("p2", {"new"})],
    )


def test_one_that_is_bound_goes_and_the_others_are_kept_from_its_node() -> None:
    found = release([made("p1"), made("p2", bound="new")], [node("new")], NOW)
    assert (names(found.gone), names([one for one, _ in found.renewed])) == (["p2"], ["p1"])
    both = release([made("p1", bound="new"), made("p2", bound="new")], [node("new")], NOW)
    assert (names(both.gone), names([one for one, _ in both.renewed])) == (["p1"], ["p2"])


def test_one_made_anew_is_the_same_but_for_its_nodes() -> None:
    before = made("p1", ["old"], bound="new")
    after = without(before, ["new"])
    same = made("p1", ["old", "new"])
    del same["metadata"]["uid"]
    assert after == same


def test_one_that_nobody_looks_after_goes_at_last() -> None:
    assert names(release([made("p1", until=NOW - 1)], [], NOW).gone) == ["p1"]


def test_a_node_that_starts_stands_for_its_placeholder() -> None:
    waiting = [made("p1", ["old"]), made("p2", ["old"])]
    found = machines(POOL, waiting, [node("old", ready=False), node("new", ready=False)])
    assert [(one.name, one.requested, one.starting) for one in found] == [
        ("old", False, False),
        ("new", False, True),
        ("p2", True, False),
    ]


class Cluster:
    """Placeholders and nodes; the scheduler of the cluster binds any placeholder to any node that it may take."""

    def __init__(self) -> None:
        self.waiting: list[Manifest] = []
        self.nodes: list[Manifest] = []
        self.asked = self.arrived = 0

    def ask(self, _: int) -> None:
        self.asked += 1
        self.waiting.append(made(f"p{self.asked}", names(self.nodes)))

    def start(self, _: int) -> None:
        if len(self.nodes) < self.asked:
            self.nodes.append(node(f"n{len(self.nodes)}", ready=False))

    def arrive(self, _: int) -> None:
        if self.arrived < len(self.nodes):
            self.nodes[self.arrived] = node(f"n{self.arrived}")
            self.arrived += 1

    def bind(self, number: int) -> None:
        """Like the scheduler, on a node that takes work; it may come before or after a release."""
        self.arrive(number)
        fitting = [(one, there["metadata"]["name"]) for one in self.waiting for there in self.nodes[: self.arrived]
                   if f"'{there['metadata']['name']}'" not in str(one["spec"].get("affinity"))]  # fmt: skip
        if fitting:
            pod, on = fitting[number % len(fitting)]
            pod["spec"]["nodeName"] = on

    def release(self, crashes: bool) -> None:
        """As the engine does it, or only the first half."""
        found = release(self.waiting, self.nodes, NOW)
        for pod, taken in found.renewed:
            self.waiting[self.waiting.index(pod)] = without(pod, taken)
        if not crashes:
            self.waiting = [one for one in self.waiting if one not in found.gone]


STEPS = st.tuples(st.sampled_from(["ask", "start", "arrive", "bind"]), st.integers(0, 9), st.booleans(), st.booleans())


@given(st.lists(STEPS, max_size=30))
def test_as_many_placeholders_go_as_nodes_come(steps: Sequence[tuple[str, int, bool, bool]]) -> None:
    """Any order of requests, of nodes that start and arrive, of bindings by the cluster, and of crashes."""
    cluster = Cluster()
    for what, number, looks, crashes in steps:
        getattr(cluster, what)(number)
        if looks:
            cluster.release(crashes)
    cluster.release(crashes=False)
    cluster.bind(0)
    cluster.release(crashes=False)
    assert len(cluster.waiting) == cluster.asked - cluster.arrived
