"""Statuses of an attempt whose node is lost. It is ended first if it may still run. No attempt that ran "never ran"."""

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engines.swarm.test_launcher import Scene
from tests.unit.engines.swarm.test_statuses import task

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons.attempts import NodeLost
from commonage.domain.reasons.nodes import NotInSwarm, SwarmNodeDown
from commonage.domain.statuses import Phase
from commonage.engines.containers.attempt_backend import Ended, Run
from commonage.engines.containers.files.control_folder import Owner, StartDecision
from commonage.engines.rundir.runs import Exit
from commonage.engines.swarm.nodes import fencing
from commonage.engines.swarm.nodes.swarm_nodes import swarm_nodes_of

pytestmark = pytest.mark.anyio
WHY = NodeLost(node="worker1", cause=SwarmNodeDown(error="heartbeat failure"))
TAKEN_OUT = NodeLost(node="worker1", cause=NotInSwarm(node="worker1", nodes=()))
OWNER = Owner(0, 0, 0, 0)


class Lost:
    """An attempt on a node that the Swarm gave up, or (`there`) that was taken out of it. `ends`: what its agent is
    asked to end, it ends.
    """

    def __init__(self, folder: Path, *, agent: bool = True, ends: bool = True, there: bool = True) -> None:
        self.scene, self.fenced, self.ends = Scene(folder), list[str](), ends
        self.scene.agents.connected = agent
        self.scene.hear()
        agents: Any = self.scene.agents
        agents.fence = self._fence
        status = {"State": "down", "Message": "heartbeat failure"}
        node = {"ID": "node-1", "Description": {"Hostname": "worker1"}, "Status": status, "Spec": {}}
        self.scene.node_tracker.swarm_nodes = swarm_nodes_of([node] if there else [])
        self.scene.node_tracker.by_id = {one.id: one for one in self.scene.node_tracker.swarm_nodes.values()}
        self.run: Run = self.scene.run()
        self.run.control_folder.make({}, replace(OWNER, host_uid=self.run.folder.path.stat().st_uid), stop=True)

    async def _fence(self, _node: str, attempts: Collection[str]) -> Collection[str]:
        self.fenced += attempts
        return list(attempts) if self.ends else []

    def runs(self) -> None:
        (self.run.control_folder.path / "claim").write_text("ran\n")
        self.run.status = replace(self.run.status, phase=Phase.RUNNING)

    @property
    def stop(self) -> str:
        return (self.run.control_folder.path / "stop").read_text().strip()

    async def inspect(self) -> Ended:
        told = {**task("running"), "NodeID": "node-1", "CreatedAt": "1", "Version": {"Index": 1}}
        self.scene.swarm.all_tasks = [told]
        await self.scene.tasks.ask()
        seen = await self.scene.container_client.inspect(self.run)
        assert isinstance(seen, Ended)
        return seen

    async def end(self) -> Exit:
        return await (await self.inspect()).end()


@pytest.fixture(autouse=True)
def nobody_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wish on a node that is gone is not waited for."""
    monkeypatch.setattr(fencing, "REACTS_WITHIN_S", 0.0)


@pytest.mark.parametrize("agent", [True, False])
@pytest.mark.parametrize("there", [True, False])
async def test_running_attempt_is_fenced_then_lost(tmp_path: Path, agent: bool, there: bool) -> None:
    lost = Lost(tmp_path, agent=agent, there=there)
    lost.runs()
    seen = await lost.inspect()
    assert seen.started_at is not None
    end = await seen.end()
    assert (end.code, end.reason) == (None, WHY if there else TAKEN_OUT)
    assert lost.fenced == (["w-1"] if agent else []), "without its agent it stands still"
    assert lost.stop == ("none" if agent or there else "kill"), "the state of a missing service is unknown"
    assert lost.run.control_folder.decision() is StartDecision.STARTED


@pytest.mark.parametrize("seen_running", [True, False])
async def test_started_attempt_is_not_given_up_while_it_may_run(tmp_path: Path, seen_running: bool) -> None:
    lost = Lost(tmp_path, ends=False)
    lost.runs()
    if not seen_running:
        lost.run.status = replace(lost.run.status, phase=Phase.STARTING)
    for _ in range(2):
        with pytest.raises(EngineFailure, match="it is being ended on worker1 first"):
            await lost.end()
    assert lost.run.control_folder.decision() is StartDecision.STARTED
    lost.ends = True
    end = await lost.end()
    assert (end.code, end.reason) == (None, WHY)


@pytest.mark.parametrize("made_of_it", [None, "never"])
@pytest.mark.parametrize("agent", [True, False])
async def test_seen_running_attempt_is_ended_despite_forged_claim(
    tmp_path: Path, made_of_it: str | None, agent: bool
) -> None:
    lost = Lost(tmp_path, agent=agent)
    lost.runs()
    claim = lost.run.control_folder.path / "claim"
    claim.unlink()
    if made_of_it is not None:
        claim.write_text(made_of_it)
    end = await lost.end()
    assert (end.code, end.reason) == (None, WHY)
    assert (lost.fenced, lost.stop) == (["w-1"] if agent else [], "none")


async def test_unstarted_attempt_is_given_up_without_agent(tmp_path: Path) -> None:
    lost = Lost(tmp_path, ends=False)
    seen = await lost.inspect()
    assert seen.started_at is None
    end = await seen.end()
    assert (end.code, end.reason) == (None, WHY)
    assert (lost.fenced, lost.stop, lost.run.control_folder.decision()) == ([], "none", StartDecision.FORBIDDEN)


async def test_attempt_that_ended_before_keeps_its_exit_code(tmp_path: Path) -> None:
    lost = Lost(tmp_path, ends=False)
    lost.runs()
    (lost.run.control_folder.path / "end").write_text("3\n")
    end = await lost.end()
    assert (end.code, end.reason) == (3, None)
    assert end.at <= time.time()
    assert lost.fenced == []
