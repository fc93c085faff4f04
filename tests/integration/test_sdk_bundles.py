"""Packing files: the same files give the same bytes, and only the selected files are packed."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from commonage.sdk.bundles import pack


def members(files: object) -> dict[str, tuple[int, bytes]]:
    with pack(files) as packed, tarfile.open(fileobj=packed) as archive:  # type: ignore[arg-type]
        return {one.name: (one.mode, archive.extractfile(one).read()) for one in archive.getmembers()}  # type: ignore[union-attr]


def folder(path: Path) -> Path:
    (path / "src").mkdir(parents=True)
    (path / "src" / "model.py").write_text("x = 1")
    (path / "run.sh").write_text("#!/bin/sh")
    (path / "run.sh").chmod(0o700)
    return path


def test_a_folder_gives_its_content_with_names_below_it(tmp_path: Path) -> None:
    assert members(folder(tmp_path / "a")) == {"run.sh": (0o755, b"#!/bin/sh"), "src/model.py": (0o644, b"x = 1")}


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "a"), folder(tmp_path / "b")
    os.utime(second / "run.sh", (1, 1))
    with pack(first) as one, pack(second) as other:
        assert one.read() == other.read()


def test_a_file_and_files_by_name(tmp_path: Path) -> None:
    script = folder(tmp_path / "a") / "run.sh"
    assert list(members(script)) == ["run.sh"]
    assert list(members({"bin/start": script, "again": str(script)})) == ["again", "bin/start"]


def test_what_nobody_means_to_send_stays_behind(tmp_path: Path) -> None:
    root = folder(tmp_path / "a")
    for name in (".git", "__pycache__", ".venv", "node_modules"):
        (root / name).mkdir()
        (root / name / "x").write_text("x")
    (tmp_path / "secret").write_text("secret")
    (root / "way-out").symlink_to(tmp_path / "secret")
    (root / "inside").symlink_to(root / "run.sh")
    (root / "nowhere").symlink_to(root / "gone")
    os.mkfifo(root / "pipe")
    assert sorted(members(root)) == ["inside", "run.sh", "src/model.py"]
