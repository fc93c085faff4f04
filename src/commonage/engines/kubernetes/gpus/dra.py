"""Mode `dra`: dynamic resource allocation with NVIDIA's driver. Each share is one device request by uuid.

A device that its driver publishes for several allocations has consumable memory: the scheduler adds up shares and
refuses what does not fit. Nothing enforces them on the GPU. Other devices, also MIG devices, are given whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import INSTANCE_INDEX, Device, Isolation, Share
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import (
    ClusterObjectMissing,
    GpuDevicesNotShared,
    GpuHeldByOthers,
    GpuMemoryUnknown,
    GpuTainted,
)
from commonage.engines.kubernetes.gpus.mode import (
    Applied,
    ClusterObjects,
    Detection,
    NodeObjects,
    hide_gpus,
    mib_of,
    uuids_of,
)
from commonage.engines.kubernetes.manifest import Manifest

DRIVER = "gpu.nvidia.com"
GPU_CLASS, MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"
CLAIM = "gpus"
_MEMORY = "memory"
_INDEX = re.compile(r"gpu-(\d+)", re.ASCII)


class Dra:
    """`driver` and the classes differ only in tests of other drivers."""

    name = "dra"

    def __init__(self, driver: str = DRIVER, gpu_class: str = GPU_CLASS, mig_class: str = MIG_CLASS) -> None:
        self._driver, self._gpu_class, self._mig_class = driver, gpu_class, mig_class

    def detect(self, cluster: ClusterObjects) -> Detection:
        slices = [one for one in cluster.slices or () if one["spec"]["driver"] == self._driver]
        is_shared = any(_is_shared(device) for one in slices for device in one["spec"].get("devices", ()))
        isolation = Isolation.ACCOUNTED if is_shared else None
        notices = () if is_shared or not slices else (GpuDevicesNotShared(),)
        return Detection(self.name, isolation, self._missing(cluster, slices), notices)

    def _missing(self, cluster: ClusterObjects, slices: Sequence[Manifest]) -> Reason | None:
        if cluster.slices is None or cluster.device_classes is None:
            return ClusterObjectMissing(kind="API", name="resource.k8s.io/v1")
        if not any(one["metadata"]["name"] == self._gpu_class for one in cluster.device_classes):
            return ClusterObjectMissing(kind="DeviceClass", name=self._gpu_class)
        return None if slices else ClusterObjectMissing(kind="ResourceSlice", name=self._driver)

    def devices(self, objects: NodeObjects) -> tuple[Device, ...]:
        held = set(self._held_by_others(objects))
        found: list[Device] = []
        places: dict[str, int] = {}
        for pool, device in self._published(objects):
            attributes = self._attributes(device)
            uuid = str(attributes.get("uuid", ""))
            if not uuid:
                continue  # a MIG device that its driver would make on demand has none yet
            faults = _faults(device)
            if (pool, device["name"]) in held:
                faults.append(GpuHeldByOthers())
            found.append(self._device(device, attributes, faults, places))
        return tuple(sorted(found, key=lambda one: (one.index, one.uuid)))

    def _device(
        self, device: Manifest, attributes: dict[str, object], faults: list[Reason], places: dict[str, int]
    ) -> Device:
        number = _INDEX.search(device["name"])
        index, parent = int(number[1]) if number else 0, attributes.get("parentUUID")
        memory_mib = _memory_mib(device)
        if not memory_mib:
            faults.append(GpuMemoryUnknown())
        if parent is not None:
            place = places.setdefault(str(parent), 0)
            places[str(parent)] += 1
            index = INSTANCE_INDEX * (index + 1) + place
        isolation = Isolation.ACCOUNTED if _is_shared(device) else Isolation.COOPERATIVE
        return Device(
            str(attributes["uuid"]),
            index,
            str(attributes.get("productName", "NVIDIA GPU")),
            memory_mib,
            isolation=Isolation.MIG if parent is not None and not _is_shared(device) else isolation,
            faults=tuple(faults),
            driver=str(attributes.get("driverVersion", "")),
            cuda=str(attributes.get("cudaDriverVersion", "")),
            compute_capability=".".join(str(attributes.get("cudaComputeCapability", "")).split(".")[:2]),
            pci=str(attributes.get("pciBusID", "")),
            numa=_int_or_none(attributes.get("numaNode")),
            slots=0 if _is_shared(device) else 1,
            mig_profile=str(attributes.get("profile", "")),
            parent_uuid=None if parent is None else str(parent),
        )

    def apply(self, pod: Manifest, shares: Sequence[Share]) -> Applied:
        uuids_of(shares)  # they are put into an expression
        changed = hide_gpus(pod)  # the driver's CDI devices do not read the variable
        name = pod["metadata"]["name"]
        changed["spec"].setdefault("resourceClaims", []).append({"name": CLAIM, "resourceClaimName": name})
        resources = changed["spec"]["containers"][0].setdefault("resources", {})
        resources.setdefault("claims", []).append({"name": CLAIM})
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "labels") if key in pod["metadata"]}
        requests = [self._request(number, share) for number, share in enumerate(shares)]
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": {"devices": {"requests": requests}},
        }
        return Applied(changed, (claim,))

    def _request(self, number: int, share: Share) -> Manifest:
        if not share.whole and share.isolation is not Isolation.ACCOUNTED:
            raise EngineFailure(
                f"the cluster gives the device {share.device_uuid} whole only: request a whole GPU or a MIG profile"
            )
        is_mig = share.device_uuid.startswith("MIG-")
        expression = (
            f"device.driver == '{self._driver}' && device.attributes['{self._driver}'].uuid == '{share.device_uuid}'"
        )
        exactly: Manifest = {
            "deviceClassName": self._mig_class if is_mig else self._gpu_class,
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": [{"cel": {"expression": expression}}],
        }
        if share.isolation is Isolation.ACCOUNTED:
            exactly["capacity"] = {"requests": {_MEMORY: f"{share.memory_mib}Mi"}}
        return {"name": f"gpu-{number}", "exactly": exactly}

    def granted(self, pod: Manifest, claims: Sequence[Manifest] = ()) -> tuple[str, ...]:
        """The scheduler can allocate only the uuids that a claim's selectors name, so these are the ones given."""
        name = pod["metadata"]["name"]
        for claim in claims:
            if claim["metadata"]["name"] == name and claim.get("status", {}).get("allocation"):
                given = {one["request"] for one in claim["status"]["allocation"]["devices"]["results"]}
                return tuple(_uuid_of(one) for one in claim["spec"]["devices"]["requests"] if one["name"] in given)
        return ()

    # --- what the driver publishes ------------------------------------------------------------------------------------

    def _published(self, objects: NodeObjects) -> Iterator[tuple[str, Manifest]]:
        """Devices of a node and their pools. Slices of an older generation are void."""
        ours = [
            one
            for one in objects.slices
            if one["spec"]["driver"] == self._driver and one["spec"].get("nodeName") == objects.name
        ]
        newest: dict[str, int] = {}
        for one in ours:
            pool = one["spec"]["pool"]
            newest[pool["name"]] = max(newest.get(pool["name"], 0), int(pool["generation"]))
        for one in sorted(ours, key=lambda each: str(each["metadata"]["name"])):
            pool = one["spec"]["pool"]
            if int(pool["generation"]) == newest[pool["name"]]:
                for device in one["spec"].get("devices", ()):
                    yield str(pool["name"]), device

    def _held_by_others(self, objects: NodeObjects) -> Iterator[tuple[str, str]]:
        for claim in objects.claims:
            if objects.is_foreign(claim):
                for one in (claim.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", ()):
                    if one["driver"] == self._driver and not one.get("adminAccess"):
                        yield str(one["pool"]), str(one["device"])

    def _attributes(self, device: Manifest) -> dict[str, object]:
        """Values by name, without the domains `DRIVER/` and `resource.kubernetes.io/`."""
        return {
            name.rpartition("/")[2]: next(iter(value.values()))
            for name, value in device.get("attributes", {}).items()
            if name.partition("/")[0] in (self._driver, "resource.kubernetes.io") or "/" not in name
        }


def _is_shared(device: Manifest) -> bool:
    """Whether several claims can share it and its memory is added up: a request policy makes memory consumable."""
    return bool(device.get("allowMultipleAllocations")) and _memory_mib(device) > 0


def _memory_mib(device: Manifest) -> int:
    for name, capacity in device.get("capacity", {}).items():
        if name.rpartition("/")[2] == _MEMORY:
            return mib_of(capacity["value"])
    return 0


def _faults(device: Manifest) -> list[Reason]:
    return [
        GpuTainted(key=one["key"], effect=one["effect"])
        for one in device.get("taints", ())
        if one["effect"] in ("NoSchedule", "NoExecute")
    ]


def _uuid_of(request: Manifest) -> str:
    expression: str = request["exactly"]["selectors"][0]["cel"]["expression"]
    return expression.rpartition("== '")[2].rstrip("'")


def _int_or_none(value: object) -> int | None:
    return value if isinstance(value, int) else None
