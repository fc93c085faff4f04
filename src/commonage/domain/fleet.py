"""Machines and their cards, and the part of them that an attempt holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

INSTANCE_INDEX = 100
"""The index of a MIG instance is this times (its card's index + 1), plus its place on the card."""


class Isolation(StrEnum):
    """How strongly a share is kept within its bounds, best first. The level that holds is the one shown."""

    DRIVER_LIMIT = "driver-limit"
    MIG = "mig"
    MPS = "mps"
    COOPERATIVE = "cooperative"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU (or MIG instance) of a node, as its node reports it.

    `isolation` is the strongest level that holds on it, `unavailable` says of each other level why it does not.
    `slots`: it is shared in so many equal parts only (0: in any). Of a MIG instance `mig_profile` is the profile
    (`1g.10gb`), `parent_*` the card that it is a part of; the card itself is then not listed. `peers` are the uuids of
    the cards that it reaches by NVLink, each with the number of links. `numa` is None where nobody tells. `context_mib`
    is what a process's CUDA context takes of it, as it was measured; 0 where it was not.
    """

    uuid: str
    index: int
    model: str
    memory_mib: int
    simulated: bool = False
    isolation: Isolation = Isolation.COOPERATIVE
    faults: tuple[str, ...] = ()  # why it takes no new work; empty when healthy
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
    notices: tuple[str, ...] = ()  # worth knowing, no reason to take no work: throttled, an application's Xid, ECC
    unavailable: tuple[tuple[Isolation, str], ...] = ()
    context_mib: int = 0

    @property
    def label(self) -> str:
        """How people call it on its machine: `0`; of a MIG instance its card and its place there, `0:2`."""
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
        """How people call its device, as `Device.label`: of a MIG instance the uuid begins with MIG-."""
        return _label(self.device_index, is_instance=self.device_uuid.startswith("MIG-"))


def _label(index: int, *, is_instance: bool) -> str:
    if not is_instance:
        return str(index)
    card, place = divmod(index, INSTANCE_INDEX)
    return f"{card - 1}:{place}"


@dataclass(frozen=True, slots=True)
class Lease:
    """An attempt's hold on a node: never more than the node has. `at` is when it was given."""

    attempt_id: str
    node: str
    cpus_milli: int
    memory_mib: int
    shares: tuple[Share, ...]
    at: float


class NodeState(StrEnum):
    """`ready` takes work. `draining` keeps what it runs and takes no more, as somebody wishes; `faulty` likewise, for
    something is wrong with it. `lost` was not seen for too long, or was given up by its engine."""

    READY = "ready"
    DRAINING = "draining"
    FAULTY = "faulty"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What an engine or agent says of a machine right now. cpus in thousandths, memory and disk in MiB.

    `tight` says in words that its disk is nearly full: it takes nothing but sessions, in which people can delete.
    `gone`: the engine knows of the machine, and has given it up; why is among the faults. `undecided`: why what ran
    there may run on, and so begins elsewhere only once the machine is back or an admin removes it; empty if it may not.
    """

    name: str
    cpus_milli: int
    memory_mib: int
    devices: tuple[Device, ...] = ()
    disk_free_mib: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    faults: tuple[str, ...] = ()
    tight: str = ""
    gone: bool = False
    undecided: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a site as the control plane knows it. `drained_by` is who wishes that it takes no work, empty if
    nobody does; `leave_by` (unix seconds) is when whatever still runs on a drained one must leave, None for never.
    """

    name: str
    site: str
    engine: str
    state: NodeState
    report: NodeReport
    seen_at: float
    drained_by: str = ""
    reason: str = ""
    leave_by: float | None = None

    @property
    def drain(self) -> bool:
        """True if somebody wishes that it takes no work."""
        return bool(self.drained_by)
