"""A job's folder in a workspace that its owner can write to: what is in its place, and whether that may pass."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.files.control_folder import Owner
from commonage.engines.containers.files.prepare import put_bundle
from commonage.files.safe_path import SafePath

ME = Owner(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())


def put(folder: Path) -> None:
    def unpack(staging: Path) -> None:
        staging.mkdir()
        (staging / "one.txt").write_text("1")

    put_bundle(SafePath(folder) / "home", "w-1", folder / "staging", ME, unpack)


def test_the_files_are_there(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    put(tmp_path)
    assert (tmp_path / "home" / "jobs" / "w-1" / "one.txt").read_text() == "1"


@pytest.mark.parametrize(
    "in_the_way", [lambda place: place.symlink_to("/etc"), lambda place: place.write_text("")], ids=["link", "file"]
)
def test_obstacle_of_owner_is_a_permanent_error(tmp_path: Path, in_the_way: Callable[[Path], object]) -> None:
    (tmp_path / "home").mkdir()
    in_the_way(tmp_path / "home" / "jobs")
    with pytest.raises(EngineFailure, match="folder of the job cannot be made") as caught:
        put(tmp_path)
    assert not caught.value.is_retryable


def test_a_home_that_is_away_may_come_back(tmp_path: Path) -> None:
    with pytest.raises(EngineFailure, match="folder of the job cannot be made") as caught:
        put(tmp_path)
    assert caught.value.is_retryable


def test_the_files_get_there_from_another_file_system(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()

    def unpack(folder: Path) -> None:
        (folder / "in").mkdir(parents=True)
        (folder / "in" / "run.sh").write_text("#!/bin/sh\n")
        (folder / "in" / "run.sh").chmod(0o700)

    with TemporaryDirectory(dir="/dev/shm") as elsewhere:
        staging = Path(elsewhere, "staging")
        assert staging.parent.stat().st_dev != tmp_path.stat().st_dev
        for _ in range(2):
            put_bundle(SafePath(tmp_path) / "home", "w-1", staging, ME, unpack)
        assert not staging.exists()
    found = tmp_path / "home" / "jobs" / "w-1" / "in" / "run.sh"
    assert (found.read_text(), found.stat().st_mode & 0o777) == ("#!/bin/sh\n", 0o700)
    assert os.listdir(tmp_path / "home" / "jobs") == ["w-1"], "nothing half done is left"
