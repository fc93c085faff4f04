"""Node pools: nodes of a cloud that are added while work waits for them, and removed when they idle."""

from __future__ import annotations

import re
from dataclasses import dataclass

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Device, Isolation, Node, NodeReport, NodeState
from commonage.domain.reasons import Reason

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
        """A node of this kind as an empty, ready node for the planner."""
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
    site: str = "local"
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
                f"{self.name[:60]!r} cannot be the name of a node pool: its nodes are called after it, so it takes "
                "1 to 30 lower-case letters, digits and hyphens, a letter first",
                field="name",
            )
        if not 0 <= self.least <= self.most or self.most == 0:
            raise InvalidInput(
                f"the node pool {self.name} has min {self.least} and max {self.most}; write 0 or more as min, and at "
                "least 1 and no less than min as max"
            )
        return self

    def owns(self, machine: str) -> bool:
        """True for the name of a node of this pool."""
        node_pool, _, number = machine.rpartition("-")
        return node_pool == self.name and _NUMBER.fullmatch(number) is not None


@dataclass(frozen=True, slots=True)
class Machine:
    """A node that the cloud reports. `created_at` (unix seconds) is None if the cloud does not tell; `failed`: the
    cloud could not create it, or reports that it is broken.
    """

    id: str
    name: str
    created_at: float | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class PendingNode:
    """A node that was requested at `since` and has not joined. `took_s`: how long the last one of its pool took to
    join, None before the first.
    """

    policy: NodePoolPolicy
    name: str
    since: float
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodePoolView:
    """A pool now, and the next decision of its policy. Costs are per hour.

    `machines` have their state in words. `adding` and `removing` are the next step, with its reason in words.
    `last_error`
    is the last error of the cloud. The present cost excludes nodes that were given back.
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
