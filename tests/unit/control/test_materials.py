"""Materials at the start of sessions: when copies are delivered and reset, and what a slow one holds up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.control.world import ANN, ROOT, SPAWNER, Site, submit

from commonage.control import materials
from commonage.control.control import Control
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import EngineFailure, InvalidInput
from commonage.domain.materials import Material, MaterialCopy, Version
from commonage.domain.reasons.attempts import NodeLost
from commonage.domain.reasons.materials import MaterialSyncing
from commonage.domain.statuses import StartRequest
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.volumes import Volume, VolumeRequest
from commonage.domain.workloads import Kind, State, Workload
from commonage.ports.files import Place
from commonage.ports.homes import Enforcement, FolderSize
from commonage.ports.materials import EVERYTHING
from commonage.testing.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio
COURSE = Volume("course", "/m/course", always=True, material=Material("https://example.org/x", reset_at_start=True))
SECONDS = materials.BEFORE_START_S


@dataclass
class Kept:
    """The port `MaterialStorage` with one version. `hangs`: its calls of this name take until `go_on`."""

    hangs: str = ""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    resets: list[bool] = field(default_factory=list)
    rooms: list[int | None] = field(default_factory=list)

    async def version(self, name: str) -> Version | None:
        if self.hangs == "version":
            await self.go_on.wait()
        return Version("c", "t", 0.0)

    async def sync(self, name: str, material: Material, now: float) -> Version:
        return Version("c", "t", 0.0)

    def syncing(self, name: str) -> MaterialSyncing | None:
        return None

    async def names(self) -> Collection[str]:
        return ()

    async def deliver(
        self, name: str, home: Place, at: float, *, reset: Collection[str] = (), room_mib: int | None = None
    ) -> MaterialCopy:
        self.resets.append(reset == EVERYTHING)
        self.rooms.append(room_mib)
        if self.hangs == "deliver":
            await self.go_on.wait()
        return MaterialCopy("c", "t")

    def close(self) -> None:
        pass


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def site(kept: Kept) -> Site:
    made = Site(volumes=(COURSE,), materials_folder="/m")
    made.materials = kept
    return made


@pytest.fixture
async def control(site: Site) -> AsyncIterator[Control]:
    async with site.open() as control:
        yield control


async def session(site: Site, control: Control, name: str = "main", **fields: Any) -> Workload:
    made = await submit(control, Submission(Kind.SESSION, name=name, owner="ann", **fields), SPAWNER)
    await site.clock.advance(2)
    return made


@pytest.mark.parametrize("call", ["version", "deliver"])
async def test_session_waits_a_while_at_most(site: Site, control: Control, kept: Kept, call: str) -> None:
    kept.hangs = call
    made = await session(site, control)
    assert site.there(made).state is State.STARTING
    await site.clock.advance(SECONDS)
    assert site.there(made).state is State.RUNNING


async def test_session_that_is_stopped_meanwhile_is_not_started(site: Site, control: Control, kept: Kept) -> None:
    kept.hangs = "deliver"
    made = await session(site, control)
    await control.workloads.stop(ROOT, made.id)
    await site.clock.advance(2 * SECONDS)
    assert not site.world.starts and site.there(made).state is State.STOPPED


async def test_retry_does_not_wait_again(site: Site, kept: Kept) -> None:
    kept.hangs = "deliver"

    class Refusing(FakeEngine):
        """Refuses the first three starts."""

        tries = 0

        async def start(self, request: StartRequest) -> None:
            self.tries += 1
            if self.tries <= 3:
                raise EngineFailure("later", retryable=True)
            await super().start(request)

    engine = Refusing("local", site.nodes, site.clock, world=site.world, default=site.default)
    async with site.open(engine) as control:
        made = await session(site, control)
        await site.clock.advance(SECONDS + 20)  # pauses of 1, 2 and 4 s, or 8 s
        assert site.there(made).state is State.RUNNING


async def test_new_session_starts_with_the_originals(site: Site, control: Control, kept: Kept) -> None:
    first = await session(site, control)
    await site.clock.advance(materials.EVERY_S)
    assert kept.resets == [True, False]  # before it starts, and once it runs
    await control.workloads.stop(ROOT, first.id)
    await site.clock.advance(10)
    await session(site, control)
    assert kept.resets.count(True) == 2


async def test_session_that_replaces_another_keeps_the_work(site: Site, control: Control, kept: Kept) -> None:
    async def spawn(user: str, name: str, options: Mapping[str, Any]) -> None:
        await submit(control, Submission(Kind.SESSION, name=name, owner=user, key=options["key"]), SPAWNER)

    site.hub.spawn = spawn
    lost = site.there(await session(site, control, requeue=True))
    assert lost.attempt is not None
    site.engine.end(lost.attempt.id, None, NodeLost(node=lost.attempt.allocation.node))
    await site.clock.advance(30)
    assert site.states() == [State.LOST, State.RUNNING] and kept.resets.count(True) == 1


async def test_second_session_leaves_the_work_of_the_first(site: Site, control: Control, kept: Kept) -> None:
    await session(site, control)
    await session(site, control, "second")
    assert site.states() == [State.RUNNING] * 2 and kept.resets.count(True) == 1


async def test_several_sessions_of_one_owner_are_served_once_each(site: Site, control: Control, kept: Kept) -> None:
    await session(site, control)
    await session(site, control, "second")
    await site.clock.advance(2 * materials.SETTLE_S)
    done = len(kept.resets)
    await site.clock.advance(10 * materials.SETTLE_S)
    assert len(kept.resets) == done


class Homes:
    """2 GiB in the home of ann."""

    async def measure(self) -> Mapping[str, int]:
        return {"ann": 2048}

    async def measure_volumes(self, _volumes: Sequence[Volume]) -> Sequence[FolderSize]:
        return []

    async def enforce(self, *_: object) -> Enforcement:
        return Enforcement()


async def test_storage_quota_of_a_tenant_bounds_a_copy(kept: Kept) -> None:
    commons = Tenant("commons", quota=Quota(per_user=Bounds(storage_mib=3072)))
    site = Site(volumes=(COURSE,), materials_folder="/m", rules=Rules((commons,)), home_quota_mib=10_240)
    site.materials, site.homes = kept, Homes()
    async with site.open() as control:
        await site.clock.advance(10)  # the first measurement
        await session(site, control)
    assert kept.rooms[0] == 1024


async def test_where_workloads_cannot_mount_the_originals_sessions_have_the_copy_alone(kept: Kept) -> None:
    site = Site(volumes=(COURSE,), materials_folder="/m", materials_mounted=False)
    site.materials = kept
    async with site.open() as control:
        await session(site, control)
        assert kept.resets
        assert [run.request.mounts for run in site.world.runs.values()] == [()]
        refused = Submission(Kind.JOB, command=("true",), volumes=(VolumeRequest("course"),))
        with pytest.raises(InvalidInput, match="~/materials/course"):
            await submit(control, refused, ANN)
