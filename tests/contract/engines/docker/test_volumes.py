"""Volumes in containers: read-only holds for root inside, and private data is visible to its owner only."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.firewall_tries import printed
from tests.contract.engines.rigs import DockerRig, docker_rig
from tests.contract.harness.dockerd import Dockerd

from commonage.domain.reasons.attempts import RetryingStart, StartFailed
from commonage.domain.statuses import Phase
from commonage.domain.volumes import Extent, Mount, Volume, VolumeKind, VolumeRequest, mounts_of
from commonage.testing.behaviour import Behaviour

pytestmark = [pytest.mark.needs("docker"), pytest.mark.anyio]
SCRATCH = Volume("scratch", kind=VolumeKind.SCRATCH, writable=True)
IN_MEMORY = replace(SCRATCH, name="quick", size_mib=8, memory=True)
RESULTS = Volume("results", kind=VolumeKind.DOCKER, writable=True, per=Extent.TENANT, size_mib=64)


@pytest.fixture
async def rig(tmp_path: Path, dockerd: Dockerd) -> AsyncIterator[DockerRig]:
    async with docker_rig(tmp_path / "data", dockerd) as rig:
        yield rig
    for one in dockerd.ask("GET", "/volumes")["Volumes"] or ():
        dockerd.ask("DELETE", f"/volumes/{one['Name']}")


def datasets(folder: Path, **fields: object) -> Volume:
    folder.mkdir(exist_ok=True)
    (folder / "one.csv").write_text("1,2\n")
    return replace(Volume("datasets", source=str(folder)), **fields)  # type: ignore[arg-type]  # fields of a volume


def asked(*volumes: Volume, owner: str = "ada", tenant: str = "lab", writable: bool | None = None) -> tuple[Mount, ...]:
    return mounts_of([VolumeRequest(one.name, writable) for one in volumes], volumes, owner, tenant)


async def said(rig: DockerRig, script: str, mounts: tuple[Mount, ...], **changes: object) -> list[str]:
    return await printed(rig, script, mounts=mounts, **changes)


async def test_root_inside_cannot_write_to_what_is_read_only(rig: DockerRig, tmp_path: Path) -> None:
    script = (
        "id -u; cat $COMMONAGE_VOLUME_DATASETS/one.csv ~/volumes/datasets/one.csv; echo mine >/volumes/datasets/two;"
        "rm /volumes/datasets/one.csv; mount -o remount,rw /volumes/datasets; chmod 777 /volumes/datasets;"
        "ls /volumes/datasets"
    )
    uid, first, again, *refused, there = await said(rig, script, asked(datasets(tmp_path / "data sets")))
    assert (uid, first, again, there) == ("0", "1,2", "1,2", "one.csv")
    assert len([line for line in refused if "Read-only file system" in line]) == 3
    assert "permission denied" in " ".join(refused).lower()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, mounted below a folder that is shared."""
    folder = tmp_path / "data sets" / "disk"
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    try:
        (folder / "theirs").write_text("3\n")
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


async def test_root_inside_cannot_write_to_what_is_mounted_below_a_read_only_folder(rig: DockerRig, disk: Path) -> None:
    """Docker makes the folder itself read-only, and what is mounted below it stays as it is."""
    above = datasets(disk.parent)
    write = "(echo x >/volumes/datasets/disk/mine) 2>&1; ls -A /volumes/datasets/disk"
    [refused] = await said(rig, write, asked(above))
    assert "Read-only file system" in refused
    # As a volume of its own it is there, and read-only too.
    apart = asked(above, Volume("disk", source=str(disk)))
    refused, there = await said(rig, write.replace("datasets/disk", "disk"), apart)
    assert ("Read-only file system" in refused, there) == (True, "theirs")
    # A user who may write to all of it owns all of it.
    assert await said(rig, write, asked(replace(above, writable=True), writable=True)) == ["mine", "theirs"]


async def test_what_may_be_written_to_is_there_for_the_next(rig: DockerRig, tmp_path: Path) -> None:
    volume = datasets(tmp_path / "datasets", writable=True)
    elsewhere = mounts_of([VolumeRequest("datasets", True, "/data/sets")], [volume], "ada", "lab")
    assert await said(rig, "echo mine >/data/sets/two; cat /data/sets/two", elsewhere) == ["mine"]
    assert (tmp_path / "datasets" / "two").read_text() == "mine\n"
    assert await said(rig, "cat /volumes/datasets/two", asked(volume)) == ["mine"]


async def test_a_folder_of_ones_own_is_made_and_nobody_elses(rig: DockerRig, tmp_path: Path) -> None:
    (tmp_path / "projects").mkdir()
    volume = Volume("projects", source=f"{tmp_path}/projects/{{tenant}}/{{user}}", writable=True)
    write = (
        "echo of $COMMONAGE_USER >>/volumes/projects/file; cat /volumes/projects/file;"
        "ls -a /volumes/projects/.. | grep -c eve"
    )
    assert await said(rig, write, asked(volume, writable=True)) == ["of ada", "0"]
    other = asked(volume, owner="eve", tenant="other", writable=True)
    assert await said(rig, write, other, owner="eve", tenant="other") == ["of eve", "0"]
    assert (tmp_path / "projects" / "lab" / "ada" / "file").read_text() == "of ada\n"


async def test_a_docker_volume_is_its_tenants_alone(rig: DockerRig, dockerd: Dockerd) -> None:
    mine = asked(RESULTS, writable=True)
    assert await said(rig, "echo 42 >/volumes/results/answer", mine) == []
    read = "cat /volumes/results/answer; (echo 43 >/volumes/results/answer) 2>&1"
    answer, refused = await said(rig, read, asked(RESULTS, owner="bob", writable=False), owner="bob")
    assert (answer, "Read-only file system" in refused) == ("42", True)
    theirs = asked(RESULTS, owner="eve", tenant="other", writable=True)
    assert await said(rig, "ls /volumes/results", theirs, owner="eve", tenant="other") == []
    names = {one["Name"] for one in dockerd.ask("GET", "/volumes")["Volumes"]}
    assert len(names) == 2
    assert all(name.startswith("commonage-") and (".lab." in name or ".other." in name) for name in names)


async def test_scratch_is_an_attempts_own_and_goes_with_it(rig: DockerRig, dockerd: Dockerd) -> None:
    mounts = asked(SCRATCH, IN_MEMORY)
    script = (
        "echo x >/volumes/scratch/file; printf '#!/bin/sh\\necho runs\\n' >/volumes/quick/tool;"
        "chmod +x /volumes/quick/tool; /volumes/quick/tool; cat /dev/zero >/volumes/quick/big; ls /volumes/scratch"
    )
    runs, full, there = await said(rig, script, mounts)
    assert (runs, there) == ("runs", "file")
    assert "No space left on device" in full
    assert await said(rig, "ls /volumes/scratch /volumes/quick", mounts) == ["/volumes/quick:", "", "/volumes/scratch:"]
    engine = await rig.engine()
    for status in await engine.statuses():
        await engine.forget(status.attempt_id)

    async def are_gone() -> bool:
        return not dockerd.ask("GET", "/volumes")["Volumes"]

    await rig.until(are_gone, "the volumes of containers that are gone")


async def test_a_link_does_not_choose_what_is_mounted(rig: DockerRig, tmp_path: Path) -> None:
    home = tmp_path / "data" / "workspaces" / "ada"
    home.mkdir(parents=True)
    (home / "mine").symlink_to("/etc")
    (home / "volumes").symlink_to("/root")
    request = rig.start_request(Behaviour(), mounts=asked(Volume("odd", source=str(home / "mine"))))
    engine = await rig.engine()
    await engine.start(request)
    end = await rig.phase(request.attempt_id, Phase.ENDED)
    assert isinstance(end.reason, StartFailed) and "leads elsewhere by a link" in end.reason.error
    # Nor what is written to: the links to volumes are left out where a link is in the way.
    assert await said(rig, "cat /volumes/datasets/one.csv", asked(datasets(tmp_path / "datasets"))) == ["1,2"]
    assert not Path("/root/datasets").is_symlink()


async def test_waits_for_a_missing_folder_and_reports_it(rig: DockerRig, tmp_path: Path) -> None:
    request = rig.start_request(Behaviour(), mounts=asked(Volume("gone", source=str(tmp_path / "gone"))))
    engine = await rig.engine()
    await engine.start(request)

    async def is_told() -> bool:
        reason = (await rig.status(request.attempt_id)).reason
        return isinstance(reason, RetryingStart) and "the volume gone" in str(reason.cause)

    await rig.until(is_told, "which volume is missing")
    (tmp_path / "gone").mkdir()  # the admin mounts it
    assert (await rig.phase(request.attempt_id, Phase.ENDED)).exit_code == 0
