"""Limits of the file system, up to the calls that set them. `walk_project_quotas` has what the kernel enforces."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.storage.disks import home, mounted, project

from commonage.domain.reasons.notes import StorageGap
from commonage.domain.volumes import Volume
from commonage.files.safe_path import SafePath
from commonage.ports.homes import Enforcement, FolderSize
from commonage.storage import project_quotas
from commonage.storage.homes import HomeFolders
from commonage.storage.project_quotas import OURS, put_in_project, put_in_project_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def plain_disk(tmp_path: Path) -> Iterator[Path]:
    """An XFS without quotas: folders have projects, and nothing limits these."""
    place = mounted("xfs", tmp_path, "loop")
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def test_file_system_without_quotas_is_reported(tmp_path: Path) -> None:
    home(tmp_path, "ann")
    volume = Volume("labs", source=f"{tmp_path}/labs/{{tenant}}", writable=True)
    read_only = Volume("sets", source=f"{tmp_path}/sets/{{tenant}}")
    found = await HomeFolders(SafePath(tmp_path), tmp_path / "archives").enforce({"ann": 8}, [], [volume, read_only])
    gap = StorageGap.NO_PROJECT_QUOTAS
    assert found == Enforcement(gap, {"labs": gap})


@pytest.mark.needs("xfs")
def test_all_files_of_a_folder_are_put_in_its_project(plain_disk: Path) -> None:
    ann, bob = home(plain_disk, "ann", 1), home(plain_disk, "bob", 1)
    (ann / "link").symlink_to(bob)
    os.mkfifo(ann / "pipe")
    put_in_project(SafePath(plain_disk, ("ann",)), OURS[7])
    assert {project(path) for path in (ann, ann / "deep", ann / "deep" / "er" / "old")} == {OURS[7]}
    assert {project(bob), project(bob / "deep" / "er" / "old")} == {0}, "no link is followed"
    (ann / "deep" / "new").mkdir()
    (ann / "deep" / "new" / "file").touch()
    assert project(ann / "deep" / "new" / "file") == OURS[7], "new files inherit it"


@pytest.mark.needs("xfs")
def test_folder_is_moved_into_one_with_another_project(plain_disk: Path) -> None:
    ann, _ = home(plain_disk, "ann"), home(plain_disk, "bob", 1)
    put_in_project(SafePath(plain_disk, ("ann",)), OURS[7])
    put_in_project(SafePath(plain_disk, ("bob",)), OURS[8])
    source, target = SafePath(plain_disk, ("bob",)), SafePath(plain_disk, ("ann", "from-bob"))
    with pytest.raises(OSError, match="cross-device"):
        source.move(target)
    put_in_project_of(target.parent, source)
    source.move(target)
    assert project(ann / "from-bob" / "deep" / "er" / "old") == OURS[7]


class Kernel:
    """The quota calls of a kernel that has them: limits in KiB by project."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits: dict[int, int] = {}
        self.calls: list[int] = []
        monkeypatch.setattr(project_quotas, "_quotactl", self.quotactl)

    def quotactl(self, _folder: int, command: int, project: int, data: bytearray) -> None:
        if command == 0x5808:
            assert data[0] == 1
            data[2:4] = (1 << 5 | 1 << 4).to_bytes(2, "little")
        elif command == 0x80_0008:
            self.calls.append(project)
            self.limits[project] = int.from_bytes(data[:8], "little")
            assert data[64] == 1 and len(data) == 72
        elif project in self.limits:
            data[:8] = self.limits[project].to_bytes(8, "little")
        else:
            raise OSError(errno.ENOENT, "no such project")


@pytest.mark.needs("xfs")
async def test_each_folder_has_a_project_and_a_limit_of_its_own(
    plain_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, folders = Kernel(monkeypatch), HomeFolders(SafePath(plain_disk), plain_disk / "archives")
    for name in ("ann", "bob", "eve", "new"):
        home(plain_disk, name)
    put_in_project(SafePath(plain_disk, ("eve",)), 42)
    put_in_project(SafePath(plain_disk, ("new",)), OURS[3])
    assert await folders.enforce({"ann": 8, "bob": 9, "eve": 9, "new": None}, [], []) == Enforcement()
    mine, other = project(plain_disk / "ann"), project(plain_disk / "bob")
    assert mine in OURS and other in OURS and mine != other
    assert kernel.limits == {mine: 8 * 1024, other: 9 * 1024}
    assert project(plain_disk / "eve") == 42, "an admin's project stays"
    kernel.calls.clear()
    await folders.enforce({"ann": 8, "bob": None}, [], [])
    assert (kernel.calls, kernel.limits[other]) == ([other], 0), "only changes are set"


@pytest.mark.needs("xfs")
async def test_copy_of_a_folder_gets_a_project_of_its_own(plain_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, folders = Kernel(monkeypatch), HomeFolders(SafePath(plain_disk), plain_disk / "archives")
    for name in ("ann", "copy"):
        home(plain_disk, name)
        put_in_project(SafePath(plain_disk, (name,)), OURS[5])
    await folders.enforce({"ann": 8, "copy": 4}, [], [])
    assert sorted(kernel.limits.values()) == [4 * 1024, 8 * 1024]
    assert project(plain_disk / "copy") != project(plain_disk / "ann") == OURS[5]


@pytest.mark.needs("xfs")
async def test_folder_that_vanished_is_left_out(plain_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    gone = FolderSize("labs", "optics", "ann", 3, f"{plain_disk}/labs/optics/ann")
    await HomeFolders(SafePath(plain_disk), plain_disk / "archives").enforce({"ann": 8}, [(gone, 4)], [])
    assert kernel.limits == {}
