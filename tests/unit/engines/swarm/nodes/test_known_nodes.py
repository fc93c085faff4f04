"""What ran on a node that is down is given up only once it is known to have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.unit.engines.swarm.nodes.test_swarm_nodes import agent_report, node

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.attempts import NodeLost
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.nodes.known_nodes import KnownNodes
from commonage.ports.agents import PARTITIONED_AFTER_S, AgentReport, Agents


class Site:
    """A manager that says what `nodes` are, and agents that say `told`, and end what is in `ends`."""

    def __init__(self) -> None:
        self.found = [node("a", "1"), node("b", "2")]
        self.told = [self.agent("a"), self.agent("b")]
        self.ends: set[str] = set()
        self.fenced: list[str] = []
        self.going: list[str] = []
        self.broken = ""
        self.introduced: list[tuple[tuple[str, str], ...]] = []
        self.known_nodes = KnownNodes(cast(Client, self), cast(Agents, self))

    def agent(self, name: str, **more: Any) -> AgentReport:
        return replace(agent_report(name, **more), monotonic_at=time.monotonic())

    async def nodes(self) -> list[dict[str, Any]]:
        return self.found

    def agent_reports(self) -> list[AgentReport]:
        return self.told

    async def bindings(self) -> dict[str, str]:
        return {"1": "a", "2": "b"}

    def set_neighbors(self, swarm_nodes: Collection[tuple[str, str]]) -> None:
        self.introduced.append(tuple(swarm_nodes))

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
        self.told = [self.told[0], self.agent("b", **more)]

    def look(self) -> bool:
        return asyncio.run(self.known_nodes.look())

    def why(self) -> NodeLost | None:
        return self.known_nodes.why_lost("b-1", "2", "b")

    def faults(self) -> str:
        return "; ".join(self.known_nodes.reports()[1].faults)


def test_an_agent_that_answers_must_say_that_it_is_ended() -> None:
    site = Site()
    assert site.look()
    site.lose()
    assert site.look()
    assert site.why() == NodeLost(node="b", detail="it does not answer: heartbeat failure")
    with pytest.raises(EngineFailure, match="being ended on b first: its processes do not end") as caught:
        asyncio.run(site.known_nodes.have_ended("b-1", "b"))
    assert caught.value.is_retryable
    assert "what runs there is ended there first" in site.faults()
    site.broken = "the agent of b did not answer within 30 s"
    with pytest.raises(EngineFailure, match="did not answer within 30 s"):
        asyncio.run(site.known_nodes.have_ended("b-1", "b"))
    site.broken = ""
    site.ends.add("b-1")
    assert asyncio.run(site.known_nodes.have_ended("b-1", "b"))
    assert "ended there first" not in site.faults()


def test_an_agent_that_is_silent_is_waited_for() -> None:
    site = Site()
    site.look()
    site.lose(connected=False)
    assert site.look()
    assert site.why() is None
    assert not site.look(), "nothing is new"
    assert "is given the time to stand still first" in site.faults()
    with pytest.raises(EngineFailure, match="on b, what runs there is given the time"):  # its link was lost meanwhile
        asyncio.run(site.known_nodes.have_ended("b-1", "b"))
    site.told[1] = replace(site.told[1], monotonic_at=time.monotonic() - PARTITIONED_AFTER_S - 10)
    assert site.look(), "that it is over now is news"
    assert isinstance(site.why(), NodeLost)
    assert asyncio.run(site.known_nodes.have_ended("b-1", "b")), "it stands still, or ended"


def test_what_stood_still_goes_on_unless_it_may_have_begun_elsewhere() -> None:
    site = Site()
    site.look()
    site.told[1] = site.agent("b", paused=("b-1", "b-2", "b-3"))
    site.lose(connected=False)
    site.told[1] = replace(site.told[1], monotonic_at=time.monotonic() - PARTITIONED_AFTER_S - 10)
    site.look()
    asyncio.run(site.known_nodes.have_ended("b-2", "b"))
    site.told[1] = site.agent("b", paused=("b-1", "b-2", "b-3"))
    site.look()
    asyncio.run(site.known_nodes.answer_paused({"b-1", "b-2"}))
    assert (site.fenced, site.going) == (["b-3"], []), "the Swarm has not seen it again"
    site.found[1] = node("b", "2")
    site.look()
    asyncio.run(site.known_nodes.answer_paused({"b-1", "b-2"}))
    assert site.going == ["b-1"], "b-2 is about to begin elsewhere"
    asyncio.run(site.known_nodes.answer_paused({"b-1"}))
    assert site.fenced == ["b-3", "b-3", "b-2", "b-3"]
    site.broken = "its link is lost"
    asyncio.run(site.known_nodes.answer_paused({"b-1"}))  # and again once it says so again


def test_what_the_agent_ended_by_itself_is_over_at_once() -> None:
    site = Site()
    site.lose(connected=False, fenced=("b-1",))
    site.look()
    why = site.why()
    assert why is not None and "its agent ended what ran there" in why.detail
    assert asyncio.run(site.known_nodes.have_ended("b-1", "b"))


def test_a_node_without_an_agent_is_given_up_by_an_admin_only() -> None:
    site = Site()
    site.lose()
    site.told.pop()
    site.look()
    assert site.why() is None
    with pytest.raises(EngineFailure, match="commonage node rm --force b"):
        asyncio.run(site.known_nodes.have_ended("b-1", "b"))
    assert site.known_nodes.reports()[1].gone
    assert not site.known_nodes.has_agents
    assert "b without an agent" in "; ".join(site.known_nodes.notes())
    site.found.pop()  # it was taken out of the Swarm
    site.look()
    assert site.why() == NodeLost(node="b", detail="it is not in the Swarm any more")
    assert not asyncio.run(site.known_nodes.have_ended("b-1", "b")), "nobody can tell"


def test_news_are_kept_for_who_looks() -> None:
    site = Site()
    site.look()
    site.lose()
    asyncio.run(site.known_nodes.refresh())  # somebody else asked meanwhile
    assert site.look()
    assert not site.look()


def test_agents_are_told_by_whom_they_know_that_they_are_cut_off() -> None:
    site = Site()
    site.look()
    site.look()
    assert [[name for name, _ in one] for one in site.introduced] == [["a", "b"]]
    site.lose(connected=False)
    site.look()
    assert len(site.introduced) == 1, "one that may run on still counts"
    site.told[1] = replace(site.told[1], monotonic_at=time.monotonic() - PARTITIONED_AFTER_S - 10)
    site.look()
    assert [name for name, _ in site.introduced[-1]] == ["a"]


def test_volumes_are_bounded_where_a_node_that_takes_work_says_so() -> None:
    site = Site()
    site.look()
    assert site.known_nodes.that_bound_volumes() == ((), ("a", "b"))
    site.told = [site.agent("a", bounds_volumes=True), site.agent("b")]
    site.look()
    assert (site.known_nodes.bounds_volumes("a"), site.known_nodes.bounds_volumes("b")) == (True, False)
    assert site.known_nodes.that_bound_volumes() == (("a",), ("b",))
    site.known_nodes.swarm_nodes["b"] = replace(site.known_nodes.swarm_nodes["b"], availability="drain")
    assert site.known_nodes.that_bound_volumes() == (("a",), ())


def test_a_member_is_known_by_its_address_until_it_is_given_up() -> None:
    site = Site()
    site.look()
    [address] = {one.address for one in site.known_nodes.swarm_nodes.values()}
    assert site.known_nodes.has_address(address)
    assert not site.known_nodes.has_address("10.98.0.66")
    site.found = [node("a", "1", "down"), node("b", "2", "down")]
    site.look()
    assert not site.known_nodes.has_address(address)


@pytest.mark.parametrize(
    ("gateway", "taken"), [("172.18.0.1", "172.18.0.1"), ("", None), ("evil.example", None), ("1.2.3.4:80@x", None)]
)
def test_a_gateway_that_is_no_address_is_not_taken(gateway: str, taken: str | None) -> None:
    site = Site()
    site.told = [site.agent("a", gateway=gateway)]
    site.look()
    assert site.known_nodes.gateway_of("a") == taken
    assert site.known_nodes.gateway_of("b") is None
