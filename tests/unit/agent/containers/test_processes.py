"""Containers without the daemon: found in its files, and paused by the file of the kernel that is theirs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from commonage.agent.containers import processes
from commonage.agent.containers.processes import Freezer, OnDisk, end_processes, freezer_of, on_disk

ONE, OTHER = "a" * 64, "b" * 64
V1, V2 = ("FROZEN", "THAWED"), ("1", "0")


@pytest.mark.parametrize(
    ("groups", "place", "words"),
    [
        (f"9:pids:/docker/{ONE}\n6:freezer:/docker/{ONE}\n0::/\n", f"freezer/docker/{ONE}/freezer.state", V1),
        (f"0::/system.slice/docker-{ONE}.scope\n", f"system.slice/docker-{ONE}.scope/cgroup.freeze", V2),
        # With nested groups, and with both cgroup versions, of which version 1 has the freezer.
        (f"0::/docker/{ONE}/init\n", f"docker/{ONE}/cgroup.freeze", V2),
        (f"6:freezer:/docker/{ONE}/x\n0::/docker/{ONE}\n", f"freezer/docker/{ONE}/freezer.state", V1),
    ],
)
def test_freezer_is_that_of_the_container(tmp_path: Path, groups: str, place: str, words: tuple[str, str]) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    assert freezer_of(groups, ONE, tmp_path) is None, "there is none"
    file.write_text("")
    found = freezer_of(groups, ONE, tmp_path)
    assert found == Freezer(file, *words)
    assert found.set_paused(True)
    assert file.read_text() == words[0]
    assert found.set_paused(False)
    assert file.read_text() == words[1]
    assert freezer_of(groups, OTHER, tmp_path) is None, "not that of another container"


def test_pause_fails_when_the_kernel_refuses(tmp_path: Path) -> None:
    assert not Freezer(tmp_path / "nowhere" / "freezer.state", *V1).set_paused(True)


def test_finds_commonage_containers_in_the_daemons_files(tmp_path: Path) -> None:
    def keep(name: str, content: str) -> None:
        (tmp_path / "containers" / name).mkdir(parents=True)
        (tmp_path / "containers" / name / "config.v2.json").write_text(content)

    def about(labels: dict[str, str] | None, **state: object) -> str:
        return json.dumps({"Config": {"Labels": labels}, "State": {"Running": False, **state}})

    keep("a", about({"commonage.attempt": "x-1"}, Running=True))
    keep("b", about({"commonage.attempt": "x-2"}, FinishedAt="2026-01-01T00:00:00Z"))
    keep("c", about({"commonage.attempt": "x-3"}, FinishedAt="0001-01-01T00:00:00Z"))  # made, not started
    keep("d", about({"other": "1"}, Running=True))
    keep("e", about(None, Running=True))
    keep("f", "{ half")
    found = sorted(on_disk(tmp_path), key=lambda one: one.id)
    assert found == [OnDisk("a", "x-1", True), OnDisk("b", "x-2", False), OnDisk("c", "x-3", True)]


def test_program_does_not_go_on_when_its_child_is_killed_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = "sleep 300 & echo $!; wait; echo went on >seen"
    parent = subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    kill = os.kill

    def kill_slowly(pid: int, number: int) -> None:
        kill(pid, number)
        time.sleep(0.1)

    alive = [{child: ONE, parent.pid: ONE}, {}]
    monkeypatch.setattr(processes, "processes_of", lambda _: alive.pop(0))
    monkeypatch.setattr(processes.os, "kill", kill_slowly)
    assert end_processes([ONE], 10) == set()
    assert parent.wait(10) == -9
    assert not (tmp_path / "seen").exists()
