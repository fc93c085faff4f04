"""The day of faults: its schedule, and a short day that must lose, double and leak nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.jobs import Job, JobKind, Noted, complete, jobs, read_journal
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


@pytest.mark.needs("mounts")
@pytest.mark.timeout(900)
def test_nothing_is_lost_doubled_or_leaked_in_a_day_of_faults() -> None:
    argv = [sys.executable, "-m", "benchmarks", "faults", "--seed", "1", "--short", "--json"]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr[-8000:]}"
    answer = json.loads(ran.stdout)
    assert answer["findings"] == {"lost": [], "doubled": [], "leaked": []}
    assert {one["name"] for one in answer["figures"] if one["value"] == 0} == {"lost", "doubled", "leaked"}
