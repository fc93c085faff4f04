"""Homes and volumes of a site elsewhere: measured there, counted by quotas here, limited there; kept over outages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.engines.remote.rig import SITE, RemoteFakeRig

from commonage.control.settings import ControlSettings, Limits
from commonage.control.state.live_state import LiveState
from commonage.control.usage.homes import HomeWatch
from commonage.control.workloads.admission import LiveLimits
from commonage.domain.errors import EngineFailure, TooMany
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.nodes import SiteUnreachable
from commonage.domain.reasons.notes import StorageGap
from commonage.domain.sites import Site
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.volumes import Volume
from commonage.domain.workloads import Kind
from commonage.files.safe_path import SafePath
from commonage.ports.homes import Enforcement, FolderSize, Storage
from commonage.storage.homes import HomeFolders
from commonage.testing import factories

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024
LAB = Tenant("lab", sites=(SITE,), quota=Quota(Bounds(storage_mib=9), per_user=Bounds(storage_mib=6)))


class Disk(Storage):
    """A file system of the site that enforces limits, and records them."""

    def __init__(self, folders: HomeFolders) -> None:
        self._folders = folders
        self.homes: Mapping[str, int | None] = {}
        self.limits: dict[str, int | None] = {}

    async def measure(self) -> Mapping[str, int]:
        return await self._folders.measure()

    async def measure_volumes(self, volumes: Sequence[Volume]) -> Sequence[FolderSize]:
        return await self._folders.measure_volumes(volumes)

    async def enforce(
        self,
        homes: Mapping[str, int | None],
        folders: Sequence[tuple[FolderSize, int | None]],
        volumes: Sequence[Volume],
    ) -> Enforcement:
        self.homes, self.limits = homes, {one.path: mib for one, mib in folders}
        return Enforcement(None, {one.name: StorageGap.NO_PROJECT_QUOTAS for one in volumes})


class StorageRig(RemoteFakeRig):
    """`ann` has a home of 2 MiB at the site, and 3 MiB in the volume `projects` of the tenant `lab`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "rig")
        root, projects = folder / "workspaces", folder / "projects"
        fill(root / "ann", 2)
        fill(projects / "lab" / "ann", 3)
        self.volume = Volume("projects", source=f"{projects}/{{tenant}}/{{user}}", writable=True)
        self.ann, self.projects = root / "ann", projects
        self.folders = HomeFolders(SafePath(root), folder / "archive")
        self.storage = self.disk = Disk(self.folders)

    async def watch(self, *tenants: Tenant, sites: tuple[Site, ...] = ()) -> HomeWatch:
        rules = Rules(tenants or (LAB,), sites=sites)
        settings = ControlSettings(rules=rules, volumes=(self.volume,), default_tenant=rules.tenants[0].name)
        return HomeWatch(None, self.clock, settings, {SITE: (await self.engine()).storage})


def fill(folder: Path, mib: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "data").open("wb") as file:
        for _ in range(mib):
            file.write(b"x" * MIB)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[StorageRig]:
    made = StorageRig(tmp_path)
    yield made
    await made.close()


async def test_storage_at_the_site_counts_for_the_quota(rig: StorageRig) -> None:
    watch = await rig.watch()
    assert watch.stored_mib("lab") is None
    await watch.refresh()
    stored, of_ann = watch.stored_mib("lab"), watch.stored_mib("lab", "ann")
    assert stored is not None and of_ann is not None
    assert 3 <= stored <= 4 and 5 <= of_ann <= 7
    assert watch.users("lab") == {"ann"}


async def test_a_full_quota_refuses_new_work_until_files_are_deleted(rig: StorageRig) -> None:
    watch = await rig.watch()
    limits = LiveLimits(LiveState(Rules((LAB,))), Limits(), watch)
    fill(rig.ann, 8)
    await watch.refresh()
    with pytest.raises(TooMany) as refused:
        limits.check(factories.spec(owner="ann"))
    assert refused.value.problem_code == "storage-quota-exceeded"
    limits.check(factories.spec(owner="ann", kind=Kind.SESSION))
    (rig.ann / "data").unlink()
    await watch.refresh()
    limits.check(factories.spec(owner="ann"))


async def test_limits_reach_the_file_system_of_the_site(rig: StorageRig) -> None:
    watch = await rig.watch()
    await watch.refresh()
    of_ann, stored = watch.stored_mib("lab", "ann"), watch.stored_mib("lab")
    assert of_ann is not None and stored is not None
    left = max(0, 6 - of_ann)
    home = (await rig.folders.measure())["ann"]
    assert rig.disk.homes == {"ann": home + left}
    assert rig.disk.limits == {str(rig.projects / "lab" / "ann"): stored + left}
    assert watch.enforcement == Enforcement(None, {"projects": StorageGap.NO_PROJECT_QUOTAS})
    view = watch.of(Principal("ann", frozenset({Scope.READ})))
    assert view is not None and (view.site, view.used_mib, view.enforced) == (SITE, home, True)


async def test_the_last_sizes_count_while_the_site_is_unreachable_and_after_a_restart(rig: StorageRig) -> None:
    watch = await rig.watch()
    await watch.refresh()
    known = watch.stored_mib("lab", "ann")
    await rig.cut()
    await watch.refresh()
    assert watch.stored_mib("lab", "ann") == known
    await rig.stop_control()
    engine = await rig.start_control()
    fresh = HomeWatch(None, rig.clock, watch._settings, {SITE: engine.storage})
    await fresh.refresh()
    assert fresh.stored_mib("lab", "ann") == known
    with pytest.raises(EngineFailure) as refused:
        await engine.storage.enforce({}, (), ())
    assert isinstance(refused.value.reason, SiteUnreachable)
    await rig.connect()
    fill(rig.ann, 6)
    await fresh.refresh()
    assert fresh.stored_mib("lab", "ann") != known


async def test_a_site_that_measures_nothing_is_not_asked(rig: StorageRig) -> None:
    """A cluster, or an older site agent."""
    rig.storage = None
    watch = await rig.watch()
    await watch.refresh()
    assert (watch.stored_mib("lab"), watch.enforcement) == (0, None)
    assert await (await rig.engine()).storage.enforce({"ann": 1}, (), [rig.volume]) is None


async def test_a_site_counts_for_no_tenant_that_may_not_use_it(rig: StorageRig) -> None:
    fill(rig.projects / "rival" / "bob", 4)
    fill(rig.projects / "rival" / "ann", 4)
    elsewhere = replace(LAB, name="rival", sites=("other",))
    watch = await rig.watch(LAB, elsewhere)
    await watch.refresh()
    assert watch.stored_mib("rival") == 0
    assert watch.stored_mib("rival", "ann") == 0
    assert watch.users("rival") == set()
    own = await rig.watch(LAB, replace(elsewhere, sites=()), sites=(Site(SITE, tenants=("lab",)),))
    await own.refresh()
    assert own.stored_mib("rival", "bob") == 0, "the site is for lab alone"


async def test_sizes_that_cannot_be_are_dropped(rig: StorageRig) -> None:
    class Lies(Disk):
        async def measure(self) -> Mapping[str, int]:
            return {"ann": -5_000, "bob": 7}

        async def measure_volumes(self, volumes: Sequence[Volume]) -> Sequence[FolderSize]:
            return [FolderSize("projects", "lab", "ann", -9_000), FolderSize("unknown", "lab", "ann", 50)]

    rig.storage = Lies(rig.folders)
    watch = await rig.watch()
    await watch.refresh()
    assert (watch.stored_mib("lab"), watch.stored_mib("lab", "bob")) == (0, 7)
