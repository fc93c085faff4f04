"""Decides whether this node is in contact with its site or cut off from it. Used by `run`.

The control plane cannot tell a lost network link from a node that is switched off: it requeues the node's workloads
elsewhere. So an agent that is cut off pauses its workloads until the control plane says which of them continue and
which end. A node is in contact while it reaches the control plane, or more than half of the neighbor nodes (the nodes
that
it was told of, at least three including itself). In the second case a live control plane knows that it is in the
minority and requeues nothing. A refused connection counts as an answer: it means that a program is down, not the
network.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commonage.agent.config import AgentConfig, split_address
from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.link.messages import Neighbors
from commonage.ports.agents import MAJORITY_GRACE_S, MIN_NEIGHBORS, PARTITIONED_AFTER_S

_log = logging.getLogger(__name__)
SWARM_PORT = 7946
"""Port on which the Docker daemon of each Swarm node listens for the other nodes."""
_QUIET_S, _QUIET_BY_MOST_S = 3.0, 1.0
_ANSWERS_WITHIN_S = 1.0
_FEWEST_LOOKS = 3


@dataclass(slots=True)
class Quorum:
    """Counts the answers; no I/O. `node` is this node, `neighbors` the names of the nodes that count.

    Times are monotonic: `last` is when the control plane answered, `most` when most of the others did. A node that was
    too busy to probe has not found that nobody answers.
    """

    node: str
    neighbors: tuple[str, ...]
    last: float
    most: float = float("-inf")
    looks: int = 0

    def learn(self, neighbors: tuple[str, ...]) -> None:
        """Replace the neighbor nodes."""
        self.neighbors = neighbors

    def hear(self, now: float) -> None:
        """Record an answer of the control plane."""
        self.last, self.looks = max(self.last, now), 0

    def count(self, control: bool, answering: Collection[str], began: float) -> None:
        """Record a probe that began at `began`: whether the control plane answered, and which neighbor nodes did."""
        here = {*answering, self.node} & set(self.neighbors)
        if control:
            self.hear(began)
        elif len(self.neighbors) >= MIN_NEIGHBORS and 2 * len(here) > len(self.neighbors):
            self.most, self.looks = began, 0
        else:
            self.looks += 1

    def is_partitioned(self, now: float) -> bool:
        """True once neither the control plane nor most of the neighbor nodes have answered for long."""
        silent = now - self.last >= PARTITIONED_AFTER_S and now - self.most >= MAJORITY_GRACE_S
        return self.looks >= _FEWEST_LOOKS and silent


class PartitionMonitor:
    """The contact of this node with its site. The neighbor nodes are kept in `folder`."""

    def __init__(self, config: AgentConfig, folder: Path) -> None:
        self._control = [split_address(one) for one in config.control]
        self._file = folder / "neighbors.json"
        self._known = _kept(self._file)
        self._vote = Quorum(config.node, self.neighbors, time.monotonic())

    @property
    def neighbors(self) -> tuple[str, ...]:
        """The names of the neighbor nodes."""
        return tuple(name for name, _ in self._known.each)

    @property
    def is_partitioned(self) -> bool:
        """True while the node is cut off: its workloads must be paused."""
        return self._vote.is_partitioned(time.monotonic())

    def learn(self, told: Neighbors) -> None:
        """Take the neighbor nodes from the control plane."""
        if told != self._known:
            self._known = told
            self._vote.learn(self.neighbors)
            with suppress(OSError):  # a full disk: the control plane sends it again with the next link
                self._file.write_text(json.dumps(to_json(told)), encoding="utf-8")

    def hear(self, at: float) -> None:
        """The control plane received the message sent at `at` (monotonic).

        Its timeout starts then, and so does this one.
        """
        self._vote.hear(at)

    async def look(self) -> None:
        """Probe all addresses if nothing was heard for a while. Takes at most a second."""
        began = time.monotonic()
        if began - self._vote.last < _QUIET_S or began - self._vote.most < _QUIET_BY_MOST_S:
            return
        others = [(name, address) for name, address in self._known.each if name != self._vote.node]
        *found, control = await asyncio.gather(
            *(answers(address, SWARM_PORT) for _, address in others), self._control_answers()
        )
        there = [name for (name, _), yes in zip(others, found, strict=True) if yes]
        self._vote.count(control, there, began)
        if self._vote.looks == 1:
            _log.warning("the control plane is silent; of %d nodes %d answer", len(others), len(there))

    async def _control_answers(self) -> bool:
        return any(await asyncio.gather(*(answers(host, port) for host, port in self._control)))


async def answers(host: str, port: int, *, refused: bool = True) -> bool:
    """True if something at this address accepts a connection. `refused` is returned for a refused connection."""
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionError:
        return refused
    except OSError:  # includes TimeoutError
        return False
    writer.transport.abort()
    return True


def _kept(file: Path) -> Neighbors:
    try:
        return from_json(Neighbors, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, Unreadable):
        return Neighbors(())
