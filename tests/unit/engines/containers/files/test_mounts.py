"""Volumes in Docker's words."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from commonage.domain.errors import EngineFailure
from commonage.domain.volumes import Mount, VolumeKind
from commonage.engines.containers.files.control_folder import Owner
from commonage.engines.containers.files.mounts import (
    check_path_is_trusted,
    docker_mounts,
    has_sizes,
    prepare_volume_folders,
)
from commonage.files.safe_path import SafePath

FOLDER = Mount("datasets", VolumeKind.FOLDER, "/srv/datasets", "/volumes/datasets", writable=False)
DOCKER = Mount("results", VolumeKind.DOCKER, "results.lab.0f", "/data", writable=True, size_mib=10)
DISK = Mount("scratch", VolumeKind.SCRATCH, "", "/volumes/scratch", writable=True, size_mib=5)
MEMORY = Mount("quick", VolumeKind.SCRATCH, "", "/volumes/quick", writable=True, size_mib=7, memory=True)
INSTALLATION = "0123456789abcdef"


def test_a_folder_is_bound_and_takes_no_mounts_from_inside() -> None:
    [mount] = docker_mounts([replace(FOLDER, writable=True)], INSTALLATION, quota=True)
    assert mount["BindOptions"] == {"Propagation": "rprivate"}
    [mount] = docker_mounts([FOLDER], INSTALLATION, quota=True)
    assert mount == {
        "Type": "bind",
        "Source": "/srv/datasets",
        "Target": "/volumes/datasets",
        "ReadOnly": True,
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
    }


def test_docker_volume_has_installation_name_and_size_limit_if_supported() -> None:
    for quota, options in ((True, {"size": str(10 * 1024 * 1024)}), (False, {})):
        [mount] = docker_mounts([DOCKER], INSTALLATION, quota=quota)
        assert (mount["Type"], mount["Source"]) == ("volume", "commonage-01234567-results.lab.0f")
        assert mount["VolumeOptions"]["DriverConfig"] == {"Name": "local", "Options": options}
        assert mount["VolumeOptions"]["Labels"]["commonage.installation"] == INSTALLATION


def test_scratch_has_no_name_so_that_it_goes_with_the_container() -> None:
    disk, memory = sorted(docker_mounts([DISK, MEMORY], INSTALLATION, quota=False), key=lambda one: -len(one["Target"]))
    assert "Source" not in disk and "Source" not in memory
    assert disk["VolumeOptions"]["DriverConfig"]["Options"] == {}
    assert memory["VolumeOptions"]["DriverConfig"]["Options"]["o"].startswith("size=7m,")


def test_only_sizes_on_disk_are_the_daemons_to_hold() -> None:
    assert has_sizes([DOCKER]) and has_sizes([DISK])
    assert not has_sizes([FOLDER, MEMORY])


def test_outer_places_come_first() -> None:
    mounts = docker_mounts([MEMORY, DOCKER, FOLDER], INSTALLATION, quota=False)
    assert [Path(one["Target"]) for one in mounts] == sorted(Path(one["Target"]) for one in mounts)


ANYBODY = 4242
US = Owner(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`site/lab/data`, all of it ours."""
    made = tmp_path / "site" / "lab" / "data"
    made.mkdir(parents=True)
    return made


def why_not(folder: Path) -> str:
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
