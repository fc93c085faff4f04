"""Files of homes and volumes: hostile folders, uploads in parts, owners."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from commonage.domain.errors import CommonageError, Conflict, InvalidInput, NotFound, Unavailable
from commonage.domain.files import EntryKind
from commonage.files.safe_path import SafePath
from commonage.ports.files import Place, Upload
from commonage.storage import user_files
from commonage.storage.user_files import FolderFiles

pytestmark = pytest.mark.anyio
ANN = Place(home="ann")
KEY, OTHER = "0" * 32, "1" * 32
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


async def sent(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


@pytest.fixture
def files(tmp_path: Path) -> FolderFiles:
    return FolderFiles(SafePath(tmp_path / "homes"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "homes" / "ann"
    folder.mkdir(parents=True)
    return folder


async def put(files: FolderFiles, *path: str, content: bytes = b"text", replace: bool = False) -> int:
    return await files.receive(ANN, Upload(path, KEY, len(content), replace), 0, sent(content))


async def code_of(call: object) -> str:
    with pytest.raises(CommonageError) as raised:
        await call  # type: ignore[misc]
    return raised.value.problem_code


async def test_upload_creates_home_of_new_user(files: FolderFiles, tmp_path: Path) -> None:
    assert (await files.list(ANN, ())).entries == ()
    await put(files, "a.txt")
    made = tmp_path / "homes" / "ann"
    assert made.stat().st_mode & 0o777 == 0o700
    assert (made / "a.txt").read_text() == "text"
    assert (made / "a.txt").stat().st_mode & 0o777 == 0o644


async def test_list_shows_links_and_devices_without_following(files: FolderFiles, home: Path) -> None:
    (home / "b").mkdir()
    (home / "a.txt").write_text("text")
    (home / "out").symlink_to("/etc")
    os.mkfifo(home / "pipe")
    os.mkdir(os.fsencode(home) + b"/\xff")
    listing = await files.list(ANN, ())
    assert [(one.name, one.kind) for one in listing.entries] == [
        ("b", EntryKind.FOLDER), ("a.txt", EntryKind.FILE), ("out", EntryKind.LINK), ("pipe", EntryKind.OTHER)
    ]  # fmt: skip
    assert listing.left_out == 1
    for path in (("out",), ("out", "passwd"), ("pipe",)):
        assert await code_of(files.open(ANN, path)) == "invalid-path"
    assert await code_of(files.list(ANN, ("out",))) == "invalid-path"
    assert await code_of(files.receive(ANN, Upload(("out", "x"), KEY, 1), 0, sent(b"x"))) == "invalid-path"
    assert await code_of(files.make_folder(ANN, ("out", "x"))) == "invalid-path"
    assert await code_of(files.remove(ANN, ("out", "passwd"))) == "invalid-path"
    await files.remove(ANN, ("out",))
    assert Path("/etc/passwd").exists() and not (home / "out").is_symlink()


async def test_home_that_is_a_link_is_refused(files: FolderFiles, tmp_path: Path) -> None:
    (tmp_path / "homes").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "homes" / "ann").symlink_to(tmp_path / "secret")
    assert await code_of(files.list(ANN, ())) == "invalid-path"
    assert await code_of(put(files, "a")) == "invalid-path"
    assert not list((tmp_path / "secret").iterdir())


async def test_upload_goes_on_after_broken_connection(files: FolderFiles, home: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"first "
        raise ConnectionResetError

    upload = Upload(("a.bin",), KEY, 12)
    with pytest.raises(ConnectionResetError):
        await files.receive(ANN, upload, 0, broken())
    assert not (home / "a.bin").exists()
    assert await files.uploaded(ANN, upload.path, KEY) == 6
    assert await files.uploaded(ANN, upload.path, OTHER) == 0
    assert await code_of(files.receive(ANN, upload, 3, sent(b"x"))) == "upload-offset"
    assert await files.receive(ANN, upload, 6, sent(b"sec", b"ond")) == 12
    assert (home / "a.bin").read_bytes() == b"first second"
    assert [one.name for one in home.iterdir()] == ["a.bin"]
    assert await files.uploaded(ANN, upload.path, KEY) == 0


async def test_upload_beyond_its_length_is_refused(files: FolderFiles, home: Path) -> None:
    with pytest.raises(InvalidInput):
        await files.receive(ANN, Upload(("a",), KEY, 2), 0, sent(b"xxx"))
    assert not (home / "a").exists()


async def test_upload_replaces_only_when_asked(files: FolderFiles, home: Path) -> None:
    (home / "a").write_text("old")
    assert await code_of(put(files, "a")) == "file-exists"
    assert (home / "a").read_text() == "old"
    await put(files, "a", replace=True)
    assert (home / "a").read_text() == "text"
    (home / "folder").mkdir()
    assert await code_of(put(files, "folder", replace=True)) == "invalid-path"


async def test_upload_never_writes_through_a_planted_link(files: FolderFiles, home: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    planted = home / f".upload-{KEY}.part"
    planted.symlink_to(victim)
    assert await code_of(put(files, "a")) == "invalid-path"
    planted.unlink()
    os.link(victim, planted)
    assert await code_of(put(files, "a")) == "invalid-path"
    assert victim.read_text() == "precious"


async def test_two_senders_of_one_upload_are_kept_apart(files: FolderFiles, home: Path) -> None:
    async def meanwhile() -> AsyncIterator[bytes]:
        yield b"a"
        assert await code_of(files.receive(ANN, Upload(("a",), KEY, 2), 0, sent(b"xx"))) == "upload-busy"
        yield b"b"

    assert await files.receive(ANN, Upload(("a",), KEY, 2), 0, meanwhile()) == 2
    assert (home / "a").read_bytes() == b"ab"


async def test_move_replaces_nothing(files: FolderFiles, home: Path) -> None:
    (home / "a").write_text("a")
    (home / "b").write_text("b")
    assert await code_of(files.move(ANN, ("a",), ("b",))) == "file-exists"
    await files.make_folder(ANN, ("folder",))
    with pytest.raises(Conflict):
        await files.make_folder(ANN, ("folder",))
    await files.move(ANN, ("a",), ("folder", "c"))
    assert ((home / "folder" / "c").read_text(), (home / "b").read_text()) == ("a", "b")
    with pytest.raises(NotFound):
        await files.move(ANN, ("a",), ("d",))


async def test_remove_deletes_folder_with_content(files: FolderFiles, home: Path) -> None:
    (home / "folder" / "deep").mkdir(parents=True)
    (home / "folder" / "deep" / "a").write_text("a")
    await files.remove(ANN, ("folder",))
    assert list(home.iterdir()) == []
    with pytest.raises(NotFound):
        await files.remove(ANN, ("folder",))


async def test_a_place_behind_a_link_shows_only_where_it_leads(files: FolderFiles, tmp_path: Path) -> None:
    place = Place(source=str(tmp_path / "course"), link="current")
    assert (await files.list(place, ())).entries == ()
    for version in ("v1", "v2"):
        (tmp_path / "course" / ".versions" / version).mkdir(parents=True)
        (tmp_path / "course" / ".versions" / version / version).write_text(version)
    assert (await files.list(place, ())).entries == ()
    (tmp_path / "course" / "current").symlink_to(".versions/v2")
    assert [one.name for one in (await files.list(place, ())).entries] == ["v2"]
    assert await (await files.open(place, ("v2",))).read(0, 9) == b"v2"
    assert await code_of(files.list(place, (".versions",))) == "file-not-found"


async def test_a_large_folder_is_read_to_a_limit(
    files: FolderFiles, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_files, "MAX_ENTRIES", 5)
    monkeypatch.setattr(user_files, "_MOST_NAMES", 7)
    for number in range(10):
        (home / str(number)).write_text("")
    listing = await files.list(ANN, ())
    assert (len(listing.entries), listing.left_out) == (5, 2)


async def test_a_removal_that_takes_too_long_says_how_to_go_on(
    files: FolderFiles, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "folder" / "deep").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(user_files, "_REMOVE_WITHIN_S", 0.0)
        with pytest.raises(Unavailable, match="delete it again"):
            await files.remove(ANN, ("folder",))
    await files.remove(ANN, ("folder",))
    assert list(home.iterdir()) == []


async def test_reads_ranges(files: FolderFiles, home: Path) -> None:
    (home / "a").write_bytes(b"0123456789")
    file = await files.open(ANN, ("a",))
    assert (file.size_bytes, await file.read(3, 4), await file.read(8, 100), await file.read(10, 1)) == (
        10, b"3456", b"89", b""
    )  # fmt: skip
    await file.close()


async def test_file_that_nobody_closed_does_not_stay_open(files: FolderFiles, home: Path) -> None:
    (home / "a").write_bytes(b"0")
    file = await files.open(ANN, ("a",))
    before = len(os.listdir("/proc/self/fd"))
    del file
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before - 1


@AS_ROOT
async def test_new_files_get_owner_of_their_folder(files: FolderFiles, home: Path) -> None:
    os.chown(home, 4321, 4322)
    await put(files, "a")
    await files.make_folder(ANN, ("folder",))
    for name in ("a", "folder"):
        status = (home / name).stat()
        assert (status.st_uid, status.st_gid) == (4321, 4322)


@AS_ROOT
async def test_files_are_written_within_quotas(files: FolderFiles, home: Path) -> None:
    rights: list[int] = []

    async def watching() -> AsyncIterator[bytes]:
        status = [(task / "status").read_text() for task in Path("/proc/self/task").iterdir()]
        rights.extend(int(text.partition("CapEff:")[2].split()[0], 16) >> 24 & 1 for text in status)
        yield b"x"

    await files.receive(ANN, Upload(("a",), KEY, 1), 0, watching())
    assert 0 in rights, "the threads of transfers lack CAP_SYS_RESOURCE"


async def test_full_disk_and_quota_are_reported(
    files: FolderFiles, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):

        def full(descriptor: int, data: bytes, at: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(user_files, "_write_all", full)
        assert await code_of(put(files, "a")) == "storage-full"
    assert await code_of(files.receive(ANN, Upload(("b",), KEY, 2**50), 0, sent(b"x"))) == "storage-full"
    assert not (home / "a").exists() and not (home / "b").exists()


async def test_volume_folder_of_a_user_is_created(files: FolderFiles, tmp_path: Path) -> None:
    place = Place(source=f"{tmp_path}/lab/ann", is_made=True)
    assert (await files.list(place, ())).entries == ()
    await files.make_folder(place, ("x",))
    assert (tmp_path / "lab" / "ann" / "x").is_dir()
    missing = Place(source=f"{tmp_path}/nowhere")
    assert await code_of(files.list(missing, ())) == "file-not-found"
