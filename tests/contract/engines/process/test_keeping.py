"""The process engine beyond the contract: shares of CPU, and old logs."""

import asyncio
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.rigs import ProcessRig, process_rig

from commonage.domain.errors import NotFound
from commonage.engines.rundir.runs import Runs
from commonage.engines.settings import ProcessSettings
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import FOREVER

DAY_S = 24 * 3600
MIB = 1024 * 1024
HERE = ProcessSettings(node_name="here")


async def busy(rig: ProcessRig, cpus_milli: int, core: int) -> str:
    """An attempt with this request, whose program uses a whole core."""
    code = f"import os; os.sched_setaffinity(0, [{core}]); print('here', flush=True)\nwhile True: pass"
    stop = rig.start_request(FOREVER, command=(sys.executable, "-c", code))
    request = await rig.started(replace(stop, allocation=replace(stop.allocation, cpus_milli=cpus_milli)))
    return request.attempt_id


async def used(rig: ProcessRig) -> dict[str, float]:
    return {found.attempt_id: found.cpu_s for found in await (await rig.engine()).measure()}


@pytest.mark.anyio
@pytest.mark.needs("cgroups")
async def test_a_crowded_core_is_shared_by_what_was_asked_for(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    async with process_rig(tmp_path, HERE) as rig:
        small, large = await busy(rig, 250, core), await busy(rig, 750, core)
        before = await used(rig)

        async def is_enough() -> bool:
            after = await used(rig)
            return after[small] + after[large] - before[small] - before[large] > 1.5

        await rig.until(is_enough, "they used 1.5 s of CPU", within_s=60)
        after = await used(rig)
        assert 2 < (after[large] - before[large]) / (after[small] - before[small]) < 4.5


@pytest.mark.anyio
@pytest.mark.needs("cgroups")
async def test_an_idle_core_may_be_used_by_whoever_asked_for_little(tmp_path: Path) -> None:
    async with process_rig(tmp_path, HERE) as rig:
        attempt = await busy(rig, 10, max(os.sched_getaffinity(0)))

        async def is_much() -> bool:
            return (await used(rig))[attempt] > 0.8

        # Held to a hundredth of a core, it would take more than a minute.
        await rig.until(is_much, "it used 0.8 s of CPU", within_s=20)


def old_logs(root: Path, **days_ago: float) -> Runs:
    """Logs of 3 MiB that were forgotten this number of days ago."""
    runs = Runs(root)
    runs.open()
    for name, days in days_ago.items():
        (root / ".old" / name).mkdir()
        (root / ".old" / name / "log").write_bytes(b"x" * 3 * MIB)
        at = time.time() - days * DAY_S
        os.utime(root / ".old" / name, (at, at))
    return runs


def test_logs_of_long_ago_are_removed(tmp_path: Path) -> None:
    runs = old_logs(tmp_path, young=1, old=89, ancient=91)
    assert runs.clear_old(time.time(), 90 * DAY_S, 1000) == 1
    assert runs.log_path("young") is not None
    assert runs.log_path("old") is not None
    assert runs.log_path("ancient") is None
    assert not runs.is_forgotten("ancient")
    assert runs.clear_old(time.time(), 90 * DAY_S, 1000) == 0


def test_the_oldest_logs_go_when_they_are_too_many(tmp_path: Path) -> None:
    runs = old_logs(tmp_path, a=3, b=1, c=2)
    assert runs.clear_old(time.time(), 90 * DAY_S, 6) == 1
    assert [runs.log_path(name) is None for name in "abc"] == [True, False, False]
    assert runs.clear_old(time.time(), 90 * DAY_S, 0) == 2


def test_an_attempt_is_remembered_longer_than_its_log(tmp_path: Path) -> None:
    runs = old_logs(tmp_path, a=3, b=31)
    assert runs.clear_old(time.time(), 2 * DAY_S, 1000) == 2
    assert runs.log_path("a") is None
    assert runs.is_forgotten("a")
    assert not runs.is_forgotten("b")
    assert runs.clear_old(time.time() + 31 * DAY_S, 2 * DAY_S, 1000) == 0
    assert not runs.is_forgotten("a")


@pytest.mark.anyio
async def test_the_engine_removes_them_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonage.engines.rundir.runs_engine.CLEAN_PAUSE_S", 0.05)
    async with process_rig(tmp_path, HERE) as rig:
        requests = [rig.start_request(Behaviour(prints=("here",))) for _ in range(2)]
        for request in requests:
            await rig.ended(request)
            await (await rig.engine()).forget(request.attempt_id)
        at = time.time() - 91 * DAY_S
        os.utime(tmp_path / "runs" / ".old" / requests[0].attempt_id, (at, at))

        async def is_gone() -> bool:
            await asyncio.sleep(0)
            return not (tmp_path / "runs" / ".old" / requests[0].attempt_id).exists()

        await rig.until(is_gone, "the old one is removed")
        with pytest.raises(NotFound):
            await rig.lines(requests[0].attempt_id)
        assert await rig.lines(requests[1].attempt_id) == ["here"]
