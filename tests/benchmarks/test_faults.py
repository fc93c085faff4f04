"""The day of faults: its schedule, and a short day that must lose, double and leak nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults import place
from benchmarks.faults.day import Day
from benchmarks.faults.jobs import Job, JobKind, Noted, complete, jobs, read_journal
from benchmarks.faults.place import Place, Server
from benchmarks.faults.schedule import CONTROL, SITES, FaultKind, schedule

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(20))
def test_short_day_has_each_fault_and_each_end(seed: int) -> None:
    day = schedule(seed, 60)
    assert {one.kind for one in day} == set(FaultKind)
    assert {one.target for one in day} == {*SITES, CONTROL}
    assert [one.at_s for one in day] == sorted(one.at_s for one in day)
    assert any(one.for_s > 30 for one in day), "start requests that never left are withdrawn after 30 s"


def test_seed_determines_faults_and_jobs() -> None:
    assert schedule(7, 600) == schedule(7, 600) != schedule(8, 600)
    assert jobs(7, 600, 1) == jobs(7, 600, 1) != jobs(8, 600, 1)
    assert {one.kind for one in jobs(7, 600, 1)} == set(JobKind)


def test_journal_says_how_often_each_attempt_ran(tmp_path: Path) -> None:
    path = tmp_path / "job"
    assert read_journal(path) == Noted()
    path.write_text("start 1\nunprinted 1 4\nstart 1\nend 1\n")
    assert read_journal(path) == Noted([1, 1], [1], {1: {4}})


def test_log_lacks_only_lines_that_the_job_could_not_print() -> None:
    job = Job("job", JobKind.SHORT, 0, "", lines=3)
    assert not complete(["line 0", "line 1", "line 2"], job, 1, Noted(), "")
    assert complete(["line 0", "line 2"], job, 1, Noted(), "")
    assert complete(["line 0", "line 1", "line 1", "line 2"], job, 1, Noted(), "")
    full = Noted(unprinted={1: {1}})
    assert not complete(["line 0", "liline 2"], job, 1, full, "")
    assert complete(["line 0"], job, 1, full, "")


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """It cannot start, and says so."""
    monkeypatch.setattr(place, "_fill", lambda descriptor: None)
    argv = ["/bin/sh", "-c", "echo it cannot start; exit 2"]
    return Server("the control plane", argv, tmp_path, tmp_path / "log", {})


async def _fill_disk(control: Server) -> None:
    """Until now."""
    filling = asyncio.create_task(control.keep_full())
    await asyncio.sleep(0)
    filling.cancel()
    await asyncio.gather(filling, return_exceptions=True)


async def _end(control: Server) -> None:
    assert control.process is not None
    await asyncio.to_thread(control.process.wait)


@pytest.mark.anyio
async def test_server_that_found_its_disk_full_is_no_finding_although_there_is_space_again(control: Server) -> None:
    filling = asyncio.create_task(control.keep_full())
    await asyncio.sleep(0)
    control.start()
    filling.cancel()
    await asyncio.gather(filling, return_exceptions=True)
    await _end(control)
    day = Day(Place(control.data, control), [], [])
    day.start_again()
    assert day.ended_by_itself == []
    await _end(control)
    day.start_again()
    assert len(day.ended_by_itself) == 1, "there was space all the time"


@pytest.mark.anyio
async def test_finding_shows_what_the_server_said_last(control: Server) -> None:
    await _fill_disk(control)
    control.start()
    await _end(control)
    day = Day(Place(control.data, control), [], [])
    day.start_again()
    [finding] = day.ended_by_itself
    assert "the control plane ended by itself with 2" in finding
    assert "it cannot start" in finding
    await _end(control)


@pytest.mark.needs("mounts")
@pytest.mark.timeout(1800)
def test_nothing_is_lost_doubled_or_leaked_in_a_day_of_faults() -> None:
    argv = [sys.executable, "-m", "benchmarks", "faults", "--seed", "1", "--short", "--json"]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr[-8000:]}"
    answer = json.loads(ran.stdout)
    assert answer["findings"] == {"lost": [], "doubled": [], "leaked": []}
    assert {one["name"] for one in answer["figures"] if one["value"] == 0} == {"lost", "doubled", "leaked"}
