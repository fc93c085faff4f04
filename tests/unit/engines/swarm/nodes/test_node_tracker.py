"""An attempt on a node that is down is given up only once it is known to have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.unit.engines.swarm.nodes.test_swarm_nodes import agent_report, node

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import NodeLost
from commonage.domain.reasons.engines import NodesWithoutAgent
from commonage.domain.reasons.nodes import (
    EndingWorkloads,
    FencedByAgent,
    MayRunWithoutAgent,
    MayStillRun,
    NotInSwarm,
    SwarmNodeDown,
    WaitingForPause,
)
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.nodes.fencing import Fencing
from commonage.engines.swarm.nodes.node_tracker import NodeTracker
from commonage.ports.agents import PARTITIONED_AFTER_S, AgentReport, Agents


class Site:
    """A manager that says what `nodes` are, and agents that say `told`, and end what is in `ends`."""

    def __init__(self) -> None:
        self.found = [node("a", "1"), node("b", "2")]
        self.record_neighbors = [self.agent("a"), self.agent("b")]
        self.ends: set[str] = set()
        self.fenced: list[str] = []
        self.going: list[str] = []
        self.broken = ""
        self.neighbors_of: list[tuple[tuple[str, str], ...]] = []
        self.node_tracker = NodeTracker(cast(Client, self), cast(Agents, self))
        self.fencing = Fencing(self.node_tracker, asyncio.to_thread)

    def agent(self, name: str, **more: Any) -> AgentReport:
        return replace(agent_report(name, **more), monotonic_at=time.monotonic())

    async def nodes(self) -> list[dict[str, Any]]:
        return self.found

    def agent_reports(self) -> list[AgentReport]:
        return self.record_neighbors

    async def bindings(self) -> dict[str, str]:
        return {"1": "a", "2": "b"}

    def set_neighbors(self, swarm_nodes: Collection[tuple[str, str]]) -> None:
        self.neighbors_of.append(tuple(swarm_nodes))

    async def fence(self, node_id: str, attempts: Collection[str]) -> list[str]:
        assert node_id == "2"
        if self.broken:
            raise EngineFailure(self.broken, retryable=True)
        self.fenced += attempts
        return [one for one in attempts if one in self.ends]

    async def unpause(self, node_id: str, attempts: Collection[str]) -> None:
        self.going += attempts

    def lose(self, **more: Any) -> None:
        self.found = [self.found[0], node("b", "2", "down")]
        self.record_neighbors = [self.record_neighbors[0], self.agent("b", **more)]

    def poll(self) -> bool:
        return asyncio.run(self.node_tracker.poll())

    def why(self) -> NodeLost | None:
        return self.fencing.why_lost("b-1", "2", "b")

    def faults(self) -> tuple[Reason, ...]:
        return self.node_tracker.reports(self.fencing.nodes_being_fenced())[1].faults


def test_connected_agent_must_confirm_fencing() -> None:
    site = Site()
    assert site.poll()
    site.lose()
    assert site.poll()
    assert site.why() == NodeLost(node="b", cause=SwarmNodeDown(error="heartbeat failure"))
    with pytest.raises(EngineFailure, match="being ended on b first: its processes do not end") as caught:
        asyncio.run(site.fencing.fence_attempt("b-1", "b"))
    assert caught.value.is_retryable
    assert EndingWorkloads() in site.faults()
    site.broken = "the agent of b did not answer within 30 s"
    with pytest.raises(EngineFailure, match="did not answer within 30 s"):
        asyncio.run(site.fencing.fence_attempt("b-1", "b"))
    site.broken = ""
    site.ends.add("b-1")
    assert asyncio.run(site.fencing.fence_attempt("b-1", "b"))
    assert EndingWorkloads() not in site.faults()


def test_silent_agent_is_retried() -> None:
    site = Site()
    site.poll()
    site.lose(connected=False)
    assert site.poll()
    assert site.why() is None
    assert not site.poll(), "nothing is new"
    assert WaitingForPause() in site.faults()
    with pytest.raises(EngineFailure) as caught:  # its link was lost meanwhile
        asyncio.run(site.fencing.fence_attempt("b-1", "b"))
    assert caught.value.reason == MayStillRun(node="b", cause=WaitingForPause())
    site.record_neighbors[1] = replace(
        site.record_neighbors[1], monotonic_at=time.monotonic() - PARTITIONED_AFTER_S - 10
    )
    assert site.poll(), "that it is over now is news"
    assert isinstance(site.why(), NodeLost)
    assert asyncio.run(site.fencing.fence_attempt("b-1", "b")), "it stands still, or ended"


def test_paused_attempt_continues_unless_it_may_run_elsewhere() -> None:
    site = Site()
    site.poll()
    site.record_neighbors[1] = site.agent("b", paused=("b-1", "b-2", "b-3"))
    site.lose(connected=False)
    site.record_neighbors[1] = replace(
        site.record_neighbors[1], monotonic_at=time.monotonic() - PARTITIONED_AFTER_S - 10
    )
    site.poll()
    asyncio.run(site.fencing.fence_attempt("b-2", "b"))
    site.record_neighbors[1] = site.agent("b", paused=("b-1", "b-2", "b-3"))
    site.poll()
    asyncio.run(site.fencing.resolve_paused({"b-1", "b-2"}))
    assert (site.fenced, site.going) == (["b-3"], []), "the Swarm has not seen it again"
    site.found[1] = node("b", "2")
    site.poll()
    asyncio.run(site.fencing.resolve_paused({"b-1", "b-2"}))
    assert site.going == ["b-1"], "b-2 is about to begin elsewhere"
    asyncio.run(site.fencing.resolve_paused({"b-1"}))
    assert site.fenced == ["b-3", "b-3", "b-2", "b-3"]
    site.broken = "its link is lost"
    asyncio.run(site.fencing.resolve_paused({"b-1"}))  # and again once it says so again


def test_attempt_fenced_by_agent_ends_at_once() -> None:
    site = Site()
    site.lose(connected=False, fenced=("b-1",))
    site.poll()
    assert site.why() == NodeLost(node="b", cause=FencedByAgent())
    assert asyncio.run(site.fencing.fence_attempt("b-1", "b"))


def test_node_without_agent_is_given_up_by_admin_only() -> None:
    site = Site()
    site.lose()
    site.record_neighbors.pop()
    site.poll()
    assert site.why() is None
    with pytest.raises(EngineFailure) as caught:
        asyncio.run(site.fencing.fence_attempt("b-1", "b"))
    assert caught.value.reason == MayStillRun(node="b", cause=MayRunWithoutAgent(node="b"))
    assert site.node_tracker.reports()[1].gone
    assert not site.node_tracker.has_agents
    assert NodesWithoutAgent(nodes=("b",)) in site.node_tracker.notes()
    site.found.pop()  # it was taken out of the Swarm
    site.poll()
    assert site.why() == NodeLost(node="b", cause=NotInSwarm(node="b", nodes=("a",)))
    assert not asyncio.run(site.fencing.fence_attempt("b-1", "b")), "it is unknown"


def test_changes_are_kept_for_next_poll() -> None:
    site = Site()
    site.poll()
    site.lose()
    asyncio.run(site.node_tracker.refresh())  # another caller refreshed meanwhile
    assert site.poll()
    assert not site.poll()


def test_agents_get_neighbors_for_partition_detection() -> None:
    site = Site()
    site.poll()
    site.poll()
    assert [[name for name, _ in one] for one in site.neighbors_of] == [["a", "b"]]
    site.lose(connected=False)
    site.poll()
    assert len(site.neighbors_of) == 1, "one that may run on still counts"
    site.record_neighbors[1] = replace(
        site.record_neighbors[1], monotonic_at=time.monotonic() - PARTITIONED_AFTER_S - 10
    )
    site.poll()
    assert [name for name, _ in site.neighbors_of[-1]] == ["a"]


def test_volumes_are_bounded_where_a_node_that_takes_work_says_so() -> None:
    site = Site()
    site.poll()
    assert site.node_tracker.volume_limits() == ((), ("a", "b"))
    site.record_neighbors = [site.agent("a", bounds_volumes=True), site.agent("b")]
    site.poll()
    assert (site.node_tracker.bounds_volumes("a"), site.node_tracker.bounds_volumes("b")) == (True, False)
    assert site.node_tracker.volume_limits() == (("a",), ("b",))
    site.node_tracker.swarm_nodes["b"] = replace(site.node_tracker.swarm_nodes["b"], availability="drain")
    assert site.node_tracker.volume_limits() == (("a",), ())


def test_a_member_is_known_by_its_address_until_it_is_given_up() -> None:
    site = Site()
    site.poll()
    [address] = {one.address for one in site.node_tracker.swarm_nodes.values()}
    assert site.node_tracker.has_address(address)
    assert not site.node_tracker.has_address("10.98.0.66")
    site.found = [node("a", "1", "down"), node("b", "2", "down")]
    site.poll()
    assert not site.node_tracker.has_address(address)


@pytest.mark.parametrize(
    ("gateway", "taken"), [("172.18.0.1", "172.18.0.1"), ("", None), ("evil.example", None), ("1.2.3.4:80@x", None)]
)
def test_a_gateway_that_is_no_address_is_not_taken(gateway: str, taken: str | None) -> None:
    site = Site()
    site.record_neighbors = [site.agent("a", gateway=gateway)]
    site.poll()
    assert site.node_tracker.gateway_of("a") == taken
    assert site.node_tracker.gateway_of("b") is None
