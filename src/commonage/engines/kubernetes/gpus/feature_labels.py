"""Model, memory and MIG profiles of a node's GPUs, from the labels of NVIDIA's GPU feature discovery.

Labels describe all GPUs of a node at once, and say nothing of a GPU's uuid. A share is never inferred from them: the
replicas of time-slicing are no shares, because nothing bounds them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from commonage.engines.kubernetes.manifest import Manifest

_PREFIX = "nvidia.com/"
_PRODUCT = f"{_PREFIX}gpu.product"
_MIG = re.compile(r"nvidia\.com/(mig-(\d+g\.\d+gb(?:\.[a-z]+)*))", re.ASCII)
_SHARED = "-SHARED"


@dataclass(frozen=True, slots=True)
class GpuLabels:
    """`driver_major` 0, `driver` empty: not known. `replicas`: how often the device plugin hands out each GPU."""

    model: str
    memory_mib: int
    count: int
    replicas: int
    driver: str
    driver_major: int
    compute_capability: str


def gpu_labels(node: Manifest) -> GpuLabels:
    labels: dict[str, str] = node["metadata"].get("labels", {})

    def text(*names: str) -> str:
        return next((labels[_PREFIX + name] for name in names if labels.get(_PREFIX + name)), "")

    def number(*names: str) -> int:
        found = text(*names)
        return int(found) if found.isascii() and found.isdigit() else 0

    replicas = number("gpu.replicas")
    if labels.get(_PRODUCT, "").endswith(_SHARED):
        replicas = max(replicas, 2)
    # Feature discovery renamed these labels; both forms are on nodes today.
    driver = text("cuda.driver-version.full") or ".".join(
        part for part in (text("cuda.driver.major"), text("cuda.driver.minor"), text("cuda.driver.rev")) if part
    )
    capability = ".".join(part for part in (text("gpu.compute.major"), text("gpu.compute.minor")) if part)
    return GpuLabels(
        model=labels.get(_PRODUCT, "").removesuffix(_SHARED).replace("-", " ") or "NVIDIA GPU",
        memory_mib=number("gpu.memory"),
        count=number("gpu.count"),
        replicas=replicas,
        driver=driver,
        driver_major=number("cuda.driver-version.major", "cuda.driver.major"),
        compute_capability=capability,
    )


def mig_profile(resource: str) -> str:
    """The profile of a resource such as nvidia.com/mig-1g.10gb; empty if it is another."""
    found = _MIG.fullmatch(resource)
    return found[2] if found else ""


def mig_memory_mib(node: Manifest, profile: str) -> int:
    """Memory of an instance as its label says it; 0 without one."""
    found = str(node["metadata"].get("labels", {}).get(f"{_PREFIX}mig-{profile}.memory", ""))
    return int(found) if found.isascii() and found.isdigit() else 0
