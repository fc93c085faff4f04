"""Small parts of the agent, on files that look like the node's."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commonage.agent.containers import containers
from commonage.agent.containers.containers import Containers, OnDisk, on_disk
from commonage.agent.containers.docker import split_image
from commonage.agent.containers.images import credentials_for
from commonage.agent.node import SharedFolder, memory_mib
from commonage.domain.reasons.nodes import FolderNotReadable, SharedFolderEmpty, SharedFolderSilent


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("torch", ("torch", "latest")),
        ("torch:2", ("torch", "2")),
        ("hub:5000/lab/torch", ("hub:5000/lab/torch", "latest")),
        ("hub:5000/lab/torch:2", ("hub:5000/lab/torch", "2")),
        ("hub:5000/lab/torch@sha256:ab", ("hub:5000/lab/torch", "sha256:ab")),
    ],
)
def test_an_image_in_parts(name: str, parts: tuple[str, str]) -> None:
    assert split_image(name) == parts


def test_credentials_are_those_of_the_images_registry(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    auth = base64.b64encode(b"node:pa:ss").decode()
    file.write_text(json.dumps({"auths": {"hub:5000": {"auth": auth}}}))
    found = json.loads(base64.urlsafe_b64decode(credentials_for("hub:5000/lab/torch:2", file)))
    assert found == {"username": "node", "password": "pa:ss", "serveraddress": "hub:5000"}
    assert credentials_for("other:5000/lab/torch:2", file) == ""
    assert credentials_for("hub:5000/lab/torch:2", tmp_path / "none") == ""


def test_containers_of_ours_are_known_by_the_daemons_files(tmp_path: Path) -> None:
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


def test_that_containers_may_gain_privileges_is_known_while_none_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    gains: dict[int, bool | None] = {}
    about = {"Config": {"Labels": {"commonage.attempt": "x"}}, "HostConfig": {}}
    daemon: Any = SimpleNamespace(
        containers=lambda label: [{"Id": str(pid)} for pid in gains],
        inspect=lambda id: {**about, "State": {"Pid": int(id)}},
    )
    monkeypatch.setattr(containers, "_gains_privileges", lambda pid: gains[pid])
    found = Containers(daemon)

    def look(**pids: bool | None) -> bool:
        gains.clear()
        gains.update({int(name[1:]): may for name, may in pids.items()})
        found.refresh()
        return found.may_gain

    assert look() is False
    assert look(p1=False) is False
    assert look(p1=False, p2=True) is True
    assert look(p2=None) is True, "it has just ended"
    assert look() is True, "nothing that runs says otherwise"
    assert look(p3=False) is False


def test_the_nodes_memory(tmp_path: Path) -> None:
    table = tmp_path / "meminfo"
    table.write_text("MemTotal:       16384000 kB\nMemFree: 1 kB\n")
    assert memory_mib(table) == 16000


def test_a_shared_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    folder = SharedFolder(tmp_path)
    folder._check()
    assert folder.fault(0) == SharedFolderEmpty(folder=str(tmp_path))
    (tmp_path / "workspaces").mkdir()
    folder._check()
    assert folder.fault(1) is None
    gone = SharedFolder(tmp_path / "none")
    gone._check()
    assert isinstance(gone.fault(0), FolderNotReadable)


def test_a_file_server_that_does_not_answer_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedFolder, "_check", lambda self: None)  # it never comes back
    folder = SharedFolder(tmp_path)
    assert folder.fault(0) is None
    assert folder.fault(5) is None
    assert folder.fault(11) == SharedFolderSilent(folder=str(tmp_path), silent_s=11)
