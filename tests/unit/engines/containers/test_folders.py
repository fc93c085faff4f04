"""A job's folder in a workspace that its owner can write to: what is in its place, and whether that may pass."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.box import Owner
from commonage.engines.containers.folders import put_bundle

ME = Owner(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())


def put(folder: Path) -> None:
    (folder / "one.txt").write_text("1")
    with tarfile.open(folder / "bundle.tar.gz", "w:gz") as archive:
        archive.add(folder / "one.txt", "one.txt")
    put_bundle(folder / "bundle.tar.gz", folder / "staging", folder / "home", "w-1", ME, 1)


def test_the_files_are_there(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    put(tmp_path)
    assert (tmp_path / "home" / "jobs" / "w-1" / "one.txt").read_text() == "1"


@pytest.mark.parametrize(
    "in_the_way", [lambda place: place.symlink_to("/etc"), lambda place: place.write_text("")], ids=["link", "file"]
)
def test_what_its_owner_put_in_the_way_does_not_pass(tmp_path: Path, in_the_way: Callable[[Path], object]) -> None:
    (tmp_path / "home").mkdir()
    in_the_way(tmp_path / "home" / "jobs")
    with pytest.raises(EngineFailure, match="folder of the job cannot be made") as caught:
        put(tmp_path)
    assert not caught.value.is_retryable


def test_a_home_that_is_away_may_come_back(tmp_path: Path) -> None:
    with pytest.raises(EngineFailure, match="folder of the job cannot be made") as caught:
        put(tmp_path)
    assert caught.value.is_retryable
