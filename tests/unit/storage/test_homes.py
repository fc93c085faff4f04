from pathlib import Path

import pytest

from commonage.domain.errors import Unavailable
from commonage.domain.volumes import Volume
from commonage.files.safe_path import SafePath
from commonage.storage.homes import HomeFolders

pytestmark = pytest.mark.anyio


async def test_each_folder_is_measured_and_no_link_is_followed(tmp_path: Path) -> None:
    for name, size in (("ada", 3), ("Bo b\n~1", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * size * 1024 * 1024)
    (tmp_path / "file").write_text("no home")
    (tmp_path / "link").symlink_to(tmp_path / "ada")
    (tmp_path / "ada" / "link").symlink_to(tmp_path)
    found = await HomeFolders(SafePath(tmp_path)).measure()
    assert set(found) == {"ada", "Bo b\n~1"}
    assert 3 <= found["ada"] <= 4
    assert 1 <= found["Bo b\n~1"] <= 2


async def test_homes_that_became_a_link_are_not_measured(tmp_path: Path) -> None:
    (tmp_path / "workspaces").symlink_to("/")
    with pytest.raises(Unavailable, match="link"):
        await HomeFolders(SafePath(tmp_path) / "workspaces").measure()


async def test_no_homes_and_no_folder(tmp_path: Path) -> None:
    assert await HomeFolders(SafePath(tmp_path)).measure() == {}
    with pytest.raises(Unavailable, match=r"Cannot measure the homes in .*: No such file"):
        await HomeFolders(SafePath(tmp_path) / "none").measure()


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
    found = await HomeFolders(SafePath(tmp_path)).measure_volumes(volumes)
    assert sorted((one.volume, one.tenant, one.user) for one in found if one.used_mib > 0) == [
        ("labs", "art", "ada"),
        ("labs", "optics", "ada"),
        ("labs", "optics", "bob"),
        ("scratch", None, "ada"),
    ]
    assert {one.used_mib for one in found if one.volume == "scratch"} <= {3, 4}
