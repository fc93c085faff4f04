"""Nodes and their devices, and the part of them that an attempt holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.reasons import Reason

INSTANCE_INDEX = 100
"""The index of a MIG instance: this times (its GPU's index + 1), plus its place on the GPU."""


class Isolation(StrEnum):
    """The strength with which a share's bounds are enforced, best first. The level in force is the one shown."""

    DRIVER_LIMIT = "driver-limit"
    MIG = "mig"
    MPS = "mps"
    COOPERATIVE = "cooperative"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU (or MIG instance) of a node, as its node reports it.

    `isolation` is the strongest level available on it, `unavailable` gives the reason for each other level. `slots`:
    the number of equal parts in which it can be shared (0: any parts). For a MIG instance `mig_profile` is the profile
    (`1g.10gb`), `parent_*` the GPU that contains it; the GPU itself is then not listed. `peers` are the uuids of the
    GPUs that it reaches by NVLink, each with the number of links. `numa` is None if unknown. `context_mib` is the
    measured memory of a process's CUDA context; 0 if not measured.
    """

    uuid: str
    index: int
    model: str
    memory_mib: int
    simulated: bool = False
    isolation: Isolation = Isolation.COOPERATIVE
    faults: tuple[Reason, ...] = ()  # why it takes no new work; empty when healthy
    driver: str = ""
    cuda: str = ""
    compute_capability: str = ""
    pci: str = ""
    numa: int | None = None
    slots: int = 0
    mig_profile: str = ""
    parent_uuid: str | None = None
    parent_memory_mib: int = 0
    peers: tuple[tuple[str, int], ...] = ()
    notices: tuple[Reason, ...] = ()  # it takes work: throttled, an application's Xid, ECC
    unavailable: tuple[tuple[Isolation, Reason], ...] = ()
    context_mib: int = 0

    @property
    def label(self) -> str:
        """The name of the device on its node: `0`; for a MIG instance its GPU and its place there, `0:2`."""
        return _label(self.index, is_instance=self.parent_uuid is not None)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a device given to an attempt: VRAM in MiB and compute in thousandths of the device."""

    device_uuid: str
    device_index: int
    model: str
    memory_mib: int
    compute_milli: int
    whole: bool
    device_memory_mib: int
    simulated: bool = False
    isolation: Isolation = Isolation.COOPERATIVE

    @property
    def label(self) -> str:
        """The name of its device, as `Device.label`: the uuid of a MIG instance begins with MIG-."""
        return _label(self.device_index, is_instance=self.device_uuid.startswith("MIG-"))


def _label(index: int, *, is_instance: bool) -> str:
    if not is_instance:
        return str(index)
    device, place = divmod(index, INSTANCE_INDEX)
    return f"{device - 1}:{place}"


@dataclass(frozen=True, slots=True)
class Allocation:
    """An attempt's allocation on a node: together never more than the node has. `at` is when it was given."""

    attempt_id: str
    node: str
    cpus_milli: int
    memory_mib: int
    shares: tuple[Share, ...]
    at: float


class NodeState(StrEnum):
    """`ready` takes work. `draining` keeps its workloads and takes no more, because a user drained it; `faulty`
    likewise, because of a fault. `lost` has not reported for too long, or its engine gave it up.
    """

    READY = "ready"
    DRAINING = "draining"
    FAULTY = "faulty"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The report of an engine or agent on a node's present state. CPUs in thousandths, memory and disk in MiB.

    `disk_pressure`: its disk is nearly full, so it takes only sessions, in which users can delete files. `gone`: the
    engine
    knows the node and has given it up; the faults give the reason. `awaits_admin`: why its workloads may still run, so
    that they start elsewhere only once the node is back or an admin removes it; None if they cannot.
    """

    name: str
    cpus_milli: int
    memory_mib: int
    devices: tuple[Device, ...] = ()
    disk_free_mib: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    faults: tuple[Reason, ...] = ()
    disk_pressure: Reason | None = None
    gone: bool = False
    awaits_admin: Reason | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a site as the control plane knows it. `drained_by` is the user who drained it, empty if it is not
    drained; `leave_by` (unix seconds) is the deadline for workloads on a drained node, None for no deadline. `reasons`:
    why it is in its state.
    """

    name: str
    site: str
    engine: str
    state: NodeState
    report: NodeReport
    observed_at: float
    drained_by: str = ""
    reasons: tuple[Reason, ...] = ()
    leave_by: float | None = None

    @property
    def drain(self) -> bool:
        """True if a user drained it."""
        return bool(self.drained_by)
