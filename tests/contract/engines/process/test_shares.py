"""The process engine and the GPUs: shares are held before a command runs and released when its last process ended."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.rigs import ProcessRig

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Share
from commonage.domain.statuses import Phase, StartRequest
from commonage.engines.rundir.runs import Runs
from commonage.engines.settings import ProcessSettings
from commonage.gpu.isolation.assignment_files import AssignmentFiles
from commonage.gpu.none import NoDevices
from commonage.ports.devices import ShareAssignment, ShareNotEnforced
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import FOREVER

pytestmark = pytest.mark.anyio
SHARE = Share("GPU-1", 0, "A100", 1024, 100, whole=False, device_memory_mib=10240)


class Devices(NoDevices):
    """Keeps holds on disk and says what it was asked, and what of the attempt was there meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.holds = AssignmentFiles(folder / "holds")
        self.calls: list[str] = []
        self.fails = ""

    def enforce(self, hold: ShareAssignment) -> Mapping[str, str]:
        groups = [Path(folder) for folder in hold.cgroups]
        assert all(not (group / "cgroup.procs").read_text() for group in groups), "it runs already"
        self.calls.append(f"enforce with {len(groups) and 'groups'}")
        self.holds.put(hold)
        if self.fails:
            raise ShareNotEnforced(self.fails)
        return {"HELD": "yes", "PYTHONPATH": "/ours"}

    def release(self, attempt_id: str) -> None:
        hold = self.holds.get(attempt_id)
        if hold is None:
            return
        there = all(Path(group).is_dir() for group in hold.cgroups)
        self.calls.append(f"release while its groups are {'there' if there else 'gone'}")
        self.holds.drop(attempt_id)

    def settle(self, live: Collection[str]) -> None:
        for attempt_id in set(self.holds.ids()) - set(live):
            self.holds.drop(attempt_id)


class Rig(ProcessRig):
    devices: Devices

    def __init__(self, data: Path, cgroups: bool) -> None:
        super().__init__(data, ProcessSettings(node_name="here", cgroups=cgroups), Devices(data))

    def request(self, behaviour: Behaviour, **changes: object) -> StartRequest:
        request = self.start_request(behaviour, **changes)
        return replace(request, allocation=replace(request.allocation, shares=(SHARE,)))


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.needs("cgroups")), False], ids=["cgroups", "marked"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path, request.param)
    yield rig
    await rig.end_all(forget=False)


async def test_a_share_is_held_before_the_command_runs_and_until_it_ended(rig: Rig) -> None:
    request = rig.request(Behaviour(shows=("HELD", "PYTHONPATH")), variables=(("PYTHONPATH", "/mine"), ("HELD", "no")))
    await rig.ended(request)
    assert await rig.lines(request.attempt_id) == ["HELD=yes", "PYTHONPATH=/ours:/mine"]
    enforced = "enforce with groups" if rig.settings.cgroups else "enforce with 0"
    assert rig.devices.calls == [enforced, "release while its groups are there"]
    assert not rig.devices.holds.ids()


async def test_without_a_share_the_devices_are_not_asked(rig: Rig) -> None:
    await rig.ended(rig.start_request(Behaviour()))
    assert not rig.devices.calls


async def test_what_cannot_be_held_does_not_run_and_leaves_nothing(rig: Rig) -> None:
    rig.devices.fails = "the driver answers no"
    request = rig.request(FOREVER)
    with pytest.raises(EngineFailure, match="the driver answers no"):
        await (await rig.engine()).start(request)
    assert await rig.status(request.attempt_id) is None
    assert not rig.devices.holds.ids()
    assert Runs(rig.data / "runs").all() == []


async def test_a_stop_releases_and_so_does_a_child_that_was_left_behind(rig: Rig) -> None:
    stopped = await rig.started(rig.request(replace(FOREVER, leaves_child=True)))
    assert rig.devices.holds.ids() == [stopped.attempt_id]
    await (await rig.engine()).stop(stopped.attempt_id, 0)
    await rig.phase(stopped.attempt_id, Phase.ENDED)
    assert not rig.devices.holds.ids()


async def test_after_a_restart_the_living_keep_their_shares_and_others_lose_theirs(rig: Rig) -> None:
    living = await rig.started(rig.request(FOREVER))
    rig.devices.holds.put(ShareAssignment("w-unknown-1", (SHARE,)))
    await rig.restart()
    assert rig.devices.holds.ids() == [living.attempt_id]


async def test_one_that_was_held_but_not_started_is_held_again_and_runs(rig: Rig) -> None:
    request = rig.request(Behaviour(prints=("ran",)))
    runs = Runs(rig.data / "runs")
    runs.open()
    runs.create(request, None)
    rig.devices.holds.put(ShareAssignment(request.attempt_id, (SHARE,)))  # and here the server was killed
    await rig.phase(request.attempt_id, Phase.ENDED)
    assert await rig.lines(request.attempt_id) == ["ran"]
    assert not rig.devices.holds.ids()


OWNER = """
import asyncio, os, sys
from pathlib import Path
from tests.contract.engines.process.test_shares import FOREVER, Devices, Rig

class Deadly(Devices):
    def enforce(self, hold):
        super().enforce(hold)
        os.kill(os.getpid(), 9)

async def main():
    rig = Rig(Path(sys.argv[1]), cgroups=False)
    rig.devices = Deadly(rig.data)
    await (await rig.engine()).start(rig.request(FOREVER))

asyncio.run(main())
"""


async def test_killed_between_holding_and_starting_nothing_leaks(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, str(tmp_path), cwd=os.getcwd())
    assert await owner.wait() == -signal.SIGKILL
    rig = Rig(tmp_path, cgroups=False)
    (attempt,) = rig.devices.holds.ids()
    engine = await rig.engine()
    await rig.phase(attempt, Phase.RUNNING)
    assert rig.devices.calls == ["enforce with 0"]
    await engine.stop(attempt, 0)
    await rig.phase(attempt, Phase.ENDED)
    assert not rig.devices.holds.ids()
    await engine.close()
