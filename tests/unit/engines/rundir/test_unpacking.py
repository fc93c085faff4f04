"""Files that are sent along with a job: what is unpacked, what is refused, and what an archive cannot use up."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from commonage.domain.errors import EngineFailure
from commonage.engines.rundir.unpacking import Unpacker, recorded_try

MIB = 1 << 20
Member = tuple[tarfile.TarInfo, bytes]


@pytest.fixture
def unpacker() -> Iterator[Unpacker]:
    made = Unpacker(limit_mib=8)
    yield made
    made.close()


def bundle_of(path: Path, *members: Member, format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w:gz", format=format) as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def file(name: str, content: bytes = b"x", mode: int = 0o644) -> Member:
    member = tarfile.TarInfo(name)
    member.mode = mode
    return member, content


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Member:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def header(name: str, kind: bytes, size: int) -> bytes:
    """One block, which says that `size` bytes follow."""
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def raw(path: Path, *blocks: bytes) -> Path:
    path.write_bytes(gzip.compress(b"".join(blocks) + bytes(1024)))
    return path


def pax(name: str, value: str) -> bytes:
    """The header and the block of one pax record."""
    rest = f" {name}={value}\n".encode()
    size = len(rest) + 1
    while len(str(size)) + len(rest) != size:
        size += 1
    return header("pax", tarfile.XHDTYPE, size) + (str(size).encode() + rest).ljust(-(-size // 512) * 512, b"\0")


def test_files_arrive_with_their_folders_and_executable_bits(tmp_path: Path, unpacker: Unpacker) -> None:
    bundle = bundle_of(tmp_path / "b.tgz", file("./src/a.py", b"print()"), file("run.sh", mode=0o755))
    unpacker.unpack(bundle, tmp_path / "job")
    assert (tmp_path / "job" / "src" / "a.py").read_bytes() == b"print()"
    assert (tmp_path / "job" / "src" / "a.py").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "job" / "run.sh").stat().st_mode & 0o777 == 0o700
    unpacker.unpack(bundle, tmp_path / "job")  # a second attempt finds what the first left


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_long_and_foreign_names_are_kept(tmp_path: Path, unpacker: Unpacker, format: int) -> None:
    name = "/".join(["ordner-für-daten"] * 20) + "/" + "ü" * 100
    unpacker.unpack(bundle_of(tmp_path / "b.tgz", file(name, b"here"), format=format), tmp_path / "job")
    assert (tmp_path / "job" / name).read_bytes() == b"here"


@pytest.mark.parametrize(
    "member",
    [
        file("../evil"),
        file("/etc/evil"),
        file("a/../../evil"),
        file("."),
        file("/".join(["deep"] * 70)),
        file("x" * 300),
        link("link", "/etc/passwd"),
        link("link", "a", tarfile.LNKTYPE),
        link("device", "", tarfile.CHRTYPE),
        link("pipe", "", tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member[0].name[:20]}-{member[0].type.decode()}",
)
def test_nothing_but_files_below_the_folder(tmp_path: Path, unpacker: Unpacker, member: Member) -> None:
    bundle = bundle_of(tmp_path / "b.tgz", file("first"), member)
    with pytest.raises(EngineFailure, match="files sent along") as caught:
        unpacker.unpack(bundle, tmp_path / "job")
    assert not caught.value.is_retryable
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "job").exists(), "half an archive is left"


def test_links_and_pipes_that_lie_there_are_replaced_or_refused_but_never_used(
    tmp_path: Path, unpacker: Unpacker
) -> None:
    outside, job = tmp_path / "outside", tmp_path / "job"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    job.mkdir()
    (job / "sub").symlink_to(outside)
    (job / "file").symlink_to(outside / "kept")
    os.mkfifo(job / "pipe")
    unpacker.unpack(bundle_of(tmp_path / "b.tgz", file("file", b"new"), file("pipe", b"new")), job)
    assert [(job / name).read_text() for name in ("file", "pipe")] == ["new", "new"]
    assert not (job / "file").is_symlink()
    with pytest.raises(EngineFailure):
        unpacker.unpack(bundle_of(tmp_path / "b.tgz", file("sub/evil")), job)
    assert {one.name: one.read_text() for one in outside.iterdir()} == {"kept": "kept"}


HOSTILE = {
    "content beyond the limit": [header("zeros", tarfile.REGTYPE, 9 * MIB), bytes(9 * MIB)],
    "a pax header beyond the limit": [header("p", tarfile.XHDTYPE, 4 * MIB), b"x" * 4 * MIB],
    "a global header beyond the limit": [header("g", tarfile.XGLTYPE, 4 * MIB), b"x" * 4 * MIB],
    "a long name beyond the limit": [header("n", tarfile.GNUTYPE_LONGNAME, 4 * MIB), b"x" * 4 * MIB],
    "a long link name beyond the limit": [header("n", tarfile.GNUTYPE_LONGLINK, 4 * MIB), b"x" * 4 * MIB],
    "many headers in a row": [pax("comment", "x")] * 2000,
    "many global headers": [header("g", tarfile.XGLTYPE, 0), header("f", tarfile.REGTYPE, 0)] * 20,
    "only headers": [header(f"d{index % 10}", tarfile.DIRTYPE, 0) for index in range(17_000)],
    "a sparse file": [header("s", tarfile.GNUTYPE_SPARSE, 0)],
    "a sparse file by pax": [pax("GNU.sparse.map", "0,1") + header("s", tarfile.REGTYPE, 1) + b"x".ljust(512, b"\0")],
    "a negative size": [header("f", tarfile.REGTYPE, -512)],
    "a negative size by pax": [pax("size", "-1024") + header("f", tarfile.REGTYPE, 0)],
    "an endless size by pax": [pax("size", "9" * 15) + header("f", tarfile.REGTYPE, 0), bytes(9 * MIB)],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_for_good_and_leaves_nothing(
    tmp_path: Path, unpacker: Unpacker, what: str
) -> None:
    with pytest.raises(EngineFailure, match="cannot be unpacked") as caught:
        unpacker.unpack(raw(tmp_path / "b.tgz", *HOSTILE[what]), tmp_path / "job")
    assert not caught.value.is_retryable
    assert not (tmp_path / "job").exists()


def test_oversized_archive_names_the_limit(tmp_path: Path, unpacker: Unpacker) -> None:
    bundle = bundle_of(tmp_path / "b.tgz", file("zeros", bytes(9 * MIB)))
    with pytest.raises(EngineFailure, match="more than 8 MiB"):
        unpacker.unpack(bundle, tmp_path / "job")


def test_folders_count_as_files(tmp_path: Path) -> None:
    """Each name may create tens of folders, and a disk has room for a limited number."""
    bundle = bundle_of(tmp_path / "b.tgz", *(file("/".join([str(index), *"d" * 40, "f"]), b"") for index in range(3)))
    unpacker = Unpacker(8, files_max=100)
    with pytest.raises(EngineFailure, match="more than 100 files and folders"):
        unpacker.unpack(bundle, tmp_path / "job")
    unpacker.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"not an archive", b"\x1f\x8b\x08\x00broken", gzip.compress(b"x" * 512)[:-9]],
    ids=["empty", "text", "broken", "cut off"],
)
def test_non_archive_is_refused(tmp_path: Path, unpacker: Unpacker, content: bytes) -> None:
    (tmp_path / "b.tgz").write_bytes(content)
    with pytest.raises(EngineFailure, match="not a whole"):
        unpacker.unpack(tmp_path / "b.tgz", tmp_path / "job")


def test_killed_unpack_child_is_a_refusal(tmp_path: Path, unpacker: Unpacker, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "child.py"
    program.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr("commonage.engines.rundir.unpacking._CHILD", str(program))
    with pytest.raises(EngineFailure, match="SIGKILL"):
        unpacker.unpack(bundle_of(tmp_path / "b.tgz", file("a")), tmp_path / "job")


def test_the_servers_environment_is_not_the_childs(
    tmp_path: Path, unpacker: Unpacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tarfile.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    unpacker.unpack(bundle_of(tmp_path / "b.tgz", file("a")), tmp_path / "job")


def test_an_attempt_whose_unpacking_ended_the_server_twice_is_refused(tmp_path: Path) -> None:
    for _ in range(2):
        with recorded_try(tmp_path):
            left = (tmp_path / "unpacking").read_text()
        (tmp_path / "unpacking").write_text(left)  # as if the server had been killed meanwhile
    with pytest.raises(EngineFailure, match="ended 2 times while it unpacked") as caught, recorded_try(tmp_path):
        raise AssertionError("it is unpacked again")
    assert not caught.value.is_retryable


def test_finished_unpacking_leaves_no_record(tmp_path: Path) -> None:
    with pytest.raises(EngineFailure), recorded_try(tmp_path):
        raise EngineFailure("refused")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.anyio
async def test_one_user_does_not_take_all_places(unpacker: Unpacker) -> None:
    loop, freed = asyncio.get_running_loop(), asyncio.Event()
    begun: list[str] = []

    def work(owner: str) -> None:
        loop.call_soon_threadsafe(begun.append, owner)
        asyncio.run_coroutine_threadsafe(freed.wait(), loop).result()

    tasks = [asyncio.create_task(unpacker.run("eve", lambda: work("eve"))) for _ in range(20)]
    tasks.append(asyncio.create_task(unpacker.run("ann", lambda: work("ann"))))
    while "ann" not in begun or begun.count("eve") < 2:  # noqa: ASYNC110 - `begun` is filled by threads without an event
        await asyncio.sleep(0.01)
    assert begun.count("eve") == 2
    freed.set()
    await asyncio.gather(*tasks)
