"""The report of a node with an agent: labels, memory, shared folder."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from commonage.agent.config import AgentConfig
from commonage.agent.node import Node, SharedFolder, memory_mib
from commonage.domain.reasons.nodes import FolderNotReadable, SharedFolderEmpty, SharedFolderSilent


def test_labels_name_architecture_and_configured_labels(tmp_path: Path) -> None:
    config = AgentConfig(
        node="gpu-1", control=("h:1",), certificate="", key="", request="", authority="", labels=(("zone", "a"),)
    )
    assert Node(config, str(tmp_path)).report((), ()).labels == (
        ("arch", platform.machine()),
        ("os", "linux"),
        ("zone", "a"),
    )


def test_reads_total_memory(tmp_path: Path) -> None:
    table = tmp_path / "meminfo"
    table.write_text("MemTotal:       16384000 kB\nMemFree: 1 kB\n")
    assert memory_mib(table) == 16000


def test_missing_or_empty_shared_folder_is_a_fault(tmp_path: Path) -> None:
    folder = SharedFolder(tmp_path)
    folder._check()
    assert folder.fault(0) == SharedFolderEmpty(folder=str(tmp_path))
    (tmp_path / "workspaces").mkdir()
    folder._check()
    assert folder.fault(1) is None
    gone = SharedFolder(tmp_path / "none")
    gone._check()
    assert isinstance(gone.fault(0), FolderNotReadable)


def test_silent_file_server_is_a_fault_and_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedFolder, "_check", lambda self: None)  # it never comes back
    folder = SharedFolder(tmp_path)
    assert folder.fault(0) is None
    assert folder.fault(5) is None
    assert folder.fault(11) == SharedFolderSilent(folder=str(tmp_path), silent_s=11)
