"""Folders of users, and files that are sent along with a job."""

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import EngineFailure
from commonage.engines.common.workspaces import folder_name, make_workspace, unpack_bundle

users = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)


@given(users)
def test_no_name_leads_out_of_its_folder(user: str) -> None:
    name = folder_name(user)
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert "\0" not in name
    assert len(name.encode()) <= 100


@given(users, users)
def test_users_never_share_a_folder(one: str, other: str) -> None:
    assert (folder_name(one) == folder_name(other)) == (one == other)


def test_plain_names_stay_readable() -> None:
    assert folder_name("ada") == "ada"
    assert folder_name("ada.l-2_x") == "ada.l-2_x"
    assert folder_name("Ada Lovelace").startswith("ada-lovelace~")
    assert folder_name(folder_name("Ada")) != folder_name("Ada")


def test_a_workspace_is_its_owners_only(tmp_path: Path) -> None:
    folder = make_workspace(tmp_path / "workspaces", "ada")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert make_workspace(tmp_path / "workspaces", "ada") == folder


def bundle_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def file(name: str, content: bytes = b"x", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.mode = mode
    return member, content


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def test_files_arrive_with_their_folders_and_executable_bits(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path / "b.tgz", file("./src/a.py", b"print()"), file("run.sh", mode=0o755))
    unpack_bundle(bundle, tmp_path / "job", 1)
    assert (tmp_path / "job" / "src" / "a.py").read_bytes() == b"print()"
    assert (tmp_path / "job" / "src" / "a.py").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "job" / "run.sh").stat().st_mode & 0o777 == 0o700
    unpack_bundle(bundle, tmp_path / "job", 1)  # a second attempt finds what the first left


@pytest.mark.parametrize(
    "member",
    [
        file("../evil"),
        file("/etc/evil"),
        file("a/../../evil"),
        file("."),
        link("link", "/etc/passwd"),
        link("link", "a", tarfile.LNKTYPE),
        link("device", "", tarfile.CHRTYPE),
        link("pipe", "", tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member[0].name}-{member[0].type.decode()}",
)
def test_nothing_but_files_below_the_folder(tmp_path: Path, member: tuple[tarfile.TarInfo, bytes]) -> None:
    bundle = bundle_of(tmp_path / "b.tgz", member)
    with pytest.raises(EngineFailure, match="files sent along"):
        unpack_bundle(bundle, tmp_path / "job", 1)
    assert not (tmp_path / "evil").exists()
    assert list((tmp_path / "job").iterdir()) == []


def test_a_link_that_lies_there_already_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "sub").symlink_to(outside)
    (tmp_path / "job" / "file").symlink_to(outside / "file")
    for name in ("sub/evil", "file"):
        with pytest.raises(EngineFailure):
            unpack_bundle(bundle_of(tmp_path / "b.tgz", file(name)), tmp_path / "job", 1)
    assert list(outside.iterdir()) == []


def test_what_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path / "b.tgz", file("zeros", bytes(2 * 1024 * 1024)))
    with pytest.raises(EngineFailure, match="more than 1 MiB"):
        unpack_bundle(bundle, tmp_path / "job", 1)


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x1f\x8b\x08\x00broken"])
def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tgz").write_bytes(content)
    with pytest.raises(EngineFailure, match="cannot be unpacked"):
        unpack_bundle(tmp_path / "b.tgz", tmp_path / "job", 1)
