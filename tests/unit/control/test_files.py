"""Files of users: how many operations run for one user, and how much open uploads may store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commonage.control.files import LOOKS_PER_USER, WAITING_PER_USER, UserFiles, Where
from commonage.control.settings import ControlSettings
from commonage.domain.errors import Conflict, InvalidInput, NotFound, TooMany
from commonage.domain.files import Listing, Parts
from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.refusals import FilesGap, FilesNotHere
from commonage.domain.tenants import Rules, Tenant
from commonage.ports.files import Place, Upload

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024
ANN, BOB = (Principal(name, frozenset({Scope.READ, Scope.SUBMIT})) for name in ("ann", "bob"))


class SlowFiles:
    """Lists, and ends uploads, when it may."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.may_end = asyncio.Event()

    def gap(self, _volume: object) -> None:
        return None

    def is_per_tenant(self, _volume: object) -> bool:
        return False

    async def list(self, place: Place, path: Parts) -> Listing:
        self.running.append(place.home)
        await self.may_end.wait()
        return Listing()

    async def receive(self, place: Place, upload: Upload, offset: int, chunks: AsyncIterator[bytes]) -> int:
        self.running.append(place.home)
        async for chunk in chunks:
            offset += len(chunk)
        await self.may_end.wait()
        return offset


class Homes:
    """Homes with a size limit and measured sizes."""

    measured_at = 0.0
    left = 8

    def used_mib(self, *_whose: object) -> int:
        return 0

    def left_mib(self, *_whose: object, **_: object) -> int:
        return self.left


@pytest.fixture
def slow() -> SlowFiles:
    return SlowFiles()


@pytest.fixture
def homes() -> Homes:
    return Homes()


@pytest.fixture
def files(slow: SlowFiles, homes: Homes) -> UserFiles:
    volumes = SimpleNamespace(offered=lambda _principal: ())
    return UserFiles(cast(Any, slow), cast(Any, volumes), cast(Any, homes), ControlSettings())


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def upload(files: UserFiles, number: int, *, size: int = 8 * MIB, sends: int = 0) -> asyncio.Task[int]:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * sends

    part = (f"{number:032x}", 0, size)
    return asyncio.create_task(files.receive(ANN, Where(f"f{number}"), part, chunks(), replace=False))


async def test_one_user_does_not_occupy_all_threads(files: UserFiles, slow: SlowFiles) -> None:
    most = LOOKS_PER_USER + WAITING_PER_USER
    tasks = [asyncio.create_task(files.list(ANN, Where())) for _ in range(most)]
    await settle()
    tasks.append(asyncio.create_task(files.list(BOB, Where())))
    await settle()
    assert slow.running == ["ann"] * LOOKS_PER_USER + ["bob"]
    with pytest.raises(TooMany):
        await files.list(ANN, Where())
    slow.may_end.set()
    await asyncio.gather(*tasks)
    assert slow.running.count("ann") == most
    await files.list(ANN, Where())


async def test_parallel_uploads_share_the_room_that_is_left(files: UserFiles, slow: SlowFiles) -> None:
    several = [upload(files, number) for number in range(8)]
    await settle()
    assert len(slow.running) == 1
    assert [one.done() and isinstance(one.exception(), Conflict) for one in several] == [False] + [True] * 7
    slow.may_end.set()
    await several[0]


async def test_an_upload_that_ends_gives_back_what_it_did_not_send(
    files: UserFiles, slow: SlowFiles, homes: Homes
) -> None:
    slow.may_end.set()
    await upload(files, 1, sends=3 * MIB)
    with pytest.raises(Conflict):
        await upload(files, 2, size=5 * MIB + 1)
    await upload(files, 3, size=5 * MIB)


async def test_a_measurement_keeps_what_open_uploads_may_still_send(
    files: UserFiles, slow: SlowFiles, homes: Homes
) -> None:
    first = upload(files, 1, size=6 * MIB, sends=2 * MIB)
    await settle()
    homes.measured_at, homes.left = 1.0, 6
    second = upload(files, 2, size=2 * MIB + 1)
    await settle()
    assert isinstance(second.exception(), Conflict)
    third = upload(files, 3, size=2 * MIB)
    slow.may_end.set()
    await asyncio.gather(first, third)


async def test_a_user_with_a_home_in_each_tenant_names_one() -> None:
    class Apart(SlowFiles):
        def is_per_tenant(self, _volume: object) -> bool:
            return True

    class Volumes:
        def offered(self, _principal: object) -> tuple[()]:
            return ()

    apart = Apart()
    apart.may_end.set()
    members = (RoleBinding(SubjectKind.USER, "ann", Role.MEMBER),)
    rules = Rules((Tenant("art"), Tenant("lab", members=members), Tenant("law")))
    settings = ControlSettings(rules=rules, default_tenant="art")
    files = UserFiles(cast(Any, apart), cast(Any, Volumes()), cast(Any, Homes()), settings)
    assert [one.tenant for one in files.places(ANN)] == ["art", "lab"]
    with pytest.raises(InvalidInput) as which:
        await files.list(ANN, Where())
    assert which.value.problem_code == "which-tenant"
    view, _ = await files.list(ANN, Where(tenant="lab"))
    assert view.tenant == "lab"
    with pytest.raises(NotFound):
        await files.list(ANN, Where(tenant="law"))


async def test_a_home_that_cannot_be_seen_says_why(slow: SlowFiles, homes: Homes) -> None:
    class Gone(SlowFiles):
        def gap(self, _volume: object) -> FilesGap:
            return FilesGap.POD

    volumes = SimpleNamespace(offered=lambda _principal: ())
    files = UserFiles(cast(Any, Gone()), cast(Any, volumes), cast(Any, homes), ControlSettings())
    with pytest.raises(Conflict) as refused:
        await files.list(ANN, Where())
    assert refused.value.reason == FilesNotHere(volume="", gap=FilesGap.POD)
