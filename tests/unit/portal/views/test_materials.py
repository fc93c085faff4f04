"""The page "Materials": the state of each, the visitor's copy with its files, and the repository for managers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import replace

import pytest
from tests.fakes.portal import ADMIN, Portal
from tests.unit.portal.conftest import Person
from tests.unit.portal.test_pages import assert_whole

from commonage.control.resources.resources import ANY_VERSION
from commonage.domain.errors import Unavailable
from commonage.domain.materials import Material, MaterialCopy, MaterialFile, SyncStep, Version
from commonage.domain.principals import Principal
from commonage.domain.reasons.materials import CopyNeedsSpace, MaterialBranchMissing, MaterialSyncing
from commonage.ports.files import Place
from commonage.ports.materials import EVERYTHING, MaterialAccess
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
VERSION = Version("c" * 40, "d" * 40, 1_700_000_000.0, {"a <b>.py": MaterialFile("e" * 40, 3)}, skipped=2)
COPY = MaterialCopy(
    VERSION.commit, VERSION.tree, edited=("a <b>.py",), offered=("a <b>.new.py",), deleted=("d\udcff",), blocked=("l",),
    withdrawn=("w",),
)  # fmt: skip


class KeptMaterials:
    """The port in memory; what it is asked to reset and to keep is remembered."""

    def __init__(self) -> None:
        self.is_missing = False
        self.step: MaterialSyncing | None = None
        self.resets: list[Collection[str]] = []
        self.tokens: list[tuple[str, str]] = []

    async def version(self, name: str) -> Version | None:
        return VERSION

    async def sync(self, name: str, material: Material, now: float) -> Version:
        if self.is_missing:
            raise Unavailable(MaterialBranchMissing(material=name, branch=material.branch))
        return VERSION

    async def old_versions(self, name: str) -> Collection[str]:
        return []

    async def remove_version(self, name: str, tree: str) -> None:
        pass

    def syncing(self, name: str) -> MaterialSyncing | None:
        return self.step

    async def names(self) -> Collection[str]:
        return ["course"]

    async def remove(self, name: str) -> None:
        pass

    async def deliver(
        self, name: str, home: Place, at: float, *, reset: Collection[str] = (), room_mib: int | None = None
    ) -> MaterialCopy:
        self.resets.append(reset)
        return replace(COPY, error=CopyNeedsSpace(material=name, needed_mib=7, free_mib=1))

    async def copy(self, name: str, home: Place) -> MaterialCopy | None:
        return COPY

    async def access(self, name: str) -> MaterialAccess:
        return MaterialAccess("ssh-ed25519 AAAA", has_token=bool(self.tokens), webhook_secret="5ec4e7")

    async def set_token(self, name: str, user: str, token: str) -> None:
        self.tokens.append((user, token))

    def close(self) -> None:
        pass


@pytest.fixture
def materials() -> KeptMaterials:
    return KeptMaterials()


@pytest.fixture
async def portal(clock: FakeClock, materials: KeptMaterials) -> AsyncIterator[Portal]:
    async with Portal(clock, materials=materials).running() as running:
        document = {"material": {"repository": "https://example.org/course", "poll": "10s"}, "title": "Optics"}
        root = Principal("root", ADMIN)
        await running.control.resources.put(root, document, ANY_VERSION, kind="Volume", name="course")
        await clock.advance(20)
        yield running


async def test_lists_files_of_the_copy_and_resets_them(
    portal: Portal, ann: Person, materials: KeptMaterials, clock: FakeClock
) -> None:
    page = (await ann.get("materials")).text
    assert_whole(page)
    for shown in ("In sync", "Optics", "a &lt;b&gt;.py", "Edited by you (1)", "Not written (1)", "2 links"):
        assert shown in page
    assert "Sync now" not in page and "Repository" not in page
    assert (await ann.post("materials/course/reset", {"file": "a <b>.py"})).status_code == 303
    assert (await ann.post("materials/course/reset")).status_code == 303
    assert materials.resets == [frozenset({"a <b>.py"}), EVERYTHING]
    assert (await ann.get("materials/course")).status_code == 403


async def test_manager_sees_failure_and_sets_a_token(
    portal: Portal, root: Person, materials: KeptMaterials, clock: FakeClock
) -> None:
    materials.is_missing = True
    assert (await root.post("materials/course/sync")).status_code == 303
    await clock.advance(20)
    page = (await root.get("materials")).text
    assert_whole(page)
    assert "Sync fails" in page and "has no branch main" in page and "Sync of material" not in page
    materials.step = MaterialSyncing(material="course", step=SyncStep.RECEIVING.value, percent=45)
    assert "Sync of material course: receiving objects, 45%." in (await root.get("materials")).text
    assert (await root.post("materials/course/token", {"token": "secret-token"})).status_code == 303
    assert materials.tokens == [("", "secret-token")]
    page = (await root.get("materials/course")).text
    assert_whole(page)
    assert "ssh-ed25519 AAAA" in page and "secret-token" not in page


async def test_no_entry_in_the_navigation_without_materials(clock: FakeClock, ann: Person, portal: Portal) -> None:
    assert 'class="nav-materials"' in (await ann.get("")).text
    await portal.control.resources.delete(Principal("root", ADMIN), "Volume", "course", ANY_VERSION)
    assert 'class="nav-materials"' not in (await ann.get("")).text
    assert "No materials." in (await ann.get("materials")).text
