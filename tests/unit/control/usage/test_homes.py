from collections.abc import Mapping, Sequence

import pytest

from commonage.control.settings import ControlSettings, Limits
from commonage.control.state.live_state import LiveState
from commonage.control.usage.homes import HomeWatch
from commonage.control.workloads.admission import LiveLimits
from commonage.domain.errors import Forbidden, TooMany, Unavailable
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.notes import HomeUsed
from commonage.domain.reasons.refusals import StorageQuotaExceeded
from commonage.domain.reasons.waiting import QuotaScope
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.volumes import folder_name
from commonage.domain.workloads import Kind
from commonage.ports.homes import FolderSize
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

    async def measure(self) -> Mapping[str, int]:
        if self.used is None:
            raise Unavailable("the disk is away")
        return self.used

    async def measure_volumes(self) -> Sequence[FolderSize]:
        return self.volumes


async def test_storage_is_summed_by_tenant_and_user() -> None:
    homes = Measured({"bob": 10, "ann": 1})
    homes.volumes = [
        FolderSize("labs", "lab", "bob", 100),
        FolderSize("labs", "lab", "ann", 200),
        FolderSize("labs", "art", "bob", 400),
        FolderSize("scratch", None, "bob", 1000),
    ]
    watch = HomeWatch(homes, FakeClock(), None)
    assert watch.stored_mib("lab") is None
    await watch.refresh()
    assert (watch.stored_mib("lab"), watch.stored_mib("art"), watch.stored_mib("none")) == (300, 400, 0)
    assert (watch.stored_mib("lab", "bob"), watch.stored_mib("art", "bob")) == (1110, 1410)


async def test_full_storage_refuses_new_work_except_sessions() -> None:
    homes = Measured({"ann": 3000})
    watch = HomeWatch(homes, FakeClock(), None)
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
    assert view.reason == HomeUsed(used_mib=3 * 1024, quota_mib=2 * 1024)
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
    assert view.reason == HomeUsed(used_mib=2048, quota_mib=None)
