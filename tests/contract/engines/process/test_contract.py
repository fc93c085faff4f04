"""The engine contract on the process engine, held by control groups where this machine has them, and without them."""

import asyncio
import os
import signal
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.contract.engines.gang_contract import GangContract
from tests.contract.engines.rigs import ProcessRig, process_rig
from tests.contract.harness.processes import processes_of

from commonage.catalogue import builtin_environments
from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.reasons.attempts import ExitCodeLoss, ExitCodeLost, NodeRestarted
from commonage.domain.reasons.engines import ControlGroupsMissing
from commonage.domain.statuses import Phase, StartRequest
from commonage.engines.process.processes import boot_id, send, spawn_shim
from commonage.engines.rundir.runs import RunFolder, Runs
from commonage.engines.rundir.workspaces import folder_name
from commonage.engines.settings import ProcessSettings
from commonage.testing.behaviour import KILLED, Behaviour
from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import FOREVER, EngineRig
from commonage.testing.exec_contract import ExecContract


@pytest.mark.needs("cgroups")
class TestWithControlGroups(EngineContract, ExecContract, GangContract):
    @pytest.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[EngineRig]:
        async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
            assert (await rig.engine()).capabilities().limits_memory
            yield rig


class TestWithoutControlGroups(EngineContract, ExecContract):
    @pytest.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[EngineRig]:
        async with process_rig(tmp_path, ProcessSettings(node_name="here", cgroups=False)) as rig:
            assert not (await rig.engine()).capabilities().limits_memory
            yield rig


# --- what only this engine promises -------------------------------------------------------------------------------

OWNER = """
import asyncio, sys
from pathlib import Path
from random import Random
from tests.contract.engines.rigs import Behaviour, ProcessRig, ProcessSettings
from commonage.testing.engine_rig import FOREVER

async def main():
    rig = ProcessRig(Path(sys.argv[1]), ProcessSettings(node_name="here", cgroups=sys.argv[2] == "True"))
    living = await rig.started(rig.start_request(FOREVER))
    ending = await rig.started(rig.start_request(Behaviour(lasts_s=0.5, prints=("here",), exit_code=4)))
    fresh = rig.start_request(Behaviour(lasts_s=0.5, prints=("here",), exit_code=5))
    starting = asyncio.create_task((await rig.engine()).start(fresh))
    print(living.attempt_id, ending.attempt_id, fresh.attempt_id, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.anyio
@pytest.mark.parametrize("cgroups", [pytest.param(True, marks=pytest.mark.needs("cgroups")), False])
async def test_a_killed_owner_loses_nothing(tmp_path: Path, cgroups: bool) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(tmp_path), str(cgroups), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    living, ending, fresh = (await owner.stdout.readline()).decode().split()
    owner.kill()
    await owner.wait()
    await asyncio.sleep(0.8)
    async with process_rig(tmp_path, ProcessSettings(node_name="here", cgroups=cgroups)) as rig:
        await rig.phase(living, Phase.RUNNING)
        assert (await rig.phase(ending, Phase.ENDED)).exit_code == 4
        # Killed while it started: either nothing of it is there, or it ran once, to its end.
        if await rig.status(fresh) is not None:
            assert (await rig.phase(fresh, Phase.ENDED)).exit_code == 5
            assert await rig.lines(fresh) == ["here"]
        assert await rig.lines(living) == ["here"]


@pytest.mark.anyio
@pytest.mark.needs("cgroups")
async def test_what_ends_at_once_has_its_use_read_from_its_groups(tmp_path: Path) -> None:
    program = "sum(range(3_000_000)); held = bytes(range(256)) * 200_000"
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        ended = await rig.ended(rig.start_request(Behaviour(), command=(sys.executable, "-c", program)))
        assert ended.exit_code == 0
        assert ended.used is not None
        assert ended.used.cpu_s > 0
        assert ended.used.memory_peak_mib >= 48


@pytest.mark.anyio
async def test_its_loops_are_named(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here", cgroups=False)) as rig:
        names = [iterations.name for iterations in (await rig.engine()).loops()]
    assert names == ["process: watch memory", "process: limit logs", "process: clean up"]


@pytest.mark.anyio
async def test_what_was_written_down_but_not_started_is_started_at_open(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        request = rig.start_request(
            Behaviour(prints=("here",), exit_code=3, shows=("HIDDEN",)), secrets=(("HIDDEN", "x"),)
        )
        files = Runs(tmp_path / "runs")
        files.open()
        files.create(request, None)
        (tmp_path / "runs" / "half-written-1").mkdir()
        assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 3
        assert await rig.lines(request.attempt_id) == ["here", "HIDDEN=x"]
        assert not (tmp_path / "runs" / "half-written-1").exists()


@pytest.mark.anyio
async def test_attempt_that_was_stopped_before_start_leaves_no_folder(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        request = rig.start_request(Behaviour())
        await (await rig.engine()).stop(request.attempt_id, 1)
        await rig.restart()
        engine = await rig.engine()
        assert (tmp_path / "runs" / request.attempt_id).exists(), "a start that comes late must find it"
        await engine.forget(request.attempt_id)
        await engine.forget("never-heard-of-1")
        assert not (tmp_path / "runs" / request.attempt_id).exists()


@pytest.mark.anyio
async def test_a_second_shim_leaves_without_a_trace(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        request = await rig.started(rig.start_request(FOREVER))
        folder = tmp_path / "runs" / request.attempt_id
        reap_all([spawn_shim(folder, [], ("sh", "-c", "echo twice"), {}, tmp_path) for _ in range(5)])
        assert await rig.lines(request.attempt_id) == ["here"]
        await rig.phase(request.attempt_id, Phase.RUNNING)


def reap_all(pids: list[int]) -> None:
    for pid in pids:
        os.waitpid(pid, 0)


@pytest.mark.anyio
async def test_an_end_that_nobody_knows_is_lost(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        request = await rig.started(rig.start_request(FOREVER))
        runner = RunFolder(tmp_path / "runs" / request.attempt_id).runner()
        assert runner is not None
        send([runner.pid], signal.SIGKILL)
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert end.exit_code is None
        assert end.reason == ExitCodeLost(why=ExitCodeLoss.SHIM_KILLED)
        assert processes_of(request.attempt_id) == []


@pytest.mark.anyio
async def test_a_reboot_is_noticed(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        request = rig.start_request(FOREVER)
        folder = Runs(tmp_path / "runs")
        folder.open()
        run = folder.create(request, None)
        (run.path / "pid").write_text(f"{os.getpid()} 1 another-boot\n")
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert end.exit_code is None
        assert isinstance(end.reason, NodeRestarted)


@pytest.mark.anyio
async def test_a_number_that_was_given_to_another_process_is_not_mistaken(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        request = rig.start_request(FOREVER)
        folder = Runs(tmp_path / "runs")
        folder.open()
        run = folder.create(request, None)
        (run.path / "pid").write_text(f"{os.getpid()} 1 {boot_id()}\n")
        end = await rig.phase(request.attempt_id, Phase.ENDED)
        assert end.exit_code is None


@pytest.mark.anyio
async def test_secrets_are_private_and_gone_after_the_end(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        request = await rig.started(rig.start_request(FOREVER, secrets=(("KEY", "sesame"),)))
        folder = tmp_path / "runs" / request.attempt_id
        assert folder.stat().st_mode & 0o777 == 0o700
        holders = [file.name for file in folder.iterdir() if file.is_file() and b"sesame" in file.read_bytes()]
        assert holders == ["secrets.json"]
        assert (folder / "secrets.json").stat().st_mode & 0o777 == 0o600
        await (await rig.engine()).stop(request.attempt_id, 0)
        await rig.phase(request.attempt_id, Phase.ENDED)
        assert {file.name for file in folder.iterdir()} == {"request.json", "pid", "exit", "log"}
        await (await rig.engine()).forget(request.attempt_id)
        old = tmp_path / "runs" / ".old" / request.attempt_id
        assert [file.name for file in old.iterdir()] == ["log"]


@pytest.mark.anyio
async def test_the_servers_own_variables_stay_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMONAGE_DATABASE_URL", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "proxy")
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        shown = ("COMMONAGE_DATABASE_URL", "HTTPS_PROXY", "HOME", "VIRTUAL_ENV")
        request = rig.start_request(Behaviour(shows=shown), owner="Ada Lovelace")
        await rig.ended(request)
        workspace = tmp_path / "workspaces" / folder_name("Ada Lovelace")
        assert await rig.lines(request.attempt_id) == [
            "COMMONAGE_DATABASE_URL=",
            "HTTPS_PROXY=proxy",
            f"HOME={workspace}",
            "VIRTUAL_ENV=",
        ]
        assert workspace.stat().st_mode & 0o777 == 0o700


@pytest.mark.anyio
async def test_a_job_works_where_its_files_are(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    bundle = tmp_path / "bundle.tar.gz"
    with tarfile.open(bundle, "w:gz") as archive:
        archive.add(tmp_path / "train.py", "src/train.py")
    async with process_rig(tmp_path / "data", ProcessSettings(node_name="here")) as rig:
        command = ("sh", "-c", "pwd; cat src/train.py")
        request = rig.start_request(Behaviour(), command=command, bundle_path=str(bundle))
        assert (await rig.ended(request)).exit_code == 0
        place = tmp_path / "data" / "workspaces" / "ada" / "jobs" / request.workload_id
        assert await rig.lines(request.attempt_id) == [str(place), "print('trained')"]


@pytest.mark.anyio
async def test_what_cannot_be_started_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        engine = await rig.engine()
        for changes in (
            {"command": ()},
            {"command": ("sh", "a\0b")},
            {"variables": (("LONG", "x" * 3_000_000),)},
            {"bundle_path": str(tmp_path / "missing.tar.gz")},
        ):
            request = rig.start_request(Behaviour(), **changes)
            with pytest.raises(EngineFailure):
                await engine.start(request)
            assert await engine.statuses() == []
            assert not (tmp_path / "runs" / request.attempt_id).exists()


@pytest.mark.anyio
@pytest.mark.needs("cgroups")
async def test_a_quota_holds_cpu_to_what_was_asked_for(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here", cpu_hold="quota")) as rig:
        engine = await rig.engine()
        stop = rig.start_request(FOREVER, command=("sh", "-c", "echo here; while :; do :; done"))
        request = await rig.started(replace(stop, allocation=replace(stop.allocation, cpus_milli=200)))
        await asyncio.sleep(1.5)
        [measured] = await engine.measure()
        [running] = await engine.statuses()
        assert running.started_at is not None
        lasted_s = time.time() - running.started_at
        # A fifth of a core, and once as much again from the burst; unheld it would be more than a second.
        assert 0 < measured.cpu_s < 0.2 * lasted_s + 0.5
        assert request.attempt_id == measured.attempt_id


@pytest.mark.anyio
async def test_memory_is_watched_where_it_cannot_be_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonage.engines.process.run.MEMORY_PAUSE_S", 0.1)
    async with process_rig(tmp_path, ProcessSettings(node_name="here", cgroups=False)) as rig:
        hog = (sys.executable, "-c", "import time; x = b'x' * 80_000_000; time.sleep(60)")
        end = await rig.ended(rig.start_request(FOREVER, command=hog, memory_mib=64))
        assert end.oom
        assert end.exit_code == KILLED
        assert ControlGroupsMissing() in (await rig.engine()).capabilities().notes


BUSY_OWNER = """
import asyncio, sys
from pathlib import Path
from random import Random
from tests.contract.engines.process.test_contract import busy_requests
from tests.contract.engines.rigs import Phase, ProcessRig, ProcessSettings

async def main():
    rig = ProcessRig(Path(sys.argv[1]) / "data", ProcessSettings(node_name="here"))
    engine = await rig.engine()
    print("open", flush=True)
    for request in busy_requests(rig, Path(sys.argv[1])):
        await engine.start(request)
    while not all(status.phase is Phase.ENDED for status in await engine.statuses()):
        await asyncio.sleep(0.05)
    await engine.close()

asyncio.run(main())
"""


def busy_requests(rig: ProcessRig, out: Path) -> list[StartRequest]:
    """The same two hundred orders each time: jobs that leave a line in a file of their own each time they run."""
    requests = []
    for number in range(200):
        stop = rig.start_request(Behaviour(), variables=(("OUT", str(out)),))
        attempt = f"busy{number:09}-1"
        command = ("sh", "-c", 'echo ran >>"$OUT/$COMMONAGE_ATTEMPT_ID"; sleep 0.3; exit 2')
        allocation = replace(stop.allocation, attempt_id=attempt)
        requests.append(replace(stop, attempt_id=attempt, command=command, allocation=allocation))
    return requests


@pytest.mark.anyio
async def test_two_hundred_jobs_survive_ten_kills_of_their_owner(tmp_path: Path) -> None:
    chance = Random(7)
    for kills in range(11):
        owner = await asyncio.create_subprocess_exec(
            sys.executable, "-c", BUSY_OWNER, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert owner.stdout is not None
        assert await owner.stdout.readline() == b"open\n"
        if kills < 10:
            await asyncio.sleep(chance.uniform(0, 0.05))
            assert owner.returncode is None, "killed too late to prove anything"
            owner.kill()
        await owner.wait()
    async with process_rig(tmp_path / "data", ProcessSettings(node_name="here")) as rig:
        codes = {status.attempt_id: status.exit_code for status in await (await rig.engine()).statuses()}
        for request in busy_requests(rig, tmp_path):
            assert codes[request.attempt_id] == 2
            assert (tmp_path / request.attempt_id).read_text() == "ran\n"


@pytest.mark.anyio
async def test_uv_really_makes_an_environment_and_says_why_it_cannot(tmp_path: Path) -> None:
    async with process_rig(tmp_path, ProcessSettings(node_name="here")) as rig:
        engine = await rig.engine()
        base = builtin_environments()[0]
        command = ("python", "-c", "import sys; print(sys.prefix)")
        requests = [rig.start_request(Behaviour(), environment=base, command=command) for _ in range(3)]
        await asyncio.gather(*(engine.start(request) for request in requests))
        for request in requests:
            assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 0
            [prefix] = await rig.lines(request.attempt_id)
            assert Path(prefix).parent == tmp_path / "environments"
        with pytest.raises(EngineFailure, match=r"EnvironmentFailed.*missing\.whl"):
            await engine.prepare(Environment("broken", "Broken", requirements=(str(tmp_path / "missing.whl"),)))
