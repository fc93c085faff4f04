"""A GPU that several claims can share, as its driver publishes it, and the class of such devices."""

from collections.abc import Sequence
from dataclasses import replace

from commonage.domain.nodes import Isolation, Share
from commonage.domain.statuses import StartRequest
from commonage.engines.kubernetes.manifest import Manifest

GPU = "GPU-0a3b5c7d-0000-4000-8000-000000000001"
GIB = 1024
API = "resource.k8s.io/v1"


def device_class(name: str, driver: str) -> Manifest:
    selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}


def resource_slice(name: str, driver: str, node: str) -> Manifest:
    """One device of 80 GiB."""
    valid = {"min": "1Mi", "step": "1Mi", "max": "80Gi"}
    device = {
        "name": "gpu-0",
        "attributes": {"uuid": {"string": GPU}, "type": {"string": "gpu"}, "productName": {"string": "Test GPU"}},
        "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": valid}}},
        "allowMultipleAllocations": True,
    }
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [device],
    }
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def part(gib: int, uuid: str = GPU) -> Share:
    return Share(uuid, 0, "Test GPU", gib * GIB, 100, False, 80 * GIB, isolation=Isolation.ACCOUNTED)


def with_shares(request: StartRequest, shares: Sequence[Share]) -> StartRequest:
    return replace(request, allocation=replace(request.allocation, shares=tuple(shares)))
