"""The loop that has each site keep what it has for its tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from tests.unit.control.world import ANN, FOREVER, ROOT, Site, job, submit

from commonage.control.loops.tenants import EVERY_S, RETRY_S
from commonage.control.resources.resources import Documents
from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import WaitingForNamespace
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.workloads import State
from commonage.testing import factories
from commonage.testing.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio
PHYSICS = Tenant("physics", title="Physics", quota=Quota(Bounds(cpus_milli=4000)))
EAST = Tenant("astronomy", sites=("east",))
NOT_READY = WaitingForNamespace(namespace="commonage-commons", missing="patch namespaces")


class Keeping(FakeEngine):
    """Notes what it is asked to keep; `waiting` is its answer, `fails` its error. `hangs`: it does not answer."""

    waiting: Mapping[str, Reason] = {}
    fails = hangs = False

    async def keep_tenants(self, tenants: Sequence[Tenant]) -> Mapping[str, Reason]:
        self.asked = [*getattr(self, "asked", []), list(tenants)]
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise EngineFailure("the cluster does not answer", retryable=True)
        return self.waiting


def site_with(**settings: object) -> tuple[Site, Keeping]:
    site = Site([factories.node("gpu-1", 1)], **settings)
    engine = Keeping("local", site.nodes, site.clock, world=site.world, default=FOREVER)
    return site, engine


def east(site: Site) -> Keeping:
    return Keeping("east", [factories.node("gpu-1", 1).report], site.clock, default=FOREVER)


async def test_a_site_keeps_the_tenants_that_may_use_it_with_their_quotas() -> None:
    site, engine = site_with(rules=Rules(tenants=(PHYSICS, EAST)))
    async with site.open(engine) as control:
        other = east(site)
        control.engines.add(other)
        await site.clock.advance(1)

        assert engine.asked == [[Tenant("commons"), Tenant("physics", quota=PHYSICS.quota)]]
        assert [one.name for one in other.asked[0]] == ["commons", "physics", "astronomy"]


async def test_a_changed_quota_is_applied_at_once_and_drift_after_a_while() -> None:
    site, engine = site_with()
    async with site.open(engine) as control:
        await site.clock.advance(1)
        document = {"kind": "Tenant", "name": "physics", "nominal": {"cpus": 4}}
        await control.resources.apply(ROOT, Documents([document]))
        await site.clock.advance(1)
        assert [[one.name for one in each] for each in engine.asked] == [["commons"], ["commons", "physics"]]
        assert engine.asked[-1][1].quota.nominal.cpus_milli == 4000

        await site.clock.advance(EVERY_S + 1)
        assert len(engine.asked) == 3


async def test_a_tenant_that_is_gone_is_kept_until_its_work_has_ended() -> None:
    site, engine = site_with(rules=Rules(tenants=(PHYSICS,)))
    async with site.open(engine) as control:
        one = await submit(control, job(tenant="physics"), ROOT)
        control.settings.rules = Rules()
        await site.clock.advance(EVERY_S)
        assert [each.name for each in engine.asked[-1]] == ["commons", "physics"]

        await control.workloads.stop(ROOT, one.id)
        await site.clock.advance(EVERY_S)
        assert [each.name for each in engine.asked[-1]] == ["commons"]


async def test_work_waits_while_no_site_is_ready_for_its_tenant() -> None:
    site, engine = site_with()
    engine.waiting = {"commons": NOT_READY}
    async with site.open(engine) as control:
        await site.clock.advance(1)
        one = await submit(control)
        await site.clock.advance(1)
        assert (site.there(one).state, site.there(one).reason) == (State.HELD, NOT_READY)

        engine.waiting = {}
        await site.clock.advance(RETRY_S + 2)
        assert site.there(one).state is State.RUNNING


async def test_one_site_that_is_ready_is_enough() -> None:
    site, engine = site_with()
    engine.waiting = {"commons": NOT_READY}
    async with site.open(engine) as control:
        control.engines.add(east(site))
        await site.clock.advance(10)
        assert control.tenants_at_sites.shortfall((await submit(control)).spec) is None


@pytest.mark.parametrize("trouble", ["fails", "hangs"])
async def test_a_site_in_trouble_delays_no_other(trouble: str) -> None:
    site, engine = site_with()
    setattr(engine, trouble, True)
    async with site.open(engine) as control:
        other = east(site)
        control.engines.add(other)
        await site.clock.advance(EVERY_S + 2)
        assert len(other.asked) == 2
        one = await submit(control, principal=ANN)
        await site.clock.advance(2)
        assert site.there(one).state is State.RUNNING
