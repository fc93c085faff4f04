"""A site of two nodes, of which neither can ask a third who is cut off: nothing runs twice, and nothing is lost.

A node without its control plane pauses its workloads until it learns whether they continue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.agent.test_swarm import agents_on
from tests.contract.engines.rigs import swarm_rig
from tests.contract.harness.processes import processes_of
from tests.contract.harness.swarm import MANAGER, Swarm, swarm_of
from tests.integration.test_swarm_loss import CUT_OFF, lose_a_node, none_ran_twice

from commonage.domain.statuses import Phase
from commonage.ports.agents import PARTITIONED_AFTER_S
from commonage.testing.behaviour import Behaviour

pytestmark = [pytest.mark.needs("docker"), pytest.mark.anyio]
_TICKS = """
while :; do
  read up rest </proc/uptime
  echo "$up" >>"$HOME/ticks"
  sleep 0.2
done
"""


@pytest.fixture(scope="module")
def swarm() -> Iterator[Swarm]:
    with swarm_of(1) as swarm:
        yield swarm


async def test_jobs_of_a_node_whose_cable_is_drawn_run_on_the_other_one_and_never_twice(
    swarm: Swarm, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    async with agents_on(tmp_path / "agents", swarm) as agents:
        none_ran_twice(await lose_a_node(swarm, tmp_path / "data", CUT_OFF, agents.linked, jobs=3))


async def test_the_control_planes_node_loses_its_power_and_nobody_any_work(swarm: Swarm, tmp_path: Path) -> None:
    """Workloads on the other node are paused meanwhile, and continue when it is back."""

    async def has_ticked() -> bool:
        return any((tmp_path / "data").rglob("ticks"))

    (tmp_path / "data").mkdir()
    async with (
        agents_on(tmp_path / "agents", swarm) as agents,
        swarm_rig(tmp_path / "data", swarm, agents.linked) as rig,  # type: ignore[arg-type]  # the port, too
    ):
        order = rig.start_request(Behaviour(), command=("/bin/sh", "-c", _TICKS))
        await (await rig.engine()).start(order)
        await rig.phase(order.attempt_id, Phase.RUNNING)
        await rig.until(has_ticked, "it writes")
        first, ticks = min(processes_of(order.attempt_id)), next((tmp_path / "data").rglob("ticks"))
        manager = swarm.machines[MANAGER]
        manager.unplug()
        manager.daemon.kill()
        await agents.be_away()
        await asyncio.sleep(PARTITIONED_AFTER_S)

        async def stands_still() -> bool:
            return ticks.stat().st_mtime < time.time() - 2.0

        await rig.until(stands_still, "the paused attempt does nothing")
        stood_at, now = ticks.stat().st_mtime, time.time()
        agents.programs["worker1"].kill()  # which one paused it is all the same
        agents.start("worker1")
        await asyncio.sleep(2.0)
        assert ticks.stat().st_mtime == stood_at
        assert first in processes_of(order.attempt_id)
        manager.plug()
        manager.daemon.start()
        await agents.listen()
        rig.agents = agents.linked  # type: ignore[assignment]  # likewise
        await rig.restart()

        async def goes_on() -> bool:
            return ticks.stat().st_mtime > now + 2.0 and not agents.agent_report("worker1").paused

        await rig.until(goes_on, "it continues where it was paused")
        assert first in processes_of(order.attempt_id)
        await rig.phase(order.attempt_id, Phase.RUNNING)
        warnings: list[tuple[str, str, str]] = []

        async def is_told() -> bool:
            warnings.extend(agents.linked.take_warnings())
            return bool(warnings)

        await rig.until(is_told, "the length of the pause is reported")
        [(_, attempt, words)] = warnings
        assert attempt == order.attempt_id
        assert "Paused for" in words
