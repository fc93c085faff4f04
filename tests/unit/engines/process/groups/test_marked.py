"""Attribution of processes by group, by descent and by mark. A reused process id counts as another process."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from commonage.engines.process.groups.marked import MarkedProcesses, owners_of

SLEEPS = "import time; time.sleep(60)"
FORKS = f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', '{SLEEPS}'], env={{}}, " \
    "start_new_session=True); print(child.pid, flush=True); child.wait()"  # fmt: skip


class OneGroup:
    """Groups of which only `pids` is asked."""

    def __init__(self, attempt: str, *pids: int) -> None:
        self.attempt, self._pids = attempt, list(pids)

    def pids(self, attempt_id: str) -> list[int]:
        return self._pids if attempt_id == self.attempt else []


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for each in processes:
        each.kill()
        each.wait()


def run(started: list[subprocess.Popen[str]], code: str, **environment: str) -> subprocess.Popen[str]:
    started.append(
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
        )
    )
    return started[-1]


def test_by_group_and_by_descent(started: list[subprocess.Popen[str]]) -> None:
    parent = run(started, FORKS)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    groups = OneGroup("a-1", parent.pid)
    try:
        found = {each.pid: each for each in owners_of([child, parent.pid, os.getpid()], groups, ["b-1", "a-1"])}  # type: ignore[arg-type]  # only its pids are asked
    finally:
        os.kill(child, 9)
    assert {pid: each.attempt_id for pid, each in found.items()} == {parent.pid: "a-1", child: "a-1", os.getpid(): None}
    assert found[parent.pid].name
    assert abs(found[parent.pid].started_at - time.time()) < 60
    assert found[os.getpid()].started_at < found[parent.pid].started_at


def test_by_its_mark_where_it_left_its_group(started: list[subprocess.Popen[str]]) -> None:
    unattributed_process = run(started, SLEEPS, COMMONAGE_ATTEMPT_ID="a-1")
    deadline = time.monotonic() + 20  # until its exec has happened
    while (
        not (found := owners_of([unattributed_process.pid], MarkedProcesses(), []))[0].attempt_id
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert found[0].attempt_id == "a-1"


def test_ended_processes_are_omitted(started: list[subprocess.Popen[str]]) -> None:
    ended = run(started, "")
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # a zombie until it is waited for
    assert owners_of([ended.pid, 2**31 - 1], MarkedProcesses(), []) == []
