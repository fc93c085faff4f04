"""What attempts use is what the agents of their own nodes say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engines.swarm.nodes.test_swarm_nodes import agent_report
from tests.unit.engines.swarm.test_launcher import Scene

from commonage.domain.statuses import Measurement, Phase, Status
from commonage.engines.swarm.engine import SwarmEngine

pytestmark = pytest.mark.anyio


class Agents:
    """Each says the same: that it measured the attempts of both nodes."""

    async def measure(self, node_id: str) -> Sequence[Measurement]:
        mib = {"1": 1, "2": 2}[node_id]
        return [Measurement("w-a", 0.0, mib), Measurement("w-b", 0.0, mib)]


async def test_an_agent_measures_no_attempt_of_another_node(tmp_path: Path) -> None:
    agents: Any = Agents()
    engine = SwarmEngine("site", tmp_path, tmp_path, agents=agents)
    engine._nodes.agent_reports = {"a": agent_report("a"), "b": agent_report("b")}
    scene = Scene(tmp_path)
    for node in ("a", "b"):
        run = scene.run(attempt_id=f"w-{node}", node=node)
        run.status = Status(run.id, Phase.RUNNING, 0.0)
        engine._table.runs[run.id] = run
    assert {one.attempt_id: one.memory_mib for one in await engine.measure()} == {"w-a": 1, "w-b": 2}
