"""Nodes and their devices, and the part of them that an attempt holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from commonage.domain.errors import InvalidInput
from commonage.domain.node_usage import NodeUsage
from commonage.domain.reasons import Reason

INSTANCE_INDEX = 100  # the index of a MIG instance: this times (its GPU's index + 1), plus its place on the GPU
_MAX_SIZE = 2**31 - 1
MAX_DEVICES_OF_NODE = 256
"""The scheduler's arrays are as wide as the node with the most devices. Eight GPUs in MIG instances have 56."""
_MAX_LABELS = 512
_MAX_NOTED = 256
"""Of the peers of a device, and of the faults or notices of a device or node."""

LOCAL_SITE = "local"
"""The site of the control plane's own engine."""


class NodeKey(NamedTuple):
    """Identifies a node by its site, and its name there. Two sites may have nodes of the same name."""

    site: str
    name: str

    @property
    def label(self) -> str:
        """The node as users read it: nodes of other sites with their site."""
        return self.name if self.site == LOCAL_SITE else str(self)

    def __str__(self) -> str:
        return f"{self.site}/{self.name}"


class DeviceKey(NamedTuple):
    """Identifies a device by its site, and its uuid there. A site may report any uuid, also one of another site."""

    site: str
    uuid: str

    def __str__(self) -> str:
        return f"{self.site}/{self.uuid}"


class Strength(StrEnum):
    """Whether a program can exceed a share. Hard: it cannot. Soft: not by mistake, but it can switch the limit off.

    Accounted: a scheduler adds up the shares, so that they fit, and nothing enforces them.
    """

    HARD = "hard"
    HARD_FOR_EACH_PROCESS = "hard-for-each-process"
    SOFT = "soft"
    ACCOUNTED = "accounted"
    COOPERATIVE = "cooperative"


class Isolation(StrEnum):
    """The level at which a share's bounds are enforced, best first. The level in force is the one shown."""

    DRIVER_LIMIT = "driver-limit"
    MIG = "mig"
    MPS = "mps"
    PRELOAD = "preload"
    ACCOUNTED = "accounted"
    COOPERATIVE = "cooperative"

    @property
    def strength(self) -> Strength:
        return _STRENGTHS[self]


_STRENGTHS = {
    Isolation.DRIVER_LIMIT: Strength.HARD,
    Isolation.MIG: Strength.HARD,
    Isolation.MPS: Strength.HARD_FOR_EACH_PROCESS,
    Isolation.PRELOAD: Strength.SOFT,
    Isolation.ACCOUNTED: Strength.ACCOUNTED,
    Isolation.COOPERATIVE: Strength.COOPERATIVE,
}


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

    @property
    def strength(self) -> Strength:
        return self.isolation.strength


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
        return _label(self.device_index, is_instance=self.device_uuid.startswith("MIG-"))

    @property
    def strength(self) -> Strength:
        return self.isolation.strength


def _label(index: int, *, is_instance: bool) -> str:
    if not is_instance:
        return str(index)
    device, place = divmod(index, INSTANCE_INDEX)
    return f"{device - 1}:{place}"


@dataclass(frozen=True, slots=True)
class Allocation:
    """An attempt's allocation on a node: together never more than the node has. `at` is when it was given."""

    attempt_id: str
    site: str
    node: str
    cpus_milli: int
    memory_mib: int
    shares: tuple[Share, ...]
    at: float

    @property
    def node_key(self) -> NodeKey:
        return NodeKey(self.site, self.node)

    def device_key(self, share: Share) -> DeviceKey:
        return DeviceKey(self.site, share.device_uuid)


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
    engine knows the node and has given it up; the faults give the reason. `awaits_admin`: why its workloads may still
    run, so that they start elsewhere only once the node is back or an admin removes it; None if they cannot. `usage` is
    measured; None if nobody measures there.
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
    usage: NodeUsage | None = None

    @property
    def is_possible(self) -> bool:
        """Whether a node can have these sizes and numbers of parts. An agent or a site may report anything."""
        if len(self.devices) > MAX_DEVICES_OF_NODE or len(self.labels) > _MAX_LABELS:
            return False
        sizes, lists = [self.cpus_milli, self.memory_mib], [len(self.faults)]
        for device in self.devices:
            sizes += [device.memory_mib, device.parent_memory_mib, device.slots, device.context_mib]
            lists += [len(device.faults), len(device.notices), len(device.peers), len(device.unavailable)]
        return all(0 <= size <= _MAX_SIZE for size in sizes) and max(lists) <= _MAX_NOTED


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a site as the control plane knows it. `reasons` are those of its state. `drained_by` is the user who
    drained it, empty if it is not drained; `leave_by` (unix seconds) is the deadline for its workloads then, if any.
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
    def key(self) -> NodeKey:
        return NodeKey(self.site, self.name)

    def device_key(self, device: Device) -> DeviceKey:
        return DeviceKey(self.site, device.uuid)

    @property
    def drain(self) -> bool:
        return bool(self.drained_by)

    @property
    def may_return(self) -> bool:
        """Whether requests that only this node could run may wait for it: not if it is lost for good."""
        return self.state is not NodeState.LOST or self.report.awaits_admin is not None


_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?", re.ASCII)
_NUMBER = re.compile(r"[0-9a-f]{6}", re.ASCII)


@dataclass(frozen=True, slots=True)
class MachineKind:
    """The resources of one node of a pool: CPUs in thousandths, memory and VRAM in MiB, its GPUs, and its price."""

    cpus_milli: int
    memory_mib: int
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_mib: int = 0
    price_per_h: float = 0.0
    labels: tuple[tuple[str, str], ...] = ()

    def node(self, name: str, site: str, engine: str) -> Node:
        devices = tuple(
            Device(f"{name}-{index}", index, self.gpu_model, self.gpu_memory_mib, isolation=Isolation.COOPERATIVE)
            for index in range(self.gpus)
        )
        report = NodeReport(name, self.cpus_milli, self.memory_mib, devices, labels=self.labels)
        return Node(name, site, engine, NodeState.READY, report, 0.0)


@dataclass(frozen=True, slots=True)
class NodePoolPolicy:
    """The rules for the number of nodes of a kind.

    Never fewer than `least`, never more than `most`. One is added for work that waited `wait_s` and does not fit on the
    existing or coming nodes; one is removed after it ran nothing for `idle_s`. One that has not joined after
    `join_s` is given back. `join_options` are options of the join script.
    """

    name: str
    kind: MachineKind
    site: str = LOCAL_SITE
    engine: str = "swarm"
    least: int = 0
    most: int = 1
    idle_s: int = 900
    wait_s: int = 60
    join_s: int = 900
    join_options: tuple[str, ...] = ()

    def check(self) -> NodePoolPolicy:
        """Returns itself. Raises InvalidInput."""
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"{self.name[:60]!r} cannot be the name of a node pool: the names of its nodes begin with it, so it "
                "must have 1 to 30 lower-case letters, digits and hyphens, a letter first",
                field="name",
            )
        if not 0 <= self.least <= self.most or self.most == 0:
            raise InvalidInput(
                f"the node pool {self.name} has min {self.least} and max {self.most}; write 0 or more as min, and at "
                "least 1 and no less than min as max"
            )
        return self

    def has_labels(self, node: Node) -> bool:
        return set(self.kind.labels) <= set(node.report.labels)

    def owns(self, machine: str) -> bool:
        node_pool, _, number = machine.rpartition("-")
        return node_pool == self.name and _NUMBER.fullmatch(number) is not None


@dataclass(frozen=True, slots=True)
class Machine:
    """`created_at` (unix seconds) is None if the cloud does not report it. `failed`: not created, or broken.

    Of a pool with an autoscaler: `requested` is only a request for a node, which gets a name of its own; `starting`: it
    takes no work yet.
    """

    id: str
    name: str
    created_at: float | None = None
    failed: bool = False
    requested: bool = False
    starting: bool = False


@dataclass(frozen=True, slots=True)
class PendingNode:
    """Requested at `since`, and not joined yet. `took_s`: the last join time in its pool, None before the first."""

    policy: NodePoolPolicy
    name: str
    since: float
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodePoolView:
    """A pool now, and the next decision of its policy: `adding`, `removing`, and `why`.

    `machines` are (name, state as text). `last_error` is that of the cloud. `cost_per_h` excludes nodes given back.
    """

    policy: NodePoolPolicy
    provider: str
    machines: tuple[tuple[str, str], ...]
    adding: int
    removing: tuple[str, ...]
    why: Reason
    cost_per_h: float
    cost_after_per_h: float
    last_error: str = ""
