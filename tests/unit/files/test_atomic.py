"""Files that are replaced atomically, also on a full disk."""

import errno
import os
from pathlib import Path

import pytest

from commonage.files.atomic import write_file


def test_replaces_the_file_with_its_mode(tmp_path: Path) -> None:
    for text in ("old", "new"):
        write_file(tmp_path / "a", text, 0o640)
    assert (tmp_path / "a").read_text() == "new"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "a", "old", 0o644)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "a", "new", 0o644)
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]
