"""Fencing: which attempts are paused or ended without the daemon, and when a lost daemon makes this due."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import cast

import pytest

from commonage.agent import fencing
from commonage.agent.containers.docker import DockerDaemon
from commonage.agent.fencing import DaemonHealth, Fences, Ping
from commonage.domain.reasons.nodes import DaemonNotAnswering, DaemonNotRunning

WHY = "this machine is cut off"


class Kernel:
    """A fake of the kernel's freezer. `pauses`: whether it pauses these containers; others have no process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **pauses: bool) -> None:
        self.pauses, self.ended, self.going = pauses, list[str](), list[str]()
        monkeypatch.setattr(fencing, "pause", lambda asked: {one: pauses[one] for one in asked if one in pauses})
        monkeypatch.setattr(fencing, "unpause", self.going.extend)
        monkeypatch.setattr(fencing, "end_processes", self._end)
        self.folder, self.root = folder / "agent", folder / "docker"
        self.folder.mkdir()
        for name in ("one", "two", "ended"):
            place = self.root / "containers" / name
            place.mkdir(parents=True)
            state = {"Running": name != "ended", "FinishedAt": "2026-11-22T10:00:00Z"}
            about = {"Config": {"Labels": {"commonage.attempt": f"{name}-1"}}, "State": state}
            (place / "config.v2.json").write_text(json.dumps(about))

    def _end(self, containers: Collection[str], *_: object) -> set[str]:
        self.ended += containers
        return set()

    def agent(self) -> Fences:
        fences = Fences(cast(DockerDaemon, None), self.folder)
        fences.note_root(str(self.root))
        return fences


def test_paused_attempts_are_remembered_until_unpaused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path, monkeypatch, one=True, two=True)
    fences = kernel.agent()
    fences.pause_all(WHY)
    fences.pause_all(WHY)
    assert sorted(fences.paused) == ["one-1", "two-1"]
    assert (kernel.ended, fences.fenced) == ([], ())
    again = kernel.agent()  # it was restarted meanwhile
    assert again.unpause(["one-1", "stranger-1"]).keys() == {"one-1"}
    assert kernel.going == ["one"]
    assert again.paused == kernel.agent().paused == ("two-1",)


def test_attempts_that_cannot_be_paused_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path, monkeypatch, one=True, two=False)
    fences = kernel.agent()
    fences.pause_all(WHY)
    assert (kernel.ended, fences.fenced, fences.paused) == (["two"], ("two-1",), ("one-1",))


def test_attempts_are_ended_when_the_pause_cannot_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stay paused forever once it is forgotten."""
    kernel = Kernel(tmp_path, monkeypatch, one=True, two=True)
    fences = kernel.agent()
    (kernel.folder / "paused.new").mkdir()
    fences.pause_all(WHY)
    assert (sorted(kernel.ended), sorted(fences.fenced), fences.paused) == (["one", "two"], ["one-1", "two-1"], ())


def test_gone_daemon_is_a_fault_at_once_and_fenced_after_a_while() -> None:
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    daemon_health.note(Ping.ANSWERS, 0)
    assert (daemon_health.fault(1), daemon_health.must_fence(1)) == (None, False)
    daemon_health.note(Ping.GONE, 10)
    daemon_health.note(Ping.GONE, 11)
    assert daemon_health.fault(12) == DaemonNotRunning(silent_s=2)
    assert not daemon_health.must_fence(17.9)
    assert daemon_health.must_fence(18)
    daemon_health.note_fenced(done=False)
    assert daemon_health.must_fence(18)
    daemon_health.note_fenced(done=True)
    assert not daemon_health.must_fence(100)
    daemon_health.note(Ping.ANSWERS, 101)
    assert (daemon_health.fault(101), daemon_health.must_fence(101)) == (None, False)
    daemon_health.note(Ping.GONE, 102)  # a new outage is counted from its start
    assert not daemon_health.must_fence(105)
    assert daemon_health.must_fence(110)


def test_silent_daemon_gets_more_time() -> None:
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    daemon_health.note(Ping.SILENT, 0)
    assert daemon_health.fault(5) is None
    assert daemon_health.fault(12) == DaemonNotAnswering(silent_s=12)
    assert not daemon_health.must_fence(59)
    assert daemon_health.must_fence(60)


def test_restarted_slow_daemon_gets_more_time() -> None:
    """It listens again: its containers still run, and it is about to adopt them."""
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    for at in range(0, 4):
        daemon_health.note(Ping.GONE, at)
    daemon_health.note(Ping.SILENT, 4)
    assert daemon_health.fault(15) == DaemonNotAnswering(silent_s=11)
    assert not daemon_health.must_fence(63)
    daemon_health.note(Ping.GONE, 63)
    assert not daemon_health.must_fence(63)
    assert daemon_health.must_fence(64), "over and over it is silent, too"


def test_short_silence_is_no_fault() -> None:
    daemon_health = DaemonHealth(fence_after_s=8, silent_after_s=60)
    for at in range(0, 100, 4):
        daemon_health.note(Ping.SILENT, at)
        daemon_health.note(Ping.ANSWERS, at + 3)
        assert daemon_health.fault(at + 3) is None
        assert not daemon_health.must_fence(at + 3)
