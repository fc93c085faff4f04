"""Notices about quotas: once for each level and period, also across a restart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.unit.control.world import ANN, Site, job

from commonage.control.control import Control
from commonage.control.usage.quota_notices import QuotaNotices
from commonage.domain.principals import Principal
from commonage.domain.reasons.notes import QuotaUse
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.requests import parse_gpus
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.workloads import Event
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
MEMBER = Principal("ann", ANN.scopes, ("lab",))


def site(quota: Quota) -> Site:
    return Site(rules=Rules((Tenant("lab", quota=quota),)))


async def notices(control: Control) -> Sequence[Event]:
    return [event for event in await control.store.events() if isinstance(event.reason, QuotaUse)]


def percents(events: Sequence[Event]) -> list[int]:
    return [event.reason.percent for event in events if isinstance(event.reason, QuotaUse)]


async def test_each_level_is_told_once_and_not_again_after_a_restart() -> None:
    here = site(Quota(Bounds(gpu_s_month=60)))
    async with here.open() as control:
        await control.workloads.submit(MEMBER, job(gpu=parse_gpus("1")))
        await here.clock.advance(40)
        await control.quota_notices.check()
        assert await notices(control) == []
        await here.clock.advance(13)
        await control.quota_notices.check()
        (first,) = await notices(control)
        assert 80 <= percents([first])[0] < 100
        assert (first.tenant, first.owner, first.workload_id) == ("lab", None, None)
    async with here.open() as control:
        await control.quota_notices.check()
        assert len(await notices(control)) == 1
        await here.clock.advance(62)  # by itself, once a minute
        assert percents(await notices(control))[1:] == [100]
        await control.quota_notices.check()
        assert len(await notices(control)) == 2


async def test_a_new_day_is_told_again() -> None:
    here = site(Quota(Bounds(running=1)))
    async with here.open() as control:
        await control.workloads.submit(MEMBER, job())
        await here.clock.advance(2)
        for hours, count in ((0, 1), (1, 1), (24, 2), (25, 2)):
            later = FakeClock(here.clock.now() + hours * 3600)
            again = QuotaNotices(control.store, control.live_state, control.writer, control.quota_uses, later)
            await again.open()
            await again.check()
            assert percents(await notices(control)) == [100] * count


async def test_members_are_told_of_their_own_bounds() -> None:
    here = site(Quota(per_user=Bounds(running=1)))
    async with here.open() as control:
        await control.workloads.submit(MEMBER, job())
        await here.clock.advance(2)
        await control.quota_notices.check()
        (event,) = await notices(control)
        assert event.owner == "ann"
        assert isinstance(event.reason, QuotaUse)
        assert (event.reason.scope, event.reason.resource) == (QuotaScope.USER, Resource.RUNNING)


async def test_bound_beyond_which_one_may_borrow_has_no_notice() -> None:
    here = site(Quota(Bounds(cpus_milli=1000)))
    async with here.open() as control:
        await control.workloads.submit(MEMBER, job())
        await here.clock.advance(2)
        await control.quota_notices.check()
        assert await notices(control) == []
