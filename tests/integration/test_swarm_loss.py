"""A node of a real Swarm dies under ten jobs, or is cut off: control puts them elsewhere, and none runs twice.

Each job writes its attempt and the node's uptime into its home several times a second, which tells afterwards when
it ran where; also on a node that is cut off, as its share is a folder here. `python -m benchmarks swarm-loss` prints
how long it took.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.contract.agent.test_swarm import Agents as LinkedTo
from tests.contract.agent.test_swarm import agents_on
from tests.contract.engines.rigs import swarm_rig
from tests.contract.harness.dockerd import IMAGE
from tests.contract.harness.local_agents import LocalAgents
from tests.contract.harness.processes import processes_of
from tests.contract.harness.swarm import MANAGER, Node, Swarm, swarm_of
from tests.fakes.metrics import KeptMetrics
from tests.fakes.waiting import until
from tests.integration.api_world import FakeIdentity

from commonage.control.control import Adapters, Control
from commonage.control.engines import Engines
from commonage.control.settings import ControlSettings
from commonage.control.workloads.submission import Submission
from commonage.domain.images import Environment
from commonage.domain.nodes import NodeState
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.nodes import MayBeCutOff
from commonage.domain.statuses import Phase
from commonage.domain.workloads import Kind, State, Workload
from commonage.engines.settings import SwarmSettings
from commonage.engines.swarm.engine import SwarmEngine
from commonage.gpu.none import NoDevices
from commonage.ports.agents import PARTITIONED_AFTER_S, Agents
from commonage.server.bootstrap import SystemClock
from commonage.store.bundle_files import BundleFiles
from commonage.testing.engine_rig import FOREVER
from commonage.testing.factories import node_key
from commonage.testing.fakes.store import MemoryStore

pytestmark = [pytest.mark.needs("docker"), pytest.mark.anyio]
ROOT = Principal("root", frozenset(Scope))
JOBS = 10
_TICKING = """
while :; do
  read up rest </proc/uptime
  echo "$COMMONAGE_ATTEMPT $up" >>"$HOME/ticks-$COMMONAGE_WORKLOAD_ID"
  sleep 0.2
done
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """Seconds from the kill until it was noticed, and until all jobs ran elsewhere; what each job wrote."""

    noticed_s: float
    elsewhere_s: float
    ticks: dict[str, list[tuple[int, float]]]

    def gaps(self) -> list[float]:
        """For each job the seconds between the last word of its first attempt and the first of its second."""
        found = []
        for ticks in self.ticks.values():
            first = [up for attempt, up in ticks if attempt == 1]
            second = [up for attempt, up in ticks if attempt == 2]
            found.append(min(second) - max(first))
        return found


@dataclass(frozen=True, slots=True)
class Blow:
    """A failure of a node, of a site with this folder, and its repair."""

    strike: Callable[[Node, Path], None]
    mend: Callable[[Node], None]


def cut_off(node: Node, data: Path) -> None:
    """From the share, too: what is wished there is not heard. What it writes itself is seen here, to tell of it."""
    node.unplug()
    for stop in data.glob("swarm/attempts/*/control/stop"):
        stop.unlink()


DAEMON_KILLED = Blow(lambda node, _: node.daemon.kill(), lambda node: node.daemon.start())
CUT_OFF = Blow(cut_off, Node.plug)


@asynccontextmanager
async def control_on(swarm: Swarm, data: Path, agents: Agents | None = None) -> AsyncIterator[Control]:
    settings = SwarmSettings(url=swarm.manager.daemon.url)
    engine = SwarmEngine(
        "local", data.with_name(f"{data.name}-control"), data, agents=agents or LocalAgents(swarm), settings=settings
    )
    world = Adapters(
        store=MemoryStore(),
        metrics=KeptMetrics(),
        clock=SystemClock(),
        identity=FakeIdentity(),
        bundles=BundleFiles(data / "bundles"),
        devices=NoDevices(),
        engines=Engines([engine]),
        environments=[Environment("base", "Of this machine", image=IMAGE)],
        chance=random.randrange,
    )
    control = Control(world, ControlSettings(sample_every_s=1.0))
    await control.store.open()
    await control.open()
    loops = asyncio.create_task(control.run())
    try:
        await until(lambda: len(control.live_state.nodes) == len(swarm.machines), "all nodes are seen")
        yield control
    finally:
        for one in list(control.live_state):
            await control.workloads.stop(ROOT, one.id)
        await until(lambda: not len(control.live_state), "all have ended")
        loops.cancel()
        await asyncio.wait([loops])
        await control.close()
        await control.store.close()


def power_off(agents: LinkedTo, name: str) -> Blow:
    """All that runs on the node ends at once, and no word of it comes through."""

    def strike(node: Node, data: Path) -> None:
        cut_off(node, data)
        agents.programs[name].kill()
        there = [one["Labels"]["commonage.attempt"] for one in node.daemon.containers(label=["commonage.attempt"])]
        node.daemon.kill()
        for pid in (pid for attempt in there for pid in processes_of(attempt)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def mend(node: Node) -> None:
        node.plug()
        node.daemon.start()
        agents.start(name)

    return Blow(strike, mend)


async def lose_a_node(
    swarm: Swarm, data: Path, blow: Blow = DAEMON_KILLED, agents: Agents | None = None, jobs: int = JOBS
) -> Loss:
    """Have jobs run on the last node, strike it, and wait until they run elsewhere; then it is mended."""
    *others, dies = swarm.machines
    async with control_on(swarm, data, agents) as control:

        def running(where: Callable[[Workload], bool]) -> int:
            return sum(where(one) for one in control.live_state.in_state(State.RUNNING))

        for name in others:
            await control.nodes.drain(ROOT, node_key(name), True)
        ask = Submission(Kind.JOB, ("/bin/sh", "-c", _TICKING), environment="base", cpus_milli=50, memory_mib=64)
        for _ in range(jobs):
            await control.workloads.submit(ROOT, ask)
        await until(lambda: running(lambda one: _node(one) == dies) == jobs, "all run on the node that dies")
        for name in others:
            await control.nodes.drain(ROOT, node_key(name), False)
        files = {one.id: data / "workspaces" / "root" / f"ticks-{one.id}" for one in control.live_state}
        await until(lambda: all(file.exists() for file in files.values()), "all have written")
        began = time.monotonic()
        await asyncio.to_thread(blow.strike, swarm.machines[dies], data)
        await until(lambda: control.live_state.nodes[node_key(dies)].state is not NodeState.READY, "it is noticed")
        noticed = time.monotonic() - began
        await until(lambda: running(lambda one: _node(one) != dies) == jobs, "all run elsewhere")
        elsewhere = time.monotonic() - began
        await until(lambda: all(2 in {attempt for attempt, _ in _ticks(file)} for file in files.values()), "all go on")
        blow.mend(swarm.machines[dies])
        await until(lambda: control.live_state.nodes[node_key(dies)].state is NodeState.READY, "it is back")
        await until(lambda: not swarm.machines[dies].daemon.containers(label=["commonage.attempt"]), "and swept")
        assert running(lambda one: _node(one) != dies) == jobs, "restarted jobs continue"
    return Loss(noticed, elsewhere, {one: _ticks(file) for one, file in files.items()})


def _node(one: Workload) -> str:
    return one.attempt.allocation.node if one.attempt else ""


def _ticks(file: Path) -> list[tuple[int, float]]:
    """(attempt, uptime) of each line that is whole."""
    lines = [line.split() for line in file.read_text().splitlines()]
    return [(int(words[0]), float(words[1])) for words in lines if len(words) == 2]


@pytest.fixture(scope="module")
def swarm() -> Iterator[Swarm]:
    with swarm_of(3) as swarm:
        yield swarm


def none_ran_twice(found: Loss) -> None:
    print(f"noticed after {found.noticed_s:.1f} s, elsewhere after {found.elsewhere_s:.1f} s, gaps {found.gaps()}")
    assert found.ticks
    for ticks in found.ticks.values():
        assert {attempt for attempt, _ in ticks} == {1, 2}
    assert min(found.gaps()) > 0, "the second attempt began before the first had ended"


async def test_jobs_of_a_node_whose_daemon_dies_run_elsewhere_and_none_twice(swarm: Swarm, tmp_path: Path) -> None:
    none_ran_twice(await lose_a_node(swarm, tmp_path))


async def test_jobs_of_a_node_that_is_cut_off_run_elsewhere_and_none_twice(swarm: Swarm, tmp_path: Path) -> None:
    """It cannot be reached to end them: it does so by itself, before they start elsewhere."""
    (tmp_path / "data").mkdir()
    async with agents_on(tmp_path / "agents", swarm) as agents:
        none_ran_twice(await lose_a_node(swarm, tmp_path / "data", CUT_OFF, agents.linked))


async def test_nobody_ends_anything_while_the_control_plane_is_away(swarm: Swarm, tmp_path: Path) -> None:
    """It was killed, and comes back; or its node is cut off, and the others still see each other."""
    (tmp_path / "data").mkdir()
    async with agents_on(tmp_path / "agents", swarm) as agents:
        rig_for = swarm_rig(tmp_path / "data", swarm, agents.linked)  # type: ignore[arg-type]  # the port, too
        async with rig_for as rig:
            await rig.engine()
            order = rig.start_request(FOREVER)
            await rig.started(order)
            first = min(processes_of(order.attempt_id))
            await until(
                lambda: all(one.neighbors for one in agents.linked.agent_reports()), "agents know of each other"
            )
            await agents.be_away()
            await asyncio.sleep(1.75 * PARTITIONED_AFTER_S)
            assert first in processes_of(order.attempt_id)
            await agents.listen()
            rig.agents = agents.linked  # type: ignore[assignment]  # likewise
            await rig.restart()
            await until(lambda: len(agents.linked.agent_reports()) == len(swarm.machines), "all are back")
            assert not any(one.fenced for one in agents.linked.agent_reports())
            await rig.phase(order.attempt_id, Phase.RUNNING)
            swarm.machines[MANAGER].unplug()
            try:
                await asyncio.sleep(1.75 * PARTITIONED_AFTER_S)
                assert first in processes_of(order.attempt_id), "most of the nodes see each other"
                await rig.phase(order.attempt_id, Phase.RUNNING)  # a side that is the minority gives up no node

                async def is_told() -> bool:
                    [report] = [one for one in await (await rig.engine()).nodes() if one.name == order.allocation.node]
                    return MayBeCutOff(node=order.allocation.node) in report.faults

                await rig.until(is_told, "the reason why it is not given up is shown")
                await rig.phase(order.attempt_id, Phase.RUNNING)
            finally:
                swarm.machines[MANAGER].plug()
            await until(lambda: all(one.connected for one in agents.linked.agent_reports()), "all are back")
            assert not any(one.fenced for one in agents.linked.agent_reports())
