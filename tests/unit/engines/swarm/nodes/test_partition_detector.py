"""When attempts of a down node may start elsewhere: only once they certainly do not run any more."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from time import monotonic
from typing import cast
from unittest.mock import patch

from tests.unit.engines.swarm.nodes.test_swarm_nodes import node

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons.nodes import MayBeCutOff, MayRunWithoutAgent
from commonage.engines.swarm.nodes.partition_detector import PAUSING_FIRST, PartitionDetector, neighbors_of
from commonage.engines.swarm.nodes.swarm_nodes import SwarmNode, Wait, swarm_nodes_of
from commonage.ports.agents import MAJORITY_GRACE_S, AgentReport, Agents

NAMES = ("manager", "worker1", "worker2", "worker3")
LONG_AGO = 20.0


class Links:
    """Agents' answers about the neighbors that they reach. `seen` are pairs of agent and neighbor."""

    def __init__(self, *seen: tuple[str, str]) -> None:
        self._phase = seen
        self.broken = False
        self.asked = 0

    async def reaches(self, node: str, address: str) -> bool:
        self.asked += 1
        if self.broken:
            raise EngineFailure("the link is lost", retryable=True)
        return (node, address) in self._phase


class Site:
    """A manager with three workers, all with agents; `lose` some of them."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        found = swarm_nodes_of([node(name, name) for name in names])
        self.swarm_nodes: dict[str, SwarmNode] = {name: replace(one, address=name) for name, one in found.items()}
        now = monotonic()
        self.agent_reports = {
            name: AgentReport(name, NodeReport(name, 1, 1), 0.0, now, True, neighbors=names, node_id=name)
            for name in names
        }

    def lose(self, *names: str, silent_s: float = LONG_AGO) -> None:
        for name in names:
            self.swarm_nodes[name] = replace(self.swarm_nodes[name], state="down", why_down="heartbeat failure")
            self.agent_reports[name] = replace(
                self.agent_reports[name], connected=False, monotonic_at=monotonic() - silent_s
            )

    def waits(self, links: Links | None = None) -> dict[str, Wait]:
        return self.waits_of(PartitionDetector(cast(Agents, links or Links())))

    def waits_of(self, partition_detector: PartitionDetector) -> dict[str, Wait]:
        """As it is after a few looks; what was found by the first one may have just become so."""
        now = monotonic()
        for later in (0.0, 3.0, MAJORITY_GRACE_S + 3.0):
            agent_report = {
                name: replace(one, monotonic_at=now + later) if one.connected else one
                for name, one in self.agent_reports.items()
            }
            with patch("commonage.engines.swarm.nodes.partition_detector.monotonic", return_value=now + later):
                found = asyncio.run(partition_detector.waits(self.swarm_nodes, agent_report))
        return found


def test_silent_node_gets_time_to_pause_attempts() -> None:
    site = Site()
    site.lose("worker3", silent_s=1.0)
    wait = site.waits()["worker3"]
    assert wait == PAUSING_FIRST
    assert not wait.for_long
    site.lose("worker3")
    assert site.waits() == {}


def test_wall_clock_change_ends_no_wait() -> None:
    site, partition_detector = Site(), PartitionDetector(cast(Agents, Links()))
    site.lose("worker3", silent_s=1.0)
    with patch("time.time", return_value=time.time() + 3600.0):
        waits = asyncio.run(partition_detector.waits(site.swarm_nodes, site.agent_reports))
        assert waits["worker3"] == PAUSING_FIRST


def test_connected_agent_is_not_waited_for() -> None:
    site = Site()
    site.lose("worker3", silent_s=0.0)
    site.agent_reports["worker3"] = replace(
        site.agent_reports["worker3"], connected=True
    )  # its daemon died, and its agent lives
    assert site.waits() == {}


def test_without_agent_an_admin_decides_on_requeue() -> None:
    site = Site()
    site.lose("worker2", "worker3", silent_s=600.0)  # its agent had died long before
    del site.agent_reports["worker2"]  # it never had one
    for name, wait in site.waits().items():
        assert wait == Wait(MayRunWithoutAgent(node=name), for_long=True)
    without = PartitionDetector(None)
    assert set(asyncio.run(without.waits(site.swarm_nodes, {}))) == {"worker2", "worker3"}


def test_half_with_control_plane_keeps_running() -> None:
    site = Site()
    site.lose("worker2", "worker3")
    assert site.waits() == {}, "two see two at most of four"
    site.lose("worker1")
    waits = site.waits()
    assert set(waits) == {"worker1", "worker2", "worker3"}, "three may see each other, and hold on"
    assert all(wait == Wait(MayBeCutOff(node=name), for_long=True) for name, wait in waits.items())


def test_removed_node_does_not_count() -> None:
    site = Site()
    site.lose("worker1", "worker2", "worker3")
    del site.swarm_nodes["worker3"], site.agent_reports["worker3"]
    assert site.waits() == {}


def test_node_seen_by_others_keeps_running() -> None:
    site = Site()
    site.lose("worker3")
    assert site.waits(Links(("worker1", "worker3"))) == {}, "with one it is two of four"
    seen = Links(("worker1", "worker3"), ("worker2", "worker3"))
    assert site.waits(seen)["worker3"].for_long
    broken = Links()
    broken.broken = True
    assert site.waits(broken)["worker3"].for_long, "who cannot be asked may see it"


def test_final_result_is_not_queried_again() -> None:
    site, links = Site(), Links()
    partition_detector = PartitionDetector(cast(Agents, links))

    def waits() -> dict[str, Wait]:
        return site.waits_of(partition_detector)

    site.lose("worker3")
    assert waits() == waits() == {}
    assert links.asked == 9, "manager, worker1, worker2, until it was given up"
    site.agent_reports["worker3"] = replace(
        site.agent_reports["worker3"], connected=True, monotonic_at=monotonic()
    )  # it was back
    assert waits() == {}
    site.lose("worker3", silent_s=0.0)
    assert "worker3" in asyncio.run(partition_detector.waits(site.swarm_nodes, site.agent_reports))
    site.lose("worker3")
    assert waits() == {}


def test_single_worker_pauses_soon() -> None:
    site = Site(("manager", "worker1"))
    site.lose("worker1", silent_s=1.0)
    assert not site.waits()["worker1"].for_long
    site.lose("worker1")
    assert site.waits() == {}


def test_neighbors_sent_later_count_too() -> None:
    """It holds on by the nodes of which it knows, and what it learned last it may not have said any more."""
    site = Site()
    site.lose("worker3")
    site.agent_reports["worker3"] = replace(site.agent_reports["worker3"], neighbors=("manager", "worker3"))
    partition_detector, links = PartitionDetector(cast(Agents, Links())), Links(("worker1", "worker3"))
    assert site.waits_of(partition_detector) == {}
    partition_detector = PartitionDetector(cast(Agents, links))
    partition_detector.record_neighbors(("manager", "worker1", "worker3"))
    assert site.waits_of(partition_detector)["worker3"].for_long


def test_unreachable_nodes_do_not_count() -> None:
    site = Site()
    assert neighbors_of(site.swarm_nodes, site.agent_reports, {}) == tuple((name, name) for name in NAMES)
    site.lose("worker2", "worker3")
    assert neighbors_of(site.swarm_nodes, site.agent_reports, {"worker3": PAUSING_FIRST}) == tuple(
        (name, name) for name in ("manager", "worker1", "worker3")
    )
    del site.agent_reports["manager"]
    site.agent_reports["worker1"] = replace(site.agent_reports["worker1"], connected=False)
    assert neighbors_of(site.swarm_nodes, site.agent_reports, {}) == ()
    many = {name: replace(site.swarm_nodes["manager"], name=name, address=name) for name in map(str, range(100, 200))}
    assert len(neighbors_of(many, dict.fromkeys(many, Site().agent_reports["manager"]), {})) == 9
