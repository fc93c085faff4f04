"""Threads of materials: a slow home of one user does not delay others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.waiting import until

from commonage.domain.materials import MaterialCopy, Version
from commonage.files.safe_path import SafePath
from commonage.ports.files import Place
from commonage.storage.materials.copies import HomeCopy
from commonage.storage.materials.credentials import Credentials
from commonage.storage.materials.home_copies import FolderCopies
from commonage.storage.materials.materials import MaterialFolders
from commonage.storage.materials.versions import Versions

pytestmark = pytest.mark.anyio


class SlowHomes:
    """Homes; those of users called slow block until `end`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.end = threading.Event()

    def look(self, copy: HomeCopy, version: Version | None) -> MaterialCopy:
        self.begun.append(copy.home.name)
        if copy.home.name.startswith("slow"):
            self.end.wait()
        return MaterialCopy(commit=copy.home.name)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowHomes]:
    made = SlowHomes()
    monkeypatch.setattr(HomeCopy, "look", lambda copy, version=None: made.look(copy, version))
    yield made
    made.end.set()


@pytest.fixture
def folders(tmp_path: Path, slow: SlowHomes) -> Iterator[MaterialFolders]:
    made = MaterialFolders(
        Versions(SafePath(tmp_path / "materials"), tmp_path / "repositories"),
        Credentials(tmp_path / "credentials"),
        FolderCopies(SafePath(tmp_path / "homes")),
    )
    yield made
    slow.end.set()
    made.close()


async def test_a_slow_home_delays_only_its_user(folders: MaterialFolders, slow: SlowHomes) -> None:
    looks = [asyncio.create_task(folders.copy("course", Place(home="slow"))) for _ in range(8)]
    await until(lambda: slow.begun == ["slow"], "the first look")
    looks[0].cancel()
    other = await folders.copy("course", Place(home="bob"))
    assert other is not None and other.commit == "bob"
    assert await folders.version("course") is None and list(await folders.names()) == []
    assert (await folders.access("course")).deploy_key
    assert slow.begun == ["slow", "bob"]
    slow.end.set()
    assert all(one is not None for one in await asyncio.gather(*looks[1:]))


async def test_versions_and_credentials_wait_for_no_home(folders: MaterialFolders, slow: SlowHomes) -> None:
    looks = [asyncio.create_task(folders.copy("course", Place(home=f"slow-{number}"))) for number in range(8)]
    await until(lambda: len(slow.begun) == 4, "looks on all threads")
    assert await folders.version("course") is None
    assert (await folders.access("course")).deploy_key
    slow.end.set()
    await asyncio.gather(*looks)
