"""Obstacles before buildah starts: unreadable files, a full disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from commonage.domain.images import parse_image_name
from commonage.images import base, buildah, builder
from commonage.images.buildah import ImageError
from commonage.images.builder import BuildTools, build_file
from commonage.images.package_sources import package_sources


def test_a_file_of_the_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder / "secret"))

    monkeypatch.setattr(builder, "context_files", refuse)
    tools = BuildTools("chroot", package_sources({}))
    with pytest.raises(ImageError, match=r"Cannot read .*secret: Permission denied\. .* give a smaller folder"):
        build_file(parse_image_name("lab/x"), tmp_path / "Containerfile", tmp_path, tools, print)


@pytest.mark.parametrize(("free", "names_disk_space"), [(1, True), (10**10, False)])
def test_a_base_that_has_no_room_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, names_disk_space: bool
) -> None:
    program = tmp_path / "debootstrap"
    program.write_text("#!/bin/sh\necho E: Failed getting release file\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(buildah, "disk_space", lambda: "THE ROOM")
    with pytest.raises(ImageError) as refused:
        base._bootstrap("bookworm", tmp_path, "http://mirror.example", print)
    said = ["Cannot make Debian bookworm: debootstrap failed:", "  E: Failed getting release file"]
    assert str(refused.value).splitlines() == [*said, *(["THE ROOM"] if names_disk_space else [])]
