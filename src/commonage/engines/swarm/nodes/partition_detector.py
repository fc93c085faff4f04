"""Partition detector: decides when attempts on a down node certainly do not run any more. For `node_tracker`.

The node may have lost its power, or only its network. Its agent pauses the attempts when it reaches neither the control
plane nor more than half of the nodes in its list (`neighbors_of`). This module waits until then. To find out whether
the agent still reaches a majority, it counts the nodes on this side. If this side is the minority, or if the node has
no agent to pause the attempts, nothing starts elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TypeGuard

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.nodes import EndingWorkloads, MayBeCutOff, MayRunWithoutAgent, WaitingForPause
from commonage.engines.swarm.nodes.swarm_nodes import SwarmNode, Wait
from commonage.ports.agents import MAJORITY_GRACE_S, MIN_NEIGHBORS, PARTITIONED_AFTER_S, AgentReport, Agents

_MARGIN_S, _MARGIN_BY_MAX_S = 4.0, 2.0
_SILENT_S = 5.0
_LATE_S = 10.0
_LONG_S, _AGENT_AWAY_S = 15.0, 30.0
_MAX_NEIGHBORS, _MAX_KEPT = 9, 50


ENDING_FIRST = Wait(EndingWorkloads())
PAUSING_FIRST = Wait(WaitingForPause())


def neighbors_of(
    swarm_nodes: Mapping[str, SwarmNode], agent_reports: Mapping[str, AgentReport], waits: Mapping[str, Wait]
) -> tuple[tuple[str, str], ...]:
    """Nodes, as (name, address), by which agents detect that they are cut off.

    These are the nodes that can be asked which others they reach, and those on which attempts may still run.
    """
    there = [
        one for name, one in sorted(swarm_nodes.items())
        if name in agent_reports and (agent_reports[name].connected if not one.is_down else name in waits)
    ]  # fmt: skip
    return tuple((one.name, one.address) for one in there if one.address)[:_MAX_NEIGHBORS]


class PartitionDetector:
    """Finds the down nodes on which attempts may still run. A final result is reused, not determined again."""

    def __init__(self, agents: Agents | None) -> None:
        self._agents = agents
        # For each silent node: the time at which it may last have reached most of the others.
        self._last_majority: dict[str, float] = {}
        self._reaching_majority: set[str] = set()
        self._over: set[str] = set()
        self._agent_long_away: dict[str, bool] = {}  # for each down node: whether its agent was away long before
        self._record_neighbors: list[tuple[float, tuple[str, ...]]] = []  # until when agents used which list of nodes

    def record_neighbors(self, names: tuple[str, ...]) -> None:
        """Record that agents use these nodes, from now on or still, to detect that they are cut off."""
        if self._record_neighbors and self._record_neighbors[-1][1] == names:
            self._record_neighbors.pop()
        self._record_neighbors = [*self._record_neighbors[-_MAX_KEPT:], (monotonic(), names)]

    async def waits(
        self, swarm_nodes: Mapping[str, SwarmNode], agent_reports: Mapping[str, AgentReport]
    ) -> dict[str, Wait]:
        """Return the wait and its reason, by node name. Occasionally takes up to a second."""
        now = monotonic()
        silent = [
            name for name in swarm_nodes if name in agent_reports and now - agent_reports[name].monotonic_at > _SILENT_S
        ]
        self._last_majority = {name: at for name, at in self._last_majority.items() if name in silent}
        self._over &= set(silent)
        self._reaching_majority &= set(silent)
        if self._agents is not None:
            asked = [name for name in silent if name not in self._over]
            await asyncio.gather(*(self._ask(name, swarm_nodes, agent_reports, self._agents, now) for name in asked))
        # A connected one is asked for each attempt.
        down = [name for name, one in swarm_nodes.items() if one.is_down and not _is_connected(agent_reports.get(name))]
        self._agent_long_away = {
            name: self._agent_long_away.get(name, _is_long_away(agent_reports.get(name), now)) for name in down
        }
        waits = {name: self._wait(name, agent_reports.get(name), now) for name in down}
        self._over |= {name for name, wait in waits.items() if wait is None}
        return {name: wait for name, wait in waits.items() if wait is not None}

    async def _ask(
        self,
        name: str,
        swarm_nodes: Mapping[str, SwarmNode],
        agent_reports: Mapping[str, AgentReport],
        agents: Agents,
        now: float,
    ) -> None:
        """Its state before the first query is unknown: it may have reached the others until then."""
        known = agent_reports[name]
        sets = {
            known.neighbors,
            *(names for until, names in self._record_neighbors if until > known.monotonic_at - _LATE_S),
        }
        enough = [names for names in sorted(sets) if len(names) >= MIN_NEIGHBORS]
        self._reaching_majority.discard(name)
        if enough and await may_reach_majority(swarm_nodes[name], enough, swarm_nodes, agent_reports, agents):
            self._reaching_majority.add(name)
            self._last_majority[name] = now
        elif enough:
            self._last_majority.setdefault(name, now)

    def _wait(self, name: str, known: AgentReport | None, now: float) -> Wait | None:
        if known is None or self._agents is None or self._agent_long_away[name]:
            return Wait(MayRunWithoutAgent(node=name), for_long=True)
        if name in self._over:
            return None
        if now < known.monotonic_at + PARTITIONED_AFTER_S + _MARGIN_S:
            return PAUSING_FIRST
        if name in self._reaching_majority:
            return Wait(MayBeCutOff(node=name), for_long=True) if now > known.monotonic_at + _LONG_S else PAUSING_FIRST
        over = self._last_majority.get(name, 0.0) + MAJORITY_GRACE_S + _MARGIN_BY_MAX_S
        return PAUSING_FIRST if now < over else None


async def may_reach_majority(
    swarm_node: SwarmNode,
    sets: Sequence[tuple[str, ...]],
    swarm_nodes: Mapping[str, SwarmNode],
    agent_reports: Mapping[str, AgentReport],
    agents: Agents,
) -> bool:
    """True if it may reach more than half of a list, for any of the lists `sets` that it may have.

    Silent nodes count as reached, as do those that reach it. A removed node does not count.
    """
    others = sorted({name for names in sets for name in names if name in swarm_nodes and name != swarm_node.name})
    answers = await asyncio.gather(*(_may_see(agents, agent_reports.get(name), swarm_node.address) for name in others))
    seeing = {swarm_node.name, *(name for name, sees in zip(others, answers, strict=True) if sees)}
    return any(2 * len(seeing & set(names)) > len(names) for names in sets)


async def _may_see(agents: Agents, neighbor: AgentReport | None, address: str) -> bool:
    if not _is_connected(neighbor):
        return True
    try:
        return await agents.reaches(neighbor.node_id, address)
    except EngineFailure:  # its link was cut a moment ago
        return True


def _is_connected(agent_reports: AgentReport | None) -> TypeGuard[AgentReport]:
    return agent_reports is not None and agent_reports.connected


def _is_long_away(agent_reports: AgentReport | None, now: float) -> bool:
    return agent_reports is None or now - agent_reports.monotonic_at > _AGENT_AWAY_S
