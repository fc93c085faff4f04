from pathlib import Path

import pytest

from commonage.domain.errors import Unavailable
from commonage.files.safe_path import SafePath
from commonage.storage import HomeFolders

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
