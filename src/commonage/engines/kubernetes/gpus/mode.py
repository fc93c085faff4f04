"""The protocol of a GPU mode, and the cluster's objects that modes read. Pure: called by the engine and by `doctor`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Device, Isolation, Share
from commonage.domain.reasons import Reason
from commonage.engines.kubernetes.manifest import Manifest
from commonage.engines.kubernetes.placement.quantities import devices, milli

ATTEMPT_LABEL, INSTALLATION_LABEL = "commonage.dev/attempt", "commonage.dev/installation"
GRANTED = "commonage.dev/gpu-uuids"
"""Annotation of a Pod: uuids that a device plugin gave its first container, as that container's variable names them."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_UUID = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9./-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """Lists of the cluster's objects that tell which modes it has. None: its API has no such kind, or refuses it."""

    nodes: Sequence[Manifest]
    slices: Sequence[Manifest] | None = None
    device_classes: Sequence[Manifest] | None = None
    runtime_classes: Sequence[Manifest] | None = None
    webhooks: Sequence[Manifest] | None = None
    fractioning: Sequence[Manifest] | None = None


@dataclass(frozen=True, slots=True)
class NodeObjects:
    """A node, its ResourceSlices, the Pods on it, and the ResourceClaims of all Pods.

    `installation`: the value of this installation's label; empty: all attempts belong to it.
    """

    node: Manifest
    slices: Sequence[Manifest] = ()
    pods: Sequence[Manifest] = ()
    claims: Sequence[Manifest] = ()
    installation: str = ""

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    def is_foreign(self, manifest: Manifest) -> bool:
        labels = manifest["metadata"].get("labels", {})
        is_other = bool(self.installation) and labels.get(INSTALLATION_LABEL) != self.installation
        return ATTEMPT_LABEL not in labels or is_other


@dataclass(frozen=True, slots=True)
class Detection:
    """Whether the cluster has a mode: `missing` is why not. `isolation`: the level of a share in it; None: no shares.

    `notices`: what an admin should know of it although it can be used.
    """

    mode: str
    isolation: Isolation | None
    missing: Reason | None = None
    notices: tuple[Reason, ...] = ()

    @property
    def is_present(self) -> bool:
        return self.missing is None


@dataclass(frozen=True, slots=True)
class Applied:
    """A Pod with its GPUs, and the other objects that it needs, which it owns (`manifest.owned`).

    The Pod is created first: it waits, unbound, until the objects that it names exist.
    """

    pod: Manifest
    extras: tuple[Manifest, ...] = ()


class GpuMode(Protocol):
    """One way to give GPUs to a Pod. All methods are pure: they return new manifests and change none."""

    @property
    def name(self) -> str: ...

    def detect(self, cluster: ClusterObjects) -> Detection: ...

    def devices(self, objects: NodeObjects) -> tuple[Device, ...]:
        """The GPUs of a node. GPUs that other Pods hold have a fault, and take no work."""
        ...

    def apply(self, pod: Manifest, shares: Sequence[Share]) -> Applied:
        """Give the Pod's first container these shares, which are not empty. Raises EngineFailure."""
        ...

    def granted(self, pod: Manifest, claims: Sequence[Manifest] = ()) -> tuple[str, ...]:
        """Uuids that the Pod really has; empty while they are not known."""
        ...


# --- Pods -------------------------------------------------------------------------------------------------------------


def hide_gpus(pod: Manifest, *, but_first: bool = False) -> Manifest:
    """A copy in which no container sees a GPU, whatever its image sets; `but_first`: the first may.

    A Pod's variable wins over a device plugin's, so the first must not have the variable where the plugin sets it.
    """
    changed = copy.deepcopy(pod)
    spec = changed["spec"]
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        _unset(container, VISIBLE)
        if not (but_first and container is spec["containers"][0]):
            set_variables(container, {VISIBLE: "void"})
    return changed


def set_variables(container: Manifest, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        _unset(container, name)
        container.setdefault("env", []).append({"name": name, "value": value})


def _unset(container: Manifest, name: str) -> None:
    if "env" in container:
        container["env"] = [one for one in container["env"] if one["name"] != name]
        if not container["env"]:
            del container["env"]


def add_resources(container: Manifest, resources: Mapping[str, int]) -> None:
    """Extended resources: requests and limits are equal."""
    placed = container.setdefault("resources", {})
    for kind in ("requests", "limits"):
        placed.setdefault(kind, {}).update({name: str(count) for name, count in resources.items()})


def annotate(pod: Manifest, annotations: Mapping[str, str]) -> None:
    pod["metadata"].setdefault("annotations", {}).update(annotations)


def annotation(pod: Manifest, name: str) -> str:
    return str(pod["metadata"].get("annotations", {}).get(name, ""))


def uuids_in(text: str) -> tuple[str, ...]:
    """The uuids in a container's variable or its output; empty if one of them is not a uuid, such as `all` or an
    index.
    """
    words = tuple(word.strip() for word in text.strip().split(","))
    return words if all(_UUID.fullmatch(word) for word in words) else ()


def granted_by_plugin(pod: Manifest) -> tuple[str, ...]:
    return uuids_in(annotation(pod, GRANTED))


def holds_devices(pod: Manifest) -> bool:
    """False once its containers have ended for good."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def requested(pod: Manifest, resource: str) -> int:
    """The number of an extended resource that a Pod holds: its containers' together, or a larger init container's."""

    def asked(containers: Iterable[Manifest]) -> list[int]:
        return [devices(one.get("resources", {}).get("requests", {}).get(resource, 0)) for one in containers]

    spec = pod["spec"]
    return max([sum(asked(spec["containers"])), *asked(spec.get("initContainers", ()))])


# --- shares -----------------------------------------------------------------------------------------------------------


def uuids_of(shares: Sequence[Share]) -> tuple[str, ...]:
    """Uuids of the devices, each once. Raises EngineFailure for one that cannot be the cluster's."""
    for share in shares:
        if share.simulated or not _UUID.fullmatch(share.device_uuid):
            raise EngineFailure(f"the device {share.device_uuid!r} is no GPU of the cluster: check the site's GPU mode")
    return tuple(dict.fromkeys(share.device_uuid for share in shares))


def equal_share(shares: Sequence[Share], mode: str) -> Share:
    """The one size of all shares, for a mode that has one size for all. Raises EngineFailure."""
    sizes = {(share.memory_mib, share.compute_milli) for share in shares}
    if len(sizes) > 1:
        raise EngineFailure(f"the GPU mode {mode} gives all shares of a Pod one size: request shares of equal size")
    return shares[0]


def mib_of(quantity: str | int) -> int:
    """Whole MiB of a quantity of memory, rounded down; 0 if it is none."""
    try:
        return max(0, milli(quantity) // 1000 // 1024**2)
    except ValueError:
        return 0
