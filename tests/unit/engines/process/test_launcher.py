"""Volumes of processes: links in the home."""

import os
from pathlib import Path

import pytest

from commonage.domain.errors import EngineFailure
from commonage.domain.volumes import Mount, VolumeKind
from commonage.engines.process.launcher import link_request_volumes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def folder(path: Path, *, made: bool = False) -> Mount:
    return Mount(path.name, VolumeKind.FOLDER, str(path), f"/volumes/{path.name}", writable=True, made=made)


def test_links_lead_to_folders_and_follow_them(home: Path, tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "one").write_text("1")
    own = tmp_path / "lab" / "ada"
    places = link_request_volumes([folder(tmp_path / "datasets"), folder(own, made=True)], home, tmp_path / "tmp")
    assert places == {"datasets": str(home / "volumes" / "datasets"), "ada": str(home / "volumes" / "ada")}
    assert (Path(places["datasets"]) / "one").read_text() == "1"
    assert own.is_dir() and own.stat().st_mode & 0o777 == 0o700
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "datasets").mkdir()
    link_request_volumes([folder(tmp_path / "new" / "datasets")], home, tmp_path / "tmp")
    assert os.readlink(places["datasets"]) == str(tmp_path / "new" / "datasets")


def test_existing_file_of_owner_stays(home: Path, tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    (home / "volumes").mkdir()
    (home / "volumes" / "datasets").write_text("mine")
    link_request_volumes([folder(tmp_path / "datasets")], home, tmp_path / "tmp")
    assert (home / "volumes" / "datasets").read_text() == "mine"


def test_a_link_in_the_way_is_not_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (home / "volumes").symlink_to(tmp_path / "elsewhere")
    link_request_volumes([folder(tmp_path / "datasets")], home, tmp_path / "tmp")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_scratch_is_an_attempts_own(home: Path, tmp_path: Path) -> None:
    scratch = Mount("scratch", VolumeKind.SCRATCH, "", "/volumes/scratch", writable=True)
    [place] = link_request_volumes([scratch], home, tmp_path / "tmp").values()
    assert Path(place).is_relative_to(tmp_path / "tmp") and Path(place).is_dir()
    assert list(home.iterdir()) == []


def test_missing_image_is_reported(home: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineFailure, match=r"the volume gone .* is not on this machine"):
        link_request_volumes([folder(tmp_path / "gone")], home, tmp_path / "tmp")
    with pytest.raises(EngineFailure, match="is Docker's"):
        docker = Mount("results", VolumeKind.DOCKER, "results", "/volumes/results", writable=True)
        link_request_volumes([docker], home, tmp_path / "tmp")
