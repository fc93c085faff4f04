"""Refusals at once of workloads that could never start."""

import pytest
from tests.unit.control.world import ANN, ROOT, Site, job

from commonage.control.reservations import Wanted
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import TooMany, Unschedulable
from commonage.domain.principals import Principal
from commonage.domain.reasons.refusals import QuotaLimitTooSmall, TooManyQueued
from commonage.domain.reasons.waiting import GpuHoursSpent, QuotaScope, Resource
from commonage.domain.requests import Request, parse_gpus
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.testing import factories

pytestmark = pytest.mark.anyio
LAB = Tenant("lab", quota=Quota(Bounds(gpu_milli=1000), Bounds(gpu_milli=0), per_user=Bounds(memory_mib=3072)))
MEMBER = Principal("ann", ANN.scopes, ("lab",))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (job(gang=True, array_size=4), "TooFewNodes(requested=4, nodes=3, "),
        (job(gang=True, array_size=3, gpu=parse_gpus("1")), "TooFewNodes(requested=3, nodes=2, "),
        (job(labels=(("zone", "moon"),)), "NodeLabelsMismatch("),
        (job(gpu=parse_gpus("2")), "TooManyGpus(requested=2, most=1)"),
        (
            job(gang=True, array_size=2, gpu=parse_gpus("1")),
            "limit=1000, borrowed=0, requested=2000)",
        ),
        (job(memory_mib=4096), "limit=3072, requested=4096)"),
    ],
)
async def test_it_is_said_at_once_and_in_numbers(ask: Submission, words: str) -> None:
    nodes = [factories.node("gpu-1", 1), factories.node("gpu-2", 1), factories.node("cpu-1")]
    site = Site(nodes, rules=Rules((LAB,)))
    async with site.open() as control:
        for asking in (control.workloads.submit(MEMBER, ask), control.workloads.dry_run(MEMBER, ask)):
            with pytest.raises(Unschedulable) as raised:
                await asking
            assert words in str(raised.value)


@pytest.mark.parametrize(
    ("quota", "scope", "name"),
    [
        (Quota(Bounds(running=1, queued=2)), QuotaScope.TENANT, "lab"),
        (Quota(Bounds(running=1), per_user=Bounds(queued=2)), QuotaScope.USER, "ann"),
        (Quota(Bounds(running=1), per_environment=(("base", Bounds(queued=2)),)), QuotaScope.ENVIRONMENT, "base"),
    ],
)
async def test_queued_workloads_are_bounded_at_submission(quota: Quota, scope: QuotaScope, name: str) -> None:
    site = Site(rules=Rules((Tenant("lab", quota=quota),)))
    async with site.open() as control:
        made = await control.workloads.submit(MEMBER, job())
        await site.clock.advance(5)
        await control.workloads.submit(MEMBER, job(array_size=2))
        for asking in (control.workloads.submit(MEMBER, job()), control.workloads.dry_run(MEMBER, job())):
            with pytest.raises(TooMany) as raised:
                await asking
            assert raised.value.reason == TooManyQueued(
                tenant="lab", scope=scope, name=name, queued=2, submitted=1, limit=2
            )
        await control.workloads.stop(MEMBER, made.workloads[0].id)
        await site.clock.advance(30)
        assert (await control.workloads.submit(MEMBER, job())).created  # one of them has started


async def test_request_beyond_a_fixed_limit_is_refused() -> None:
    quota = Quota(per_model=(("A30", Bounds(gpu_milli=500)),))
    site = Site([factories.node("gpu-1", 1)], rules=Rules((Tenant("lab", quota=quota),)))
    async with site.open() as control:
        with pytest.raises(Unschedulable) as raised:
            await control.workloads.submit(MEMBER, job(gpu=parse_gpus("1")))
        assert raised.value.reason == QuotaLimitTooSmall(
            tenant="lab", scope=QuotaScope.MODEL, name="A30", resource=Resource.GPU, limit=500, requested=1000
        )


async def test_gpu_hours_survive_a_restart() -> None:
    quota = Quota(Bounds(gpu_s_month=100))
    site = Site([factories.node("gpu-1", 1)], rules=Rules((Tenant("lab", quota=quota),)))
    async with site.open() as control:
        made = await control.workloads.submit(MEMBER, job(gpu=parse_gpus("1")))
        await site.clock.advance(200)
        await control.workloads.stop(MEMBER, made.workloads[0].id)
        await site.clock.advance(30)
        assert site.there(made.workloads[0]).state == "stopped"
    async with site.open() as control:
        waits = await control.workloads.submit(MEMBER, job(gpu=parse_gpus("1")))
        await site.clock.advance(5)
        details = control.queries.details(site.there(waits.workloads[0]))
        assert isinstance(details.reason, GpuHoursSpent)
        assert (details.reason.used_s >= 200, details.reason.limit_s) == (True, 100)
        (usage,) = await control.store.usage(since=0.0, until=site.clock.now(), by="tenant")
        assert usage.gpu_h * 3600 == pytest.approx(details.reason.used_s, abs=1.0)


async def test_who_has_a_reservation_may_ask_for_more_than_the_quota() -> None:
    site = Site(rules=Rules((Tenant("course", quota=Quota(Bounds(gpu_milli=0), Bounds(gpu_milli=0))),)))
    student = Principal("ann", ANN.scopes, ("course",))
    async with site.open() as control:
        with pytest.raises(Unschedulable):
            await control.workloads.submit(student, job(gpu=parse_gpus("4GiB")))
        window = (site.clock.now(), site.clock.now() + 3600)
        asked = Request(500, 512, parse_gpus("4GiB"))
        await control.reservations.add(ROOT, Wanted("course", [window], asked, count=2))
        await site.clock.advance(1)
        made = await control.workloads.submit(student, job(gpu=parse_gpus("4GiB"), time_limit_s=600))
        await site.clock.advance(5)
        assert site.there(made.workloads[0]).state == "running"
