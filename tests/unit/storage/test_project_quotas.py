"""Limits of the file system: with a kernel that has project quotas for real, else up to the calls that set them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commonage.domain.reasons.notes import StorageGap
from commonage.domain.volumes import Volume
from commonage.files.safe_path import SafePath
from commonage.ports.homes import Enforcement, FolderSize
from commonage.storage import limits, project_quotas
from commonage.storage.homes import HomeFolders
from commonage.storage.project_quotas import OURS, gap_of, project_of, put_in_project, put_in_project_of

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024
FORMATS = {
    "ext4": ("64M", ["mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"]),
    "xfs": ("512M", ["mkfs.xfs", "-q"]),
}
WRITE = "import sys; open(sys.argv[1], 'ab', 0).write(bytes(int(sys.argv[2]) * 2**20))"


def mounted(kind: str, folder: Path, options: str) -> Path:
    """A new file system in a file, mounted; skips where it cannot be."""
    size, make = FORMATS[kind]
    if os.geteuid() or shutil.which(make[0]) is None:
        pytest.skip(f"needs root and {make[0]}")
    image, place = folder / f"{kind}.img", folder / kind
    image.touch()
    os.truncate(image, int(size[:-1]) * MIB)
    subprocess.run([*make, str(image)], check=True)
    place.mkdir()
    done = subprocess.run(["mount", "-o", options, str(image), str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this kernel does not mount {kind} with {options}: {done.stderr.splitlines()[0]}")
    return place


@pytest.fixture(params=list(FORMATS))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk that enforces project quotas."""
    place = mounted(request.param, tmp_path, "loop,prjquota")
    try:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            gap = gap_of(descriptor)
        finally:
            os.close(descriptor)
        if gap is not None:
            pytest.skip(f"this kernel has no project quotas of {request.param}")
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def plain_disk(tmp_path: Path) -> Iterator[Path]:
    """An XFS without quotas: folders have projects, and nothing limits these."""
    place = mounted("xfs", tmp_path, "loop")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def write(path: Path, mib: int) -> bool:
    """Append as a workload does that root runs, without CAP_SYS_RESOURCE; False if the disk had no room."""
    command = ["setpriv", "--bounding-set=-sys_resource", sys.executable, "-c", WRITE, str(path), str(mib)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        assert "Disk quota exceeded" in done.stderr or "No space left" in done.stderr, done.stderr
    return done.returncode == 0 and path.stat().st_size >= mib * MIB


def home(root: Path, name: str, mib: int = 0) -> Path:
    folder = root / name
    (folder / "deep" / "er").mkdir(parents=True)
    if mib:
        (folder / "deep" / "er" / "old").write_bytes(bytes(mib * MIB))
    return folder


def project(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return project_of(descriptor)
    finally:
        os.close(descriptor)


# --- with the kernel's quotas -----------------------------------------------------------------------------------------


async def test_kernel_enforces_the_limit_of_a_home(disk: Path) -> None:
    folders, ann, bob = HomeFolders(SafePath(disk), disk / "archives"), home(disk, "ann", 4), home(disk, "bob")
    assert await folders.enforce({"ann": 8, "bob": None}, [], []) == Enforcement()
    assert write(ann / "fits", 3)
    assert not write(ann / "deep" / "too-much", 3), "what was there before counts"
    assert write(bob / "free", 12), "others are not affected"
    assert await folders.enforce({"ann": 16, "bob": 12}, [], []) == Enforcement()
    assert write(ann / "more", 6)
    assert not write(bob / "more", 1)
    await folders.enforce({"ann": None, "bob": 12}, [], [])
    assert write(ann / "unlimited", 12)


async def test_full_home_accepts_writes_again_after_files_are_deleted(disk: Path) -> None:
    folders, ann = HomeFolders(SafePath(disk), disk / "archives"), home(disk, "ann", 8)
    await folders.enforce({"ann": 4}, [], [])
    assert not write(ann / "more", 1)
    (ann / "deep" / "er" / "old").unlink()
    assert write(ann / "again", 3)


async def test_kernel_enforces_the_limit_of_a_volume_folder(disk: Path) -> None:
    volume = Volume("labs", source=f"{disk}/labs/{{tenant}}/{{user}}", writable=True)
    ann = home(disk / "labs" / "optics", "ann", 2)
    folders = HomeFolders(SafePath(disk), disk / "archives")
    (found,) = await folders.measure_volumes([volume])
    assert await folders.enforce({}, [(found, 4)], [volume]) == Enforcement()
    assert write(ann / "fits", 1)
    assert not write(ann / "more", 4)


async def test_folder_of_a_user_who_left_moves_into_a_limited_home(disk: Path) -> None:
    folders, ann = HomeFolders(SafePath(disk), disk / "archives"), home(disk, "ann")
    home(disk, "bob", 4)
    await folders.enforce({"ann": 8, "bob": 8}, [], [])
    (left,) = await folders.folders_of([], user="bob")
    await folders.move(left, folders.place(left, "bob", within="ann"))
    assert (ann / "from-bob" / "deep" / "er" / "old").stat().st_size == 4 * MIB
    assert not write(ann / "more", 5), "its files count there now"


async def test_assignment_that_was_cut_off_is_done_again(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders, ann = HomeFolders(SafePath(disk), disk / "archives"), home(disk, "ann", 4)

    def cut_off(*_: object) -> None:
        raise OSError(errno.EIO, "the server was killed")

    with monkeypatch.context() as patched:
        patched.setattr(limits, "set_limit", cut_off)
        await folders.enforce({"ann": 8}, [], [])
    (ann / "deep" / "er" / "later").write_bytes(bytes(2 * MIB))
    await folders.enforce({"ann": 8}, [], [])
    assert not write(ann / "more", 3)


# --- without ----------------------------------------------------------------------------------------------------------


async def test_file_system_without_quotas_is_reported(tmp_path: Path) -> None:
    home(tmp_path, "ann")
    volume = Volume("labs", source=f"{tmp_path}/labs/{{tenant}}", writable=True)
    read_only = Volume("sets", source=f"{tmp_path}/sets/{{tenant}}")
    found = await HomeFolders(SafePath(tmp_path), tmp_path / "archives").enforce({"ann": 8}, [], [volume, read_only])
    gap = StorageGap.NO_PROJECT_QUOTAS
    assert found == Enforcement(gap, {"labs": gap})


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


async def test_copy_of_a_folder_gets_a_project_of_its_own(plain_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, folders = Kernel(monkeypatch), HomeFolders(SafePath(plain_disk), plain_disk / "archives")
    for name in ("ann", "copy"):
        home(plain_disk, name)
        put_in_project(SafePath(plain_disk, (name,)), OURS[5])
    await folders.enforce({"ann": 8, "copy": 4}, [], [])
    assert sorted(kernel.limits.values()) == [4 * 1024, 8 * 1024]
    assert project(plain_disk / "copy") != project(plain_disk / "ann") == OURS[5]


async def test_folder_that_vanished_is_left_out(plain_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    gone = FolderSize("labs", "optics", "ann", 3, f"{plain_disk}/labs/optics/ann")
    await HomeFolders(SafePath(plain_disk), plain_disk / "archives").enforce({"ann": 8}, [(gone, 4)], [])
    assert kernel.limits == {}
