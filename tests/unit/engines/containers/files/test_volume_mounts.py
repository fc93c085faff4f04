"""Volumes in Docker's words."""

from dataclasses import replace
from pathlib import Path

from commonage.domain.volumes import Mount, VolumeKind
from commonage.engines.containers.files.mounts import docker_mounts, has_sizes

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
