"""Whatever parts a site of one to five nodes, and however often: nothing runs on both sides, and nothing is lost.

A site in miniature: the agents' own rule of when to pause, the control plane's own of when to begin elsewhere, and
between them cables that are drawn, nodes that lose their power, and a control plane that is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, cast
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engines.swarm.nodes.test_swarm_nodes import node

from commonage.agent.partition import Quorum
from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons.nodes import MayBeCutOff, MayRunWithoutAgent
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.nodes.fencing import Fencing
from commonage.engines.swarm.nodes.node_tracker import NodeTracker
from commonage.ports.agents import AgentReport, Agents

TICK_S, REPORT_S, LINK_S, SWARM_S = 0.5, 2.0, 6.0, 6.0
CONTROL = "m0"
SURELY_S = 30.0
"""Longer than anything takes that is to happen."""


@dataclass(frozen=True)
class Phase:
    """How it is for a while: nodes without power, pairs that do not see each other, and whether control runs."""

    seconds: float
    off: frozenset[str] = frozenset()
    parted: frozenset[frozenset[str]] = frozenset()
    control: bool = True


@dataclass
class SwarmNode:
    """With its agent, and one attempt: `running`, `paused` or `dead`. `begun_anew`: it was begun elsewhere."""

    name: str
    vote: Quorum
    reports_at: float
    attempt: str = "running"
    begun_anew: bool = False
    observed_at: float = 0.0
    was_down: bool = False


class Site:
    """All of it. `agentless`: nodes without an agent. `sweeps`: the Swarm ends what ran on one that it gave up."""

    def __init__(self, size: int, *, agentless: Collection[str] = (), sweeps: bool = False) -> None:
        self.now, self.phase, self.sweeps = 1000.0, Phase(0), sweeps
        names = [f"m{number}" for number in range(size)]
        self.agents = [name for name in names if name not in agentless]
        self.swarm_nodes = {
            name: SwarmNode(name, Quorum(name, (), self.now), self.now + at * TICK_S, observed_at=self.now)
            for at, name in enumerate(names)
        }
        self.record_neighbors: dict[str, AgentReport] = {}
        self.neighbors_of: tuple[str, ...] = ()
        self.fencing = self._new_control_plane()

    def _new_control_plane(self) -> Fencing:
        return Fencing(NodeTracker(cast(Client, self), cast(Agents, self)), asyncio.to_thread)

    # --- what is between them -------------------------------------------------------------------------------------

    def sees(self, one: str, other: str) -> bool:
        phase = self.phase
        return not ({one, other} & phase.off) and (one == other or frozenset((one, other)) not in phase.parted)

    async def go_through(self, phases: Iterable[Phase]) -> None:
        with patch("commonage.engines.swarm.nodes.partition_detector.monotonic", lambda: self.now):
            for phase in phases:
                self._begin(phase)
                until = self.now + phase.seconds
                while self.now < until:
                    self.now += TICK_S
                    for swarm_node in self.swarm_nodes.values():
                        self._agent(swarm_node)
                    if phase.control and CONTROL not in phase.off and self.now % 1.0 == 0:
                        await self._control()
                    for one in self.swarm_nodes.values():
                        assert not (one.begun_anew and one.attempt == "running"), f"{one} runs twice, in {phase}"

    def _begin(self, phase: Phase) -> None:
        was_up = self.phase.control and CONTROL not in self.phase.off
        if not was_up and phase.control and CONTROL not in phase.off:
            self.fencing, self.neighbors_of = self._new_control_plane(), ()
            self.record_neighbors = {
                name: replace(one, connected=False, monotonic_at=self.now)
                for name, one in self.record_neighbors.items()
            }
        if CONTROL in self.phase.off and CONTROL not in phase.off:
            for one in self.swarm_nodes.values():  # a manager that comes back gives all their time
                one.observed_at = self.now
        for name in phase.off - self.phase.off:
            self.swarm_nodes[name].attempt = "dead"
        for name in self.phase.off - phase.off:
            self.swarm_nodes[name].vote = Quorum(name, self.swarm_nodes[name].vote.neighbors, self.now)
        self.phase = phase

    # --- the agents -----------------------------------------------------------------------------------------------

    def _agent(self, swarm_node: SwarmNode) -> None:
        name, vote = swarm_node.name, swarm_node.vote
        if name in self.phase.off or name not in self.agents:
            return
        hub = self.sees(CONTROL, name)
        if hub and self.phase.control and self.now >= swarm_node.reports_at:
            swarm_node.reports_at = self.now + REPORT_S
            vote.neighbors = self.neighbors_of or vote.neighbors
            paused = (name,) if swarm_node.attempt == "paused" else ()
            report = NodeReport(name, 1, 1)
            self.record_neighbors[name] = AgentReport(
                name, report, 0.0, self.now, True, paused=paused, neighbors=vote.neighbors, node_id=name
            )
            vote.control_answered(self.now)
        elif self.now - vote.control_at >= 3.0:
            vote.record_probe(hub, [one for one in self.agents if self.sees(name, one)], self.now)
        if vote.is_partitioned(self.now) and swarm_node.attempt == "running":
            swarm_node.attempt = "paused"

    # --- the control plane, and what it asks ----------------------------------------------------------------------

    async def _control(self) -> None:
        self.record_neighbors = {
            name: replace(one, connected=one.connected and self.now - one.monotonic_at < LINK_S)
            for name, one in self.record_neighbors.items()
        }
        await self.fencing.nodes.poll()
        for one in self.swarm_nodes.values():
            if not one.begun_anew and self.fencing.why_lost(one.name, one.name, one.name):
                try:
                    await self.fencing.fence_attempt(one.name, one.name)
                except EngineFailure:
                    continue
                one.begun_anew = True
        await self.fencing.resolve_paused({one.name for one in self.swarm_nodes.values() if not one.begun_anew})

    async def nodes(self) -> list[dict[str, Any]]:
        found = []
        for one in self.swarm_nodes.values():
            if self.sees(CONTROL, one.name):
                one.observed_at = self.now
                if one.was_down and self.sweeps:
                    one.attempt, one.begun_anew = "dead", True
                one.was_down = False
            one.was_down |= self.now - one.observed_at >= SWARM_S
            context = node(one.name, one.name, "down" if one.was_down else "ready")
            found.append({**context, "Status": {**context["Status"], "Addr": one.name}})
        return found

    def agent_reports(self) -> list[AgentReport]:
        return list(self.record_neighbors.values())

    async def bindings(self) -> dict[str, str]:
        return {name: name for name in self.swarm_nodes}

    async def changes(self) -> AsyncIterator[str]:
        yield ""

    def set_neighbors(self, swarm_nodes: Collection[tuple[str, str]]) -> None:
        self.neighbors_of = tuple(name for name, _ in swarm_nodes)

    def _ask(self, name: str) -> SwarmNode:
        if not (name in self.record_neighbors and self.record_neighbors[name].connected and self.sees(CONTROL, name)):
            raise EngineFailure(f"the agent of {name} does not answer", retryable=True)
        return self.swarm_nodes[name]

    async def reaches(self, name: str, address: str) -> bool:
        self._ask(name)
        return self.sees(name, address)

    async def fence(self, name: str, attempts: Collection[str]) -> Collection[str]:
        self._ask(name).attempt = "dead"
        return attempts

    async def unpause(self, name: str, attempts: Collection[str]) -> None:
        swarm_node = self._ask(name)
        swarm_node.attempt = "running" if swarm_node.attempt == "paused" else swarm_node.attempt


def pairs(names: Iterable[str]) -> list[frozenset[str]]:
    return [frozenset(pair) for pair in combinations(sorted(names), 2)]


@st.composite
def node_warnings(draw: st.DrawFn, names: list[str]) -> list[Phase]:
    """Some phases, each with any graph of which node reaches which; reaching need not be transitive."""
    phases = []
    for _ in range(draw(st.integers(1, 4))):
        off = frozenset(draw(st.sets(st.sampled_from(names), max_size=2)))
        parted = frozenset(draw(st.sets(st.sampled_from(pairs(names))))) if len(names) > 1 else frozenset()
        phases.append(Phase(draw(st.integers(1, 40)), off, parted, draw(st.booleans())))
    return phases


@given(size=st.integers(1, 5), data=st.data(), sweeps=st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_attempt_runs_twice_in_any_partition(size: int, data: st.DataObject, sweeps: bool) -> None:
    names = [f"m{number}" for number in range(size)]
    agentless = data.draw(st.sets(st.sampled_from(names), max_size=1))
    phases = data.draw(node_warnings(names))
    site = Site(size, agentless=agentless, sweeps=sweeps)
    asyncio.run(site.go_through([Phase(SURELY_S), *phases, Phase(SURELY_S)]))
    for one in site.swarm_nodes.values():
        assert one.attempt != "paused", "a linked node knows whether its attempts continue"
        assert (one.attempt == "running") is not one.begun_anew or one.attempt == "dead"


def lost(size: int, *phases: Phase, agentless: Collection[str] = ()) -> Site:
    site = Site(size, agentless=agentless)
    asyncio.run(site.go_through([Phase(SURELY_S), *phases]))
    return site


def test_attempts_of_lost_node_start_elsewhere_soon() -> None:
    for size in range(2, 6):
        names = {f"m{number}" for number in range(size)}
        last = f"m{size - 1}"
        cable = frozenset(frozenset((last, other)) for other in names - {last})
        for phase in (Phase(14.0, off=frozenset({last})), Phase(14.0, parted=cable)):
            site = lost(size, phase)
            assert [one.name for one in site.swarm_nodes.values() if one.begun_anew] == [last]
            assert site.swarm_nodes[last].attempt != "running"


def test_minority_is_requeued_and_majority_is_not() -> None:
    gone = Phase(SURELY_S, off=frozenset({"m2", "m3"}))
    assert [one.name for one in lost(4, gone).swarm_nodes.values() if one.begun_anew] == ["m2", "m3"]
    gone = Phase(SURELY_S, off=frozenset({"m1", "m2", "m3"}))
    site = lost(4, gone)
    assert not any(one.begun_anew for one in site.swarm_nodes.values())
    undecided = [(one.name, one.awaits_admin) for one in site.fencing.nodes.reports() if one.gone]
    assert undecided == [(name, MayBeCutOff(node=name)) for name in ("m1", "m2", "m3")]


def test_control_plane_restart_loses_no_attempt() -> None:
    """Its program is away; or its node, and most of the others see each other, or stand still until it is back."""
    for size in range(1, 6):
        site = lost(size, Phase(60.0, control=False))
        assert {one.attempt for one in site.swarm_nodes.values()} == {"running"}
    for size in range(2, 6):
        site = lost(size, Phase(60.0, off=frozenset({CONTROL})))
        others = {one.attempt for name, one in site.swarm_nodes.items() if name != CONTROL}
        assert others == {"running" if size >= 3 else "paused"}
        asyncio.run(site.go_through([Phase(SURELY_S)]))
        assert {one.attempt for name, one in site.swarm_nodes.items() if name != CONTROL} == {"running"}


def test_node_that_loses_majority_pauses_before_requeue() -> None:
    """The control plane asks who sees it when it has just seen enough of them."""
    for seconds in range(1, 15):
        first, second = frozenset(("m0", "m1")), frozenset(("m1", "m2"))
        site = lost(
            4, Phase(seconds, parted=frozenset({first})), Phase(SURELY_S, parted=frozenset({first, second}))
        )  # what runs twice fails there
        assert site.swarm_nodes["m1"].begun_anew


def test_node_without_agent_waits_for_admin() -> None:
    cable = frozenset({frozenset(("m0", "m1"))})
    site = lost(2, Phase(SURELY_S, parted=cable), agentless={"m1"})
    assert site.swarm_nodes["m1"].attempt == "running"
    assert not site.swarm_nodes["m1"].begun_anew
    [report] = [one for one in site.fencing.nodes.reports() if one.name == "m1"]
    assert report.gone
    assert report.awaits_admin == MayRunWithoutAgent(node="m1")
    assert report.awaits_admin in report.faults
