"""What an agent that is cut off does with what runs on its node, and what it keeps of that."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import cast

import pytest

from commonage.agent.containers.docker import DockerDaemon
from commonage.agent.fencing import fencing
from commonage.agent.fencing.fencing import Fences

WHY = "this machine is cut off"


class Kernel:
    """What the kernel is asked for. `pauses`: whether it pauses these containers; others have no process."""

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


def test_what_is_paused_is_kept_until_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_cannot_be_paused_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path, monkeypatch, one=True, two=False)
    fences = kernel.agent()
    fences.pause_all(WHY)
    assert (kernel.ended, fences.fenced, fences.paused) == (["two"], ("two-1",), ("one-1",))


def test_what_cannot_be_written_down_is_not_paused_but_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stand still for ever once nobody knows of it."""
    kernel = Kernel(tmp_path, monkeypatch, one=True, two=True)
    fences = kernel.agent()
    (kernel.folder / "paused.new").mkdir()
    fences.pause_all(WHY)
    assert (sorted(kernel.ended), sorted(fences.fenced), fences.paused) == (["one", "two"], ["one-1", "two-1"], ())
