"""The Swarm engine opens over objects of an older version."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engines.swarm.nodes.test_swarm_nodes import agent_report
from tests.unit.engines.swarm.test_launcher import NODE, Scene

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.nodes import SharedFolderNotSet
from commonage.domain.statuses import Measurement, Phase, Status
from commonage.engines.settings import SwarmSettings
from commonage.engines.swarm.engine import SwarmEngine
from commonage.engines.swarm.nodes.swarm_nodes import swarm_nodes_of

pytestmark = pytest.mark.anyio


async def refusal(data: Path, shared: Path) -> str:
    engine = SwarmEngine("site", data, shared, settings=SwarmSettings(url=f"unix://{data}/no-docker.sock"))
    with pytest.raises(EngineFailure) as caught:
        await engine.open()
    await engine.close()
    return caught.value.message


@pytest.mark.parametrize("apart", [True, False])
async def test_old_layout_is_migrated_by_the_named_command(tmp_path: Path, apart: bool) -> None:
    data, shared = tmp_path / "data", tmp_path / "shared" if apart else tmp_path / "data"
    (shared / "swarm" / "runs" / ".old" / "w-1").mkdir(parents=True)
    (shared / "swarm" / "runs" / ".old" / "w-1" / "log").write_text("hello\n")
    (shared / "swarm" / "installation").write_text("0123456789abcdef")
    said = await refusal(data, shared)
    assert "is of an older version" in said
    command = said.partition("once: ")[2].partition(" (/services")[0]
    await asyncio.to_thread(subprocess.run, ["sh", "-c", command], check=True)
    assert "Docker daemon does not answer" in await refusal(data, shared)
    assert (data / "swarm" / "installation").read_text() == "0123456789abcdef"
    engine = SwarmEngine("site", data, shared)
    assert [line.text async for line in engine.logs("w-1")] == ["hello"]
    await engine.close()


async def test_no_other_node_takes_work_while_the_data_folder_is_what_is_shared(tmp_path: Path) -> None:
    swarm_nodes = swarm_nodes_of([NODE, {**NODE, "ID": "node-2", "Description": {"Hostname": "worker2"}}])

    def faults(data: Path, shared: Path) -> list[bool]:
        engine = SwarmEngine("site", data, shared, settings=SwarmSettings(without_agents=True))
        engine._own_node_id = "node-1"
        engine._nodes.swarm_nodes, engine._nodes.by_id = (
            swarm_nodes,
            {one.id: one for one in swarm_nodes.values()},
        )
        return [any(isinstance(fault, SharedFolderNotSet) for fault in one.faults) for one in engine._reports()]

    assert faults(tmp_path, tmp_path) == [False, True]
    assert faults(tmp_path, tmp_path / "shared") == [False, False]


async def test_later_obstacle_does_not_prevent_start(tmp_path: Path) -> None:
    data, shared = tmp_path / "data", tmp_path / "shared"
    assert "Docker daemon does not answer" in await refusal(data, shared)
    (shared / "swarm" / "attempts" / ".old").rmdir()
    (shared / "swarm" / "attempts").rename(shared / "swarm" / "runs")
    assert "Docker daemon does not answer" in await refusal(data, shared)


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
