import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pytest
from tests.fakes.waiting import until

from commonage.control.settings import ControlSettings, Limits
from commonage.control.state.live_state import LiveState
from commonage.control.usage.homes import HomeWatch
from commonage.control.workloads.admission import LiveLimits
from commonage.domain.errors import Forbidden, TooMany, Unavailable
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.notes import HomeUsed, StorageGap
from commonage.domain.reasons.refusals import StorageQuotaExceeded
from commonage.domain.reasons.waiting import QuotaScope
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.volumes import Volume, folder_name
from commonage.domain.workloads import Kind
from commonage.ports.homes import Enforcement, FolderSize, Homes, Storage
from commonage.testing import factories
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
ADA = Principal("Ada L.", frozenset({Scope.READ}))
ADMIN = Principal("root", frozenset(Scope))


class Measured:
    """Homes of these sizes, or none that can be measured."""

    def __init__(self, used: Mapping[str, int] | None) -> None:
        self.used = used
        self.volumes: Sequence[FolderSize] = ()
        self.enforcement = Enforcement()
        self.home_limits: Mapping[str, int | None] = {}
        self.folder_limits: Mapping[tuple[str, str | None, str | None], int | None] = {}

    async def measure(self) -> Mapping[str, int]:
        if self.used is None:
            raise Unavailable("the disk is away")
        return self.used

    async def measure_volumes(self, volumes: Sequence[Volume]) -> Sequence[FolderSize]:
        return self.volumes

    async def enforce(
        self,
        homes: Mapping[str, int | None],
        folders: Sequence[tuple[FolderSize, int | None]],
        volumes: Sequence[Volume],
    ) -> Enforcement:
        self.home_limits = homes
        self.folder_limits = {(one.volume, one.tenant, one.user): limit for one, limit in folders}
        return self.enforcement


def tenants(*several: Tenant) -> ControlSettings:
    return ControlSettings(rules=Rules(several), default_tenant=several[0].name, home_quota_mib=100)


def storage(nominal: int | None = None, per_user: int | None = None) -> Quota:
    return Quota(Bounds(storage_mib=nominal), per_user=Bounds(storage_mib=per_user))


async def test_a_home_is_limited_to_its_quota_and_to_what_the_most_generous_tenant_leaves() -> None:
    homes = Measured({"ann": 30, "bob": 90})
    homes.volumes = [FolderSize("labs", "lab", "ann", 20)]
    lab, art = Tenant("lab", quota=storage(per_user=60)), Tenant("art", quota=storage(per_user=40))
    await HomeWatch(homes, FakeClock(), tenants(lab, art)).refresh()
    assert homes.home_limits == {"ann": 40, "bob": 90}, "ann has 10 left in both, bob 0: a home cannot grow beyond"
    await HomeWatch(homes, FakeClock(), tenants(lab, Tenant("free"))).refresh()
    assert homes.home_limits == {"ann": 100, "bob": 100}, "one tenant has no bound: the quota of homes remains"


async def test_a_folder_is_limited_to_what_the_tightest_quota_leaves() -> None:
    homes = Measured({"ann": 30})
    homes.volumes = [
        FolderSize("labs", "lab", "ann", 20),
        FolderSize("labs", "lab", "bob", 40),
        FolderSize("shared", "lab", None, 15),
        FolderSize("labs", "gone", "ann", 5),
        FolderSize("scratch", None, "bob", 10),
    ]
    settings = tenants(Tenant("lab", quota=storage(nominal=80, per_user=53)))
    await HomeWatch(homes, FakeClock(), settings).refresh()
    assert homes.folder_limits == {
        ("labs", "lab", "ann"): 23,  # 53 less 50, in her home and here
        ("labs", "lab", "bob"): 43,  # 53 less 50, less than the 5 that the tenant has left
        ("shared", "lab", None): 20,
        ("labs", "gone", "ann"): None,
        ("scratch", None, "bob"): 13,
    }


class Counted(tuple[FolderSize, ...]):
    """Counts how often all folders are read."""

    reads = 0

    def __iter__(self) -> Iterator[FolderSize]:
        Counted.reads += 1
        return super().__iter__()


@pytest.mark.parametrize("number", [10, 200])
async def test_folders_are_read_as_often_for_many_homes_as_for_few(number: int) -> None:
    homes = Measured({f"user-{one}": 30 for one in range(number)})
    homes.volumes = Counted(FolderSize("labs", "lab", f"user-{one}", 20) for one in range(number))
    Counted.reads = 0
    await HomeWatch(homes, FakeClock(), tenants(Tenant("lab", quota=storage(10**6, per_user=60)))).refresh()
    assert set(homes.home_limits.values()) == {40}
    assert Counted.reads < 10


async def test_spent_storage_keeps_folders_as_they_are() -> None:
    homes = Measured({})
    homes.volumes = [FolderSize("labs", "lab", "ann", 70), FolderSize("labs", "lab", "bob", 40)]
    await HomeWatch(homes, FakeClock(), tenants(Tenant("lab", quota=storage(nominal=80)))).refresh()
    assert set(homes.folder_limits.values()) == {70, 40}


async def test_a_home_says_whether_its_limit_is_enforced() -> None:
    homes = Measured({"bob": 10})
    watch = HomeWatch(homes, FakeClock(), ControlSettings(home_quota_mib=100))
    for gap, enforced in ((None, True), (StorageGap.NO_PROJECT_QUOTAS, False)):
        homes.enforcement = Enforcement(gap)
        await watch.refresh()
        view = watch.of(Principal("bob", frozenset({Scope.READ})))
        assert view is not None
        assert view.reason == HomeUsed(used_mib=10, quota_mib=100, is_enforced=enforced)


async def test_storage_is_summed_by_tenant_and_user() -> None:
    homes = Measured({"bob": 10, "ann": 1})
    homes.volumes = [
        FolderSize("labs", "lab", "bob", 100),
        FolderSize("labs", "lab", "ann", 200),
        FolderSize("labs", "art", "bob", 400),
        FolderSize("scratch", None, "bob", 1000),
    ]
    watch = HomeWatch(homes, FakeClock(), ControlSettings())
    assert watch.stored_mib("lab") is None
    await watch.refresh()
    assert (watch.stored_mib("lab"), watch.stored_mib("art"), watch.stored_mib("none")) == (300, 400, 0)
    assert (watch.stored_mib("lab", "bob"), watch.stored_mib("art", "bob")) == (1110, 1410)


async def test_full_storage_refuses_new_work_except_sessions() -> None:
    homes = Measured({"ann": 3000})
    watch = HomeWatch(homes, FakeClock(), ControlSettings())
    quota = Quota(per_user=Bounds(storage_mib=2048))
    limits = LiveLimits(LiveState(Rules((Tenant("lab", quota=quota),))), Limits(), watch)
    limits.check(factories.spec())  # not measured yet
    await watch.refresh()
    with pytest.raises(TooMany) as raised:
        limits.check(factories.spec())
    assert raised.value.problem_code == "storage-quota-exceeded"
    reason = raised.value.reason
    assert isinstance(reason, StorageQuotaExceeded)
    assert (reason.scope, reason.name, reason.used_mib, reason.limit_mib) == (QuotaScope.USER, "ann", 3000, 2048)
    limits.check(factories.spec(kind=Kind.SESSION))
    limits.check(factories.spec(owner="bob"))
    homes.used = {"ann": 2048}
    await watch.refresh()
    limits.check(factories.spec())


async def test_who_has_more_than_is_allowed_is_told() -> None:
    homes = Measured({folder_name("Ada L."): 3 * 1024, "bob": 10})
    watch = HomeWatch(homes, FakeClock(), ControlSettings(home_quota_mib=2 * 1024))
    assert watch.of(ADA) is None
    await watch.refresh()
    view = watch.of(ADA)
    assert view is not None and view.is_over
    assert view.reason == HomeUsed(used_mib=3 * 1024, quota_mib=2 * 1024, is_enforced=True)
    homes.used = None
    await watch.refresh()
    assert watch.of(ADA) == view, "what cannot be measured stays as it was"
    assert list(watch.all(ADMIN)) == [folder_name("Ada L."), "bob"]
    with pytest.raises(Forbidden):
        watch.all(ADA)


async def test_without_a_bound_there_is_only_a_figure() -> None:
    watch = HomeWatch(Measured({"bob": 2048}), FakeClock(), ControlSettings())
    await watch.refresh()
    view = watch.of(Principal("bob", frozenset({Scope.READ})))
    assert view is not None and not view.is_over
    assert view.reason == HomeUsed(used_mib=2048, quota_mib=None, is_enforced=True)


LAB_ALONE = ControlSettings(rules=Rules((Tenant("lab"),)), default_tenant="lab")


class Busy(Measured):
    """A site whose disk takes until `is_done`."""

    def __init__(self, used: Mapping[str, int]) -> None:
        super().__init__(used)
        self.is_done, self.is_asked = asyncio.Event(), 0

    async def measure(self) -> Mapping[str, int]:
        self.is_asked += 1
        await self.is_done.wait()
        return await super().measure()


async def test_a_site_that_is_slow_delays_no_other_and_is_asked_once_at_a_time() -> None:
    clock, slow, here = FakeClock(), Busy({"ann": 70}), Measured({"ann": 5})
    watch = HomeWatch(cast(Homes, here), clock, LAB_ALONE, {"slow": slow, "quick": Measured({"ann": 9})})
    running = asyncio.create_task(watch.run())
    for _ in range(3):
        await clock.advance(601)
    assert (watch.stored_mib("lab", "ann"), slow.is_asked) == (14, 1)
    slow.is_done.set()
    await until(lambda: watch.stored_mib("lab", "ann") == 84)
    assert watch.used_mib("ann") == 5
    view = watch.of(Principal("ann", frozenset({Scope.READ})))
    assert view is not None and (view.site, view.used_mib) == ("slow", 70), "the largest"
    assert {name: one.site for name, one in watch.all(ADMIN).items()} == {"ann": "slow"}
    running.cancel()
    await asyncio.wait([running])


async def test_storage_of_a_removed_site_counts_no_more() -> None:
    sites: dict[str, Storage] = {"clinic": Measured({"ann": 9})}
    watch = HomeWatch(cast(Homes, Measured({"ann": 5})), FakeClock(), LAB_ALONE, sites)
    await watch.refresh()
    assert watch.stored_mib("lab", "ann") == 14
    del sites["clinic"]
    await watch.refresh()
    assert watch.stored_mib("lab", "ann") == 5


async def test_requested_size_of_claims_counts_in_the_tenants_quota_and_their_use_in_that_of_users() -> None:
    homes = Measured({})
    homes.volumes = [
        FolderSize("", "lab", "ann", 30, size_mib=100),
        FolderSize("", "art", "ann", 0, size_mib=50, is_known=False),
        FolderSize("results", "lab", None, 5, size_mib=200),
    ]
    watch = HomeWatch(homes, FakeClock(), tenants(Tenant("lab", quota=storage(nominal=400)), Tenant("art")))
    await watch.refresh()
    assert (watch.stored_mib("lab"), watch.stored_mib("art")) == (300, 50)
    assert watch.stored_mib("lab", "ann") == 30
    assert (watch.used_mib("ann", "lab"), watch.left_mib("ann", tenant="lab")) == (30, 70)
    assert (watch.used_mib("ann", "art"), watch.left_mib("ann", tenant="art")) == (None, None)
    assert homes.folder_limits == {}, "the cluster enforces them"
    own = watch.of(Principal("ann", frozenset({Scope.READ})))
    assert own is not None and (own.used_mib, own.quota_mib, own.enforced) == (30, 100, True)
