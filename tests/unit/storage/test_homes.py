import os
import tarfile
from pathlib import Path

import pytest

from commonage.domain.errors import Conflict, Unavailable
from commonage.domain.volumes import Volume
from commonage.files.safe_path import SafePath
from commonage.ports.homes import OwnedFolder
from commonage.storage.homes import HomeFolders

pytestmark = pytest.mark.anyio


async def test_each_folder_is_measured_and_no_link_is_followed(tmp_path: Path) -> None:
    for name, size in (("ada", 3), ("Bo b\n~1", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * size * 1024 * 1024)
    (tmp_path / "file").write_text("no home")
    (tmp_path / "link").symlink_to(tmp_path / "ada")
    (tmp_path / "ada" / "link").symlink_to(tmp_path)
    found = await HomeFolders(SafePath(tmp_path), tmp_path / "archive").measure()
    assert set(found) == {"ada", "Bo b\n~1"}
    assert 3 <= found["ada"] <= 4
    assert 1 <= found["Bo b\n~1"] <= 2


async def test_homes_that_became_a_link_are_not_measured(tmp_path: Path) -> None:
    (tmp_path / "workspaces").symlink_to("/")
    with pytest.raises(Unavailable, match="link"):
        await HomeFolders(SafePath(tmp_path) / "workspaces", tmp_path / "archive").measure()


async def test_no_homes_and_no_folder(tmp_path: Path) -> None:
    assert await HomeFolders(SafePath(tmp_path), tmp_path / "archive").measure() == {}
    with pytest.raises(Unavailable, match=r"Cannot measure the homes in .*: No such file"):
        await HomeFolders(SafePath(tmp_path) / "none", tmp_path / "archive").measure()


async def test_folders_of_volumes_are_measured_by_tenant_and_user(tmp_path: Path) -> None:
    for name, size in (("labs/optics/ada", 2), ("labs/optics/bob", 1), ("labs/art/ada", 1), ("scratch/ada/files", 3)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(b"x" * size * 1024 * 1024)
    (tmp_path / "labs" / "link").symlink_to(tmp_path)
    volumes = [
        Volume("labs", source=f"{tmp_path}/labs/{{tenant}}/{{user}}", writable=True),
        Volume("scratch", source=f"{tmp_path}/scratch/{{user}}/files", writable=True),
        Volume("missing", source=f"{tmp_path}/none/{{user}}", writable=True),
        Volume("all", source=f"{tmp_path}/labs", writable=True),
        Volume("read", source=f"{tmp_path}/labs/{{tenant}}"),
    ]
    found = await HomeFolders(SafePath(tmp_path), tmp_path / "archive").measure_volumes(volumes)
    assert sorted((one.volume, one.tenant, one.user) for one in found if one.used_mib > 0) == [
        ("labs", "art", "ada"),
        ("labs", "optics", "ada"),
        ("labs", "optics", "bob"),
        ("scratch", None, "ada"),
    ]
    assert {one.used_mib for one in found if one.volume == "scratch"} <= {3, 4}


# --- folders of one user or tenant ------------------------------------------------------------------------------------


def homes_in(folder: Path) -> HomeFolders:
    for name in ("ann", "bob"):
        (folder / "homes" / name / "deep").mkdir(parents=True)
        (folder / "homes" / name / "deep" / "file").write_text(name)
    (folder / "homes" / "ann" / "link").symlink_to("/etc/passwd")
    return HomeFolders(SafePath(folder / "homes"), folder / "archive")


async def home_of(homes: HomeFolders, user: str = "ann") -> OwnedFolder:
    (found,) = await homes.folders_of([], user=user)
    return found


async def test_folders_of_a_user_or_tenant_end_at_its_name(tmp_path: Path) -> None:
    for name in ("optics/ann/x", "optics/bob", "art/ann", "art/optics"):
        (tmp_path / "labs" / name).mkdir(parents=True)
    volumes = [
        Volume("labs", source=f"{tmp_path}/labs/{{tenant}}/{{user}}/x", writable=True),
        Volume("read", source=f"{tmp_path}/labs/{{tenant}}"),
    ]
    homes = HomeFolders(SafePath(tmp_path / "homes"), tmp_path / "archive")
    of_user = await homes.folders_of(volumes, user="ann")
    assert sorted(one.path for one in of_user) == [f"{tmp_path}/labs/art/ann", f"{tmp_path}/labs/optics/ann"]
    of_tenant = await homes.folders_of(volumes, tenant="optics")
    assert [one.path for one in of_tenant] == [f"{tmp_path}/labs/optics"]


async def test_a_home_is_renamed_once(tmp_path: Path) -> None:
    homes = homes_in(tmp_path)
    folder = await home_of(homes)
    to = homes.place(folder, "anna")
    assert await homes.is_free(to)
    await homes.move(folder, to)
    await homes.move(folder, to)
    assert (tmp_path / "homes" / "anna" / "deep" / "file").read_text() == "ann"
    assert not await homes.is_free(to)
    with pytest.raises(Conflict):
        await homes.move(await home_of(homes, "bob"), to)
    assert (tmp_path / "homes" / "bob").exists()


async def test_a_home_is_handed_over_into_that_of_the_heir(tmp_path: Path) -> None:
    homes = homes_in(tmp_path)
    folder = await home_of(homes)
    await homes.move(folder, homes.place(folder, "ann", within="bob"))
    assert (tmp_path / "homes" / "bob" / "from-ann" / "deep" / "file").read_text() == "ann"
    assert (tmp_path / "homes" / "bob" / "deep" / "file").read_text() == "bob"


async def test_an_archive_has_everything_and_no_content_behind_links(tmp_path: Path) -> None:
    homes = homes_in(tmp_path)
    await homes.archive(await home_of(homes), "user-ann-o1")
    assert not (tmp_path / "homes" / "ann").exists()
    file = tmp_path / "archive" / "user-ann-o1.tar"
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        assert sorted(archive.getnames()) == ["ann", "ann/deep", "ann/deep/file", "ann/link"]
        content = archive.extractfile("ann/deep/file")
        assert content is not None
        assert content.read() == b"ann"
        assert archive.getmember("ann/link").issym()


async def test_an_archive_that_was_not_complete_is_written_again(tmp_path: Path) -> None:
    homes = homes_in(tmp_path)
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "a.part").write_bytes(b"killed here")
    await homes.archive(await home_of(homes), "a")
    assert os.listdir(tmp_path / "archive") == ["a.tar"]


async def test_a_complete_archive_survives_a_kill_while_its_folder_is_deleted(tmp_path: Path) -> None:
    homes = homes_in(tmp_path)
    folder = await home_of(homes)
    await homes.archive(folder, "a")
    whole = (tmp_path / "archive" / "a.tar").read_bytes()
    (tmp_path / "homes" / "ann").mkdir()
    (tmp_path / "homes" / "ann" / "rest").write_text("not deleted yet")
    await homes.archive(folder, "a")
    assert (tmp_path / "archive" / "a.tar").read_bytes() == whole
    assert not (tmp_path / "homes" / "ann").exists()


async def test_a_deleted_home_leaves_what_its_links_point_to(tmp_path: Path) -> None:
    homes = homes_in(tmp_path)
    folder = await home_of(homes)
    await homes.delete(folder)
    await homes.delete(folder)
    assert os.listdir(tmp_path / "homes") == ["bob"]
    assert Path("/etc/passwd").exists()
