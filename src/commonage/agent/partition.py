"""Detects a network partition: whether this node is cut off from its site. `agent` then pauses the workloads.

The control plane cannot tell a lost network link from a node that is switched off: it requeues the node's workloads
elsewhere. So the agent of a partitioned node pauses its workloads until the control plane decides which of them
continue and which end. A node is in contact while it reaches the control plane, or more than half of its neighbor nodes
(at least three, including itself). In the second case a live control plane knows that it is in the minority and
requeues nothing. A refused connection counts as an answer: a program is down, not the network.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from commonage.agent.config import AgentConfig, read_state, save_state, split_address
from commonage.link.messages import Neighbors
from commonage.ports.agents import MAJORITY_GRACE_S, MIN_NEIGHBORS, PARTITIONED_AFTER_S

_log = logging.getLogger(__name__)
SWARM_PORT = 7946
"""Port on which the Docker daemon of each Swarm node listens for the other nodes."""
_PROBE_AFTER_S, _PROBE_AFTER_MAJORITY_S = 3.0, 1.0
_PROBE_TIMEOUT_S = 1.0
_MIN_FAILED_PROBES = 3


@dataclass(slots=True)
class Quorum:
    """Evaluates probes; no I/O. `node` is this node, `neighbors` the names of the nodes that count.

    Times are monotonic: `control_at` is when the control plane answered last, `majority_at` when most neighbors did. A
    node that was too busy to probe does not count as partitioned: that takes `_MIN_FAILED_PROBES`.
    """

    node: str
    neighbors: tuple[str, ...]
    control_at: float
    majority_at: float = float("-inf")
    failed_probes: int = 0

    def control_answered(self, now: float) -> None:
        self.control_at, self.failed_probes = max(self.control_at, now), 0

    def record_probe(self, control: bool, answering: Collection[str], began: float) -> None:
        """Record a probe that began at `began`: whether the control plane answered, and which neighbor nodes did."""
        reachable = {*answering, self.node} & set(self.neighbors)
        if control:
            self.control_answered(began)
        elif len(self.neighbors) >= MIN_NEIGHBORS and 2 * len(reachable) > len(self.neighbors):
            self.majority_at, self.failed_probes = began, 0
        else:
            self.failed_probes += 1

    def is_partitioned(self, now: float) -> bool:
        """True once neither the control plane nor most of the neighbor nodes answer any more."""
        silent = now - self.control_at >= PARTITIONED_AFTER_S and now - self.majority_at >= MAJORITY_GRACE_S
        return self.failed_probes >= _MIN_FAILED_PROBES and silent


class PartitionMonitor:
    """The contact of this node with its site. The neighbor nodes are kept in `folder`."""

    def __init__(self, config: AgentConfig, folder: Path) -> None:
        self._control = [split_address(one) for one in config.control]
        self._file = folder / "neighbors.json"
        self._neighbors = read_state(self._file, Neighbors, Neighbors(()))
        self._quorum = Quorum(config.node, self.neighbors, time.monotonic())

    @property
    def neighbors(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._neighbors.nodes)

    @property
    def is_partitioned(self) -> bool:
        return self._quorum.is_partitioned(time.monotonic())

    def set_neighbors(self, neighbors: Neighbors) -> None:
        if neighbors != self._neighbors:
            self._neighbors = neighbors
            self._quorum.neighbors = self.neighbors
            save_state(self._file, neighbors)

    def control_answered(self, at: float) -> None:
        """The control plane received the message sent at `at` (monotonic): both timeouts start then."""
        self._quorum.control_answered(at)

    async def probe(self) -> None:
        """Probe all addresses if the control plane has been silent for a while. Takes at most 1 s."""
        began = time.monotonic()
        if began < max(self._quorum.control_at + _PROBE_AFTER_S, self._quorum.majority_at + _PROBE_AFTER_MAJORITY_S):
            return
        others = [(name, address) for name, address in self._neighbors.nodes if name != self._quorum.node]
        *reachable, control = await asyncio.gather(
            *(is_reachable(address, SWARM_PORT) for _, address in others), self._control_answers()
        )
        answering = [name for (name, _), answers in zip(others, reachable, strict=True) if answers]
        self._quorum.record_probe(control, answering, began)
        if self._quorum.failed_probes == 1:
            _log.warning("the control plane is silent; %d of %d neighbor nodes answer", len(answering), len(others))

    async def _control_answers(self) -> bool:
        return any(await asyncio.gather(*(is_reachable(host, port) for host, port in self._control)))


async def is_reachable(host: str, port: int, *, refused: bool = True) -> bool:
    """True if something at this address accepts a connection. `refused` is returned for a refused connection."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionError:
        return refused
    except OSError:  # includes TimeoutError
        return False
    writer.transport.abort()
    return True
