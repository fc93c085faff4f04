"""The GPU modes: detection, devices, and Pods. Pods are compared with golden files that API schemas accept."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Isolation, Share
from commonage.domain.reasons.devices import (
    ClusterObjectMissing,
    DriverTooOld,
    FractioningNotReady,
    GpuDevicesNotShared,
    GpuHeldByOthers,
    GpuMemoryUnknown,
    GpuSharesOwnedByScheduler,
    GpuTainted,
    GpuTimeSliced,
)
from commonage.engines.kubernetes.gpus.dra import Dra
from commonage.engines.kubernetes.gpus.env import Env
from commonage.engines.kubernetes.gpus.feature_labels import gpu_labels
from commonage.engines.kubernetes.gpus.fractioning import DRIVER_LABEL, Fractioning
from commonage.engines.kubernetes.gpus.hami import ALLOCATED, REGISTER, Hami
from commonage.engines.kubernetes.gpus.mode import (
    GRANTED,
    VISIBLE,
    ClusterObjects,
    GpuMode,
    NodeObjects,
    hide_gpus,
    mib_of,
    uuids_in,
)
from commonage.engines.kubernetes.gpus.modes import MODES, best_mode, detect_all
from commonage.engines.kubernetes.gpus.plugin import Plugin
from commonage.engines.kubernetes.gpus.reservations import reservation
from commonage.engines.kubernetes.manifest import Manifest, owned

GOLDEN = Path(__file__).with_name("golden")
VERSIONS = ("1.34", "1.36", "1.37")
A, B = "GPU-0a3b5c7d-0000-4000-8000-000000000001", "GPU-0a3b5c7d-0000-4000-8000-000000000002"
INSTANCE = "MIG-0a3b5c7d-0000-4000-8000-000000000003"
TOTAL_MIB = 81_920

POD: Manifest = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "cm-a1",
        "namespace": "commonage-physics",
        "labels": {"commonage.dev/attempt": "a1"},
    },
    "spec": {
        "initContainers": [{"name": "files", "image": "registry.test/files:1"}],
        "containers": [
            {
                "name": "main",
                "image": "registry.test/cuda:1",
                "env": [{"name": "LANG", "value": "C.UTF-8"}, {"name": VISIBLE, "value": "all"}],
                "resources": {"limits": {"memory": "4Gi"}, "requests": {"cpu": "2"}},
            },
            {"name": "sidecar", "image": "registry.test/sidecar:1"},
        ],
        "restartPolicy": "Never",
    },
}


def share(uuid: str, memory_mib: int = 8192, *, isolation: Isolation, whole: bool = False, milli: int = 100) -> Share:
    return Share(uuid, 0, "NVIDIA H100", memory_mib, milli, whole, TOTAL_MIB, isolation=isolation)


def node(name: str = "gpu-1", labels: dict[str, str] | None = None, **allocatable: str) -> Manifest:
    resources = {key.replace("__", "/").replace("_", "-"): value for key, value in allocatable.items()}
    found: Manifest = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "status": {"allocatable": resources},
    }
    return found


def gpu_node(labels: dict[str, str] | None = None, resource: str = "nvidia.com/gpu", count: int = 2) -> Manifest:
    found = node(
        labels={
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.memory": "81559",
            "nvidia.com/gpu.count": "2",
            "nvidia.com/cuda.driver-version.major": "615",
        }
        | (labels or {})
    )
    found["status"]["allocatable"][resource] = str(count)
    return found


def device(name: str, uuid: str, *, is_shared: bool = True, **attributes: object) -> Manifest:
    kinds = {int: "int", str: "string"}
    capacity: Manifest = {"value": "80Gi"}
    made: Manifest = {
        "name": name,
        "attributes": {
            "uuid": {"string": uuid},
            "type": {"string": "gpu"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "driverVersion": {"version": "615.10.0"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"},
        }
        | {name: {kinds[type(value)]: value} for name, value in attributes.items()},
        "capacity": {"memory": capacity},
    }
    if is_shared:
        made["allowMultipleAllocations"] = True
        capacity["requestPolicy"] = {"default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"}}
    return made


def resource_slice(*devices: Manifest, generation: int = 1, name: str = "gpu-1-slice") -> Manifest:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "gpu-1",
            "pool": {"name": "gpu-1", "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def webhook(name: str, namespace: str = "", service: str = "") -> Manifest:
    client = {"service": {"name": service, "namespace": namespace}}
    return {"metadata": {"name": name}, "webhooks": [{"name": name, "clientConfig": client}]}


GPU_CLASS: Manifest = {"metadata": {"name": "gpu.nvidia.com"}}
READY: Manifest = {
    "metadata": {"name": "default"},
    "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "AllReady"}]},
}
FRACTIONED = gpu_node({DRIVER_LABEL: "615"})
CASES: dict[str, tuple[GpuMode, tuple[Share, ...]]] = {
    "fractioning": (Fractioning(), (share(A, isolation=Isolation.DRIVER_LIMIT),)),
    "dra": (Dra(), (share(A, isolation=Isolation.ACCOUNTED), share(B, isolation=Isolation.ACCOUNTED))),
    "dra-mig": (Dra(), (share(INSTANCE, 20_096, whole=True, isolation=Isolation.MIG),)),
    "hami": (Hami(), (share(A, isolation=Isolation.PRELOAD),)),
    "env": (Env(), (share(A, isolation=Isolation.COOPERATIVE),)),
    "plugin": (
        Plugin(),
        tuple(share(f"plugin-gpu-gpu-1-{n}", TOTAL_MIB, whole=True, isolation=Isolation.COOPERATIVE) for n in (0, 1)),
    ),
    "plugin-mig": (Plugin(), (share("MIG-plugin-1g.10gb-gpu-1-0", 9728, whole=True, isolation=Isolation.MIG),)),
}


# --- Pods -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_pod_is_the_golden_one_and_valid_for_each_minor(case: str) -> None:
    mode, shares = CASES[case]
    before = copy.deepcopy(POD)

    applied = mode.apply(POD, shares)

    assert before == POD
    made = [applied.pod, *applied.extras]
    assert made == json.loads((GOLDEN / f"{case}.json").read_text(encoding="utf-8"))
    for manifest in made:
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_reservation_is_valid_for_each_minor() -> None:
    made = reservation("gpu-1", 0, namespace="commonage", image="registry.test/base:1", installation="here")
    for version in VERSIONS:
        kubernetes_validate.validate(made, version, strict=True)
    assert made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_pod_without_a_share_sees_no_gpu_in_any_container() -> None:
    spec = hide_gpus(POD)["spec"]
    seen = [
        [one["value"] for one in container["env"] if one["name"] == VISIBLE]
        for container in [*spec["initContainers"], *spec["containers"]]
    ]
    assert seen == [["void"]] * 3


@pytest.mark.parametrize("case", CASES)
def test_only_the_first_container_gets_gpus(case: str) -> None:
    mode, shares = CASES[case]
    spec = mode.apply(POD, shares).pod["spec"]
    for container in (spec["initContainers"][0], spec["containers"][1]):
        assert container["env"] == [{"name": VISIBLE, "value": "void"}]
        assert "resources" not in container


@pytest.mark.parametrize("mode", [Plugin(), Hami()])
def test_variable_of_a_device_plugin_is_not_overwritten(mode: GpuMode) -> None:
    case = CASES[mode.name][1]
    variables = {one["name"] for one in mode.apply(POD, case).pod["spec"]["containers"][0]["env"]}
    assert variables == {"LANG"}


def test_claim_is_owned_by_its_pod() -> None:
    applied = Dra().apply(POD, CASES["dra"][1])
    pod = applied.pod | {"metadata": applied.pod["metadata"] | {"uid": "u-1"}}
    (owner,) = owned(applied.extras[0], pod)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "cm-a1", "u-1")


@pytest.mark.parametrize("mode", MODES[:4])
@pytest.mark.parametrize("uuid", ["all", "", "GPU-1' || true || '", "0"])
def test_refuses_a_device_that_is_no_uuid(mode: GpuMode, uuid: str) -> None:
    with pytest.raises(EngineFailure, match="is no GPU of the cluster"):
        mode.apply(POD, [share(uuid, isolation=Isolation.ACCOUNTED)])


def test_refuses_part_of_a_device_that_is_given_whole() -> None:
    with pytest.raises(EngineFailure, match="whole"):
        Plugin().apply(POD, [share("plugin-gpu-gpu-1-0", isolation=Isolation.COOPERATIVE)])
    with pytest.raises(EngineFailure, match="whole"):
        Dra().apply(POD, [share(A, isolation=Isolation.COOPERATIVE)])


@pytest.mark.parametrize("mode", [Fractioning(), Hami()])
def test_refuses_shares_of_different_sizes_where_one_size_holds_for_all(mode: GpuMode) -> None:
    shares = [share(A, 1024, isolation=Isolation.PRELOAD), share(B, 2048, isolation=Isolation.PRELOAD)]
    with pytest.raises(EngineFailure, match="equal size"):
        mode.apply(POD, shares)


# --- sums -----------------------------------------------------------------------------------------------------------


@st.composite
def splits(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Shares (MiB, thousandths) that together fit into one device."""
    parts: list[tuple[int, int]] = []
    mib, milli = TOTAL_MIB, 1000
    # HAMi counts compute in hundredths, and 0 would be no limit: a share has at least one.
    while mib > 0 and milli >= 10 and len(parts) < 12:
        part = draw(st.integers(1, mib)), draw(st.integers(10, milli))
        parts.append(part)
        mib, milli = mib - part[0], milli - part[1]
        if draw(st.booleans()):
            break
    return parts


@given(splits())
def test_shares_in_a_mode_never_exceed_the_device(parts: Sequence[tuple[int, int]]) -> None:
    sums = Counter[str]()
    for memory_mib, milli in parts:
        accounted = share(A, memory_mib, milli=milli, isolation=Isolation.ACCOUNTED)
        claim = Dra().apply(POD, [accounted]).extras[0]
        sums["dra"] += mib_of(claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"])
        limits = Hami().apply(POD, [accounted]).pod["spec"]["containers"][0]["resources"]["limits"]
        sums["hami"] += int(limits["nvidia.com/gpumem"])
        sums["cores"] += int(limits["nvidia.com/gpucores"])
        noted = Fractioning().apply(POD, [accounted]).pod["metadata"]["annotations"]
        sums["fractioning"] += mib_of(noted["nvidia.com/container.main.gpu-memory.limit"])
        sums["portion"] += round(float(noted["nvidia.com/container.main.gpu-compute.portion"]) * 1000)
        env = {one["name"]: one["value"] for one in Env().apply(POD, [accounted]).pod["spec"]["containers"][0]["env"]}
        sums["env"] += int(env["NVIDIA_GPU_MEMORY_LIMIT"])
    assert sums["dra"] == sums["hami"] == sums["fractioning"] == sums["env"] <= TOTAL_MIB
    assert sums["cores"] <= 100
    assert sums["portion"] <= 1000


# --- detection ------------------------------------------------------------------------------------------------------


def test_cluster_without_gpus_has_no_mode_and_says_why() -> None:
    cluster = ClusterObjects([node(cpu="4")])
    assert best_mode(cluster) is None
    missing = {found.mode: found.missing for found in detect_all(cluster)}
    assert missing == {
        "fractioning": ClusterObjectMissing(kind="GpuFractioningConfig", name=""),
        "dra": ClusterObjectMissing(kind="API", name="resource.k8s.io/v1"),
        "hami": ClusterObjectMissing(kind="MutatingWebhookConfiguration", name="vgpu.hami.io"),
        "env": ClusterObjectMissing(kind="RuntimeClass", name="nvidia"),
        "plugin": ClusterObjectMissing(kind="Node resource", name="nvidia.com/gpu"),
    }


def test_best_mode_is_the_first_that_is_present() -> None:
    nodes = [FRACTIONED]
    runtime = [{"metadata": {"name": "nvidia"}}]
    slices = [resource_slice(device("gpu-0", A))]
    cluster = ClusterObjects(nodes, slices, [GPU_CLASS], runtime, [], [READY])
    assert [found.is_present for found in detect_all(cluster)] == [True, True, False, True, True]
    assert getattr(best_mode(cluster), "name", "") == "fractioning"
    assert getattr(best_mode(ClusterObjects(nodes, runtime_classes=runtime)), "name", "") == "env"
    assert getattr(best_mode(ClusterObjects(nodes)), "name", "") == "plugin"


def test_fractioning_needs_a_ready_configuration_a_new_driver_and_no_other_owner() -> None:
    def missing(nodes: list[Manifest], config: Manifest, *webhooks: Manifest) -> object:
        return Fractioning().detect(ClusterObjects(nodes, webhooks=webhooks, fractioning=[config])).missing

    failing: Manifest = {"status": {"conditions": [{"type": "Ready", "status": "False", "message": "no toolkit"}]}}
    assert missing([FRACTIONED], READY) is None
    assert missing([FRACTIONED], failing) == FractioningNotReady(error="no toolkit")
    assert missing([gpu_node({DRIVER_LABEL: "610"})], READY) == DriverTooOld(required="615", present="610")
    assert missing([gpu_node()], READY) == DriverTooOld(required="615", present="")
    kai = webhook("kai-admission", "kai-scheduler", "kai-admission")
    assert missing([FRACTIONED], READY, kai) == GpuSharesOwnedByScheduler(webhook="kai-admission")


def test_dra_without_consumable_capacity_has_no_shares() -> None:
    slices = [resource_slice(device("gpu-0", A, is_shared=False))]
    found = Dra().detect(ClusterObjects([node()], slices, [GPU_CLASS]))
    assert (found.is_present, found.isolation, found.notices) == (True, None, (GpuDevicesNotShared(),))


def test_env_is_hard_only_where_an_admin_and_the_driver_say_so() -> None:
    def isolation(mode: Env, major: str) -> object:
        nodes = [gpu_node({"nvidia.com/cuda.driver-version.major": major})]
        return mode.detect(ClusterObjects(nodes, runtime_classes=[{"metadata": {"name": "nvidia"}}])).isolation

    assert isolation(Env(), "615") is Isolation.COOPERATIVE
    assert isolation(Env(limits_honored=True), "610") is Isolation.COOPERATIVE
    assert isolation(Env(limits_honored=True), "615") is Isolation.DRIVER_LIMIT


# --- devices --------------------------------------------------------------------------------------------------------


def test_dra_devices_come_from_the_newest_generation_of_a_pool() -> None:
    old = resource_slice(device("gpu-9", B), generation=1, name="old")
    new = resource_slice(device("gpu-0", A), generation=2, name="new")
    (found,) = Dra().devices(NodeObjects(node(), [old, new]))
    assert (found.uuid, found.index, found.memory_mib, found.isolation) == (A, 0, TOTAL_MIB, Isolation.ACCOUNTED)
    assert (found.model, found.driver, found.compute_capability) == ("NVIDIA H100 80GB HBM3", "615.10.0", "9.0")
    assert (found.pci, found.slots, found.faults) == ("0000:01:00.0", 0, ())


def test_dra_shows_mig_instances_and_faults() -> None:
    instance = device("gpu-1-mig-1g10gb-19-0", INSTANCE, is_shared=False, parentUUID=B, profile="1g.10gb")
    tainted = device("gpu-0", A) | {"taints": [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]}
    pending = device("gpu-1-mig-2g20gb-14-2", "", is_shared=False, parentUUID=B)
    del pending["attributes"]["uuid"]
    first, second = Dra().devices(NodeObjects(node(), [resource_slice(instance, tainted, pending)]))
    assert first.faults == (GpuTainted(key="gpu.nvidia.com/xid", effect="NoSchedule"),)
    assert (second.label, second.mig_profile, second.isolation, second.slots) == ("1:0", "1g.10gb", Isolation.MIG, 1)
    assert second.parent_uuid == B


def test_device_in_a_foreign_claim_takes_no_work() -> None:
    result = {"driver": "gpu.nvidia.com", "pool": "gpu-1", "device": "gpu-0", "request": "r"}
    claim: Manifest = {"metadata": {"name": "x"}, "status": {"allocation": {"devices": {"results": [result]}}}}
    objects = NodeObjects(node(), [resource_slice(device("gpu-0", A))], claims=[claim])
    assert Dra().devices(objects)[0].faults == (GpuHeldByOthers(),)
    claim["metadata"]["labels"] = {"commonage.dev/attempt": "a1"}
    assert Dra().devices(objects)[0].faults == ()


def test_hami_devices_of_both_forms_of_its_annotation() -> None:
    rows = [
        {"id": A, "count": 10, "devmem": 81559, "devcore": 100, "type": "NVIDIA-NVIDIA H100", "health": True},
        {"id": B, "index": 1, "count": 10, "devmem": 81559, "devcore": 100, "type": "NVIDIA-NVIDIA H100", "numa": 1},
    ]
    text = f"{A},10,81559,100,NVIDIA-NVIDIA H100,0,true:{B},10,81559,100,NVIDIA-NVIDIA H100,1,false:"
    for form in (json.dumps(rows), text):
        registered = node()
        registered["metadata"]["annotations"] = {REGISTER: form}
        found = Hami().devices(NodeObjects(registered))
        assert [(one.uuid, one.index, one.memory_mib, one.numa) for one in found] == [
            (A, 0, 81559, 0),
            (B, 1, 81559, 1),
        ]
        assert [bool(one.faults) for one in found] == [False, True]
    pod: Manifest = {"metadata": {"annotations": {ALLOCATED: f"{A},NVIDIA,3000,0:;;"}}, "spec": {"containers": []}}
    assert Hami().devices(NodeObjects(registered, pods=[pod]))[0].faults == (GpuHeldByOthers(),)
    assert Hami().granted(pod) == (A,)


def test_reserved_gpus_are_the_devices_of_env() -> None:
    held = reservation("gpu-1", 0, namespace="commonage", image="x", installation="here")
    held["metadata"]["annotations"] = {GRANTED: A}
    unknown = reservation("gpu-1", 1, namespace="commonage", image="x", installation="here")
    (found,) = Env().devices(NodeObjects(gpu_node(), pods=[held, unknown]))
    assert (found.uuid, found.memory_mib, found.model, found.slots) == (A, 81559, "NVIDIA H100 80GB HBM3", 0)
    assert Fractioning().devices(NodeObjects(gpu_node(), pods=[held])) == ()
    (found,) = Fractioning().devices(NodeObjects(FRACTIONED, pods=[held]))
    assert found.isolation is Isolation.DRIVER_LIMIT


def test_plugin_devices_are_whole_and_fewer_by_what_others_hold() -> None:
    foreign: Manifest = {
        "metadata": {"name": "theirs"},
        "spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Running"},
    }
    first, second = Plugin().devices(NodeObjects(gpu_node(), pods=[foreign]))
    assert (first.slots, first.memory_mib, first.faults) == (1, 81559, ())
    assert second.faults == (GpuHeldByOthers(),)
    foreign["status"]["phase"] = "Succeeded"
    assert [one.faults for one in Plugin().devices(NodeObjects(gpu_node(), pods=[foreign]))] == [(), ()]


def test_plugin_shows_mig_profiles() -> None:
    labels = {"nvidia.com/mig-1g.10gb.memory": "9728"}
    found = Plugin().devices(NodeObjects(gpu_node(labels, "nvidia.com/mig-1g.10gb", 2)))
    assert [(one.label, one.mig_profile, one.memory_mib) for one in found] == [
        ("0:0", "1g.10gb", 9728),
        ("0:1", "1g.10gb", 9728),
    ]
    unlabeled = gpu_node({}, "nvidia.com/mig-2g.20gb", 1)
    assert Plugin().devices(NodeObjects(unlabeled))[0].faults == (GpuMemoryUnknown(),)


@pytest.mark.parametrize(
    ("labels", "resource"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-SHARED", "nvidia.com/gpu.replicas": "4"}, "nvidia.com/gpu"),
        ({"nvidia.com/gpu.replicas": "4"}, "nvidia.com/gpu.shared"),
    ],
)
def test_time_sliced_gpus_are_named_and_not_used(labels: dict[str, str], resource: str) -> None:
    sliced = gpu_node(labels, resource, 8)
    devices = Plugin().devices(NodeObjects(sliced))
    assert all(GpuTimeSliced(replicas=4) in one.faults for one in devices)
    assert Plugin().detect(ClusterObjects([sliced])).notices == (GpuTimeSliced(replicas=4),)
    assert not gpu_labels(sliced).model.endswith("SHARED")


# --- granted --------------------------------------------------------------------------------------------------------


def test_granted_uuids_are_those_that_the_cluster_gave() -> None:
    applied = Dra().apply(POD, CASES["dra"][1])
    claim = copy.deepcopy(applied.extras[0])
    assert Dra().granted(applied.pod, [claim]) == ()
    results = [{"request": name, "driver": "gpu.nvidia.com", "pool": "p", "device": "d"} for name in ("gpu-0", "gpu-1")]
    claim["status"] = {"allocation": {"devices": {"results": results}}}
    assert Dra().granted(applied.pod, [claim]) == (A, B)
    assert Env().granted(Env().apply(POD, CASES["env"][1]).pod) == (A,)
    assert Fractioning().granted(Fractioning().apply(POD, CASES["fractioning"][1]).pod) == (A,)
    given = copy.deepcopy(POD)
    given["metadata"]["annotations"] = {GRANTED: B}
    assert Plugin().granted(given) == (B,)


@pytest.mark.parametrize(
    ("text", "uuids"), [(f"{A},{B}\n", (A, B)), ("all", ()), ("0", ()), ("void", ()), ("", ()), (f"{A},0", ())]
)
def test_only_uuids_count_as_granted(text: str, uuids: tuple[str, ...]) -> None:
    assert uuids_in(text) == uuids


@pytest.mark.parametrize(
    ("quantity", "mib"), [("80Gi", 81920), ("85899345920", 81920), ("1.5Gi", 1536), ("1G", 953), ("x", 0), ("-1Gi", 0)]
)
def test_memory_quantities_are_whole_mib(quantity: str, mib: int) -> None:
    assert mib_of(quantity) == mib
