"""Usage of containers, from folders that look like control groups, of both versions."""

import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from commonage.domain.statuses import Measurement
from commonage.engines.containers import usage as kernel
from commonage.engines.containers.usage import daemon_started_at, measure, owners_of

MIB = 1024 * 1024
CONTAINER = "ab" * 32


def groups(monkeypatch: pytest.MonkeyPatch, **of_all: str) -> None:
    monkeypatch.setattr(kernel, "_groups_of", lambda pid: {name.strip("_"): path for name, path in of_all.items()})


def test_version_2_is_measured_with_the_groups_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(monkeypatch, _=f"system.slice/docker-{CONTAINER}.scope")
    group = tmp_path / "system.slice" / f"docker-{CONTAINER}.scope"
    (group / "inner").mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (group / "memory.current").write_text(str(100 * MIB))
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {40 * MIB}\n")
    (group / "cgroup.procs").write_text("7\n5\n")
    (group / "inner" / "cgroup.procs").write_text("9\n")
    assert measure("a-1", 5, tmp_path) == Measurement("a-1", 2.5, 60, (5, 7, 9))


def test_version_2_is_measured_from_within_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(monkeypatch, _=f"../{CONTAINER}")
    group = tmp_path / "docker" / CONTAINER
    group.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (group / "cpu.stat").write_text("usage_usec 1500000\n")
    (group / "memory.current").write_text(str(30 * MIB))
    (group / "memory.stat").write_text("inactive_file 0\n")
    (group / "cgroup.procs").write_text("5\n")
    assert measure("a-1", 5, tmp_path) == Measurement("a-1", 1.5, 30, (5,))


def test_version_1_is_measured_by_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(monkeypatch, memory=f"docker/{CONTAINER}", cpuacct=f"docker/{CONTAINER}")
    for controller in ("memory", "cpuacct"):
        (tmp_path / controller / "docker" / CONTAINER).mkdir(parents=True)
    group = tmp_path / "memory" / "docker" / CONTAINER
    (group / "memory.usage_in_bytes").write_text(str(10 * MIB))
    (group / "memory.stat").write_text(f"total_inactive_file {3 * MIB}\n")
    (group / "cgroup.procs").write_text("5\n")
    (tmp_path / "cpuacct" / "docker" / CONTAINER / "cpuacct.usage").write_text("1500000000")
    assert measure("a-1", 5, tmp_path) == Measurement("a-1", 1.5, 7, (5,))


def test_ended_process_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(monkeypatch, memory="gone")
    assert measure("a-1", 5, tmp_path) is None
    monkeypatch.setattr(kernel, "_groups_of", lambda pid: None)
    assert measure("a-1", 5, tmp_path) is None


def test_process_belongs_to_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getpid()
    groups(monkeypatch, memory=f"docker/{CONTAINER}/inner")
    [owner] = owners_of([me, 2**31 - 1], {CONTAINER: "a-1"})
    assert (owner.pid, owner.attempt_id) == (me, "a-1")
    assert owner.started_at == pytest.approx(psutil.Process().create_time(), abs=1.5)
    [stranger] = owners_of([me], {"cd" * 32: "b-1"})
    assert stranger.attempt_id is None


def test_daemon_is_found_behind_a_proxy(tmp_path: Path) -> None:
    me, own = os.getpid(), Path("/proc/self/comm").read_text().strip()
    assert daemon_started_at(me, own) == pytest.approx(psutil.Process().create_time(), abs=1.5)
    assert daemon_started_at(me, "no-such-daemon") is None
    daemon = tmp_path / "cm-kernel-d"
    daemon.symlink_to(shutil.which("sleep") or "")
    with subprocess.Popen([daemon, "60"]) as one, subprocess.Popen([daemon, "60"]) as another:
        assert daemon_started_at(me, daemon.name) is None  # it is unknown which of the two
        another.kill()
        another.wait()
        assert daemon_started_at(me, daemon.name) == pytest.approx(psutil.Process(one.pid).create_time(), abs=1.5)
        one.kill()
