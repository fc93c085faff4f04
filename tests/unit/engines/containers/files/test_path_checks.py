"""The way to a folder that is mounted is nobody's to change."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from commonage.domain.errors import EngineFailure
from commonage.domain.volumes import Mount, VolumeKind
from commonage.engines.containers.files.control_folder import Owner
from commonage.engines.containers.files.mounts import check_path_is_trusted, prepare_volume_folders
from commonage.files.safe_path import SafePath

ANYBODY = 4242
US = Owner(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`site/lab/data`, all of it ours."""
    made = tmp_path / "site" / "lab" / "data"
    made.mkdir(parents=True)
    return made


def why_not(folder: Path) -> str:
    """What is said against mounting it; nothing if nothing is."""
    try:
        check_path_is_trusted(str(folder), "the volume data")
    except EngineFailure as error:
        assert not error.retryable
        return str(error)
    return ""


def test_the_folder_itself_may_be_anybodys_to_write_to(folder: Path) -> None:
    folder.chmod(0o777)
    assert why_not(folder) == ""


def _link(folder: Path) -> None:
    folder.rmdir()
    folder.symlink_to("/etc")


def _link_above(folder: Path) -> None:
    folder.parent.rename(folder.parents[1] / "other")
    folder.parent.symlink_to("other")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_link, "leads elsewhere by a link"),
        (_link_above, "leads elsewhere by a link"),
        (lambda one: one.parent.chmod(0o775), "is for others to write to (775)"),
        (lambda one: one.parents[1].chmod(0o757), "is for others to write to (757)"),
    ],
)
def test_path_writable_by_others_is_refused(folder: Path, change: Callable[[Path], None], said: str) -> None:
    change(folder)
    assert said in why_not(folder)


@pytest.mark.needs("root")
def test_path_owned_by_user_is_refused(folder: Path) -> None:
    os.chown(folder, ANYBODY, ANYBODY)
    assert why_not(folder) == "", "what is in it is theirs"
    os.chown(folder.parent, ANYBODY, ANYBODY)
    assert f"belongs to user {ANYBODY}" in why_not(folder)


@pytest.mark.needs("root")
def test_sticky_folder_is_trusted_for_own_entries(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    assert why_not(folder) == ""
    os.chown(folder, ANYBODY, ANYBODY)
    assert "is for others to write to (1777)" in why_not(folder)


def test_no_folder_is_created_through_links(tmp_path: Path) -> None:
    site, outside = tmp_path / "site", tmp_path / "outside"
    site.mkdir()
    outside.mkdir()
    (site / "lab").symlink_to(outside)
    mount = Mount("projects", VolumeKind.FOLDER, f"{site}/lab/ada", "/volumes/projects", writable=True, made=True)
    with pytest.raises(EngineFailure, match="leads elsewhere by a link"):
        prepare_volume_folders([mount], SafePath(tmp_path), US, is_local=True)
    assert list(outside.iterdir()) == []
