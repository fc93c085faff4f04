"""Limits of the file system with a kernel that has project quotas for real, which not every machine's has.

Not collected by itself. Run it as root with e2fsprogs and xfsprogs, on Linux 5.14 or later with quotas:
`make test ARGS="tests/unit/storage/walk_project_quotas.py"`.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.storage.disks import FORMATS, MIB, home, mounted

from commonage.domain.volumes import Volume
from commonage.files.safe_path import SafePath
from commonage.ports.homes import Enforcement
from commonage.storage import limits
from commonage.storage.homes import HomeFolders
from commonage.storage.project_quotas import gap_of

pytestmark = pytest.mark.anyio
WRITE = "import sys; open(sys.argv[1], 'ab', 0).write(bytes(int(sys.argv[2]) * 2**20))"


@pytest.fixture(params=list(FORMATS))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk that enforces project quotas."""
    place = mounted(request.param, tmp_path, "loop,prjquota")
    try:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            assert gap_of(descriptor) is None
        finally:
            os.close(descriptor)
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def write(path: Path, mib: int) -> bool:
    """Append as a workload does that root runs, without CAP_SYS_RESOURCE; False if the disk had no room."""
    command = ["setpriv", "--bounding-set=-sys_resource", sys.executable, "-c", WRITE, str(path), str(mib)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        assert "Disk quota exceeded" in done.stderr or "No space left" in done.stderr, done.stderr
    return done.returncode == 0 and path.stat().st_size >= mib * MIB


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
