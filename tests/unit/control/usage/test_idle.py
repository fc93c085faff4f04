"""Idle sessions on a running control plane: warned, kept, stopped or left without their GPU; and GPUs that lie idle."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.control.world import ANN, BOB, ROOT, SPAWNER, USER, Site, job, submit

from commonage.control.control import Control
from commonage.control.reservations import Wanted
from commonage.control.usage.idle import Offer
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from commonage.domain.idle import Activity, ActivityState, IdleAction, IdleRule
from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import GpuReleased, IdleTooLong, IdleWarning, Kept
from commonage.domain.reasons.notes import ActivityUnknown, GpuUnused, RestartedAs, RestartOf
from commonage.domain.reasons.refusals import (
    EnvironmentNeedsGpu,
    GpuHoursLimit,
    MaxAgeReached,
    NoGpuToRelease,
    NothingToExtend,
    RoomReserved,
    TimeLimitBeyondMaxAge,
)
from commonage.domain.requests import Request, parse_duration, parse_gpus
from commonage.domain.statuses import ProcessOwner
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.workloads import Kind, State, StopCause, Workload
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.ports.execs import NotRunning
from commonage.testing import factories

pytestmark = pytest.mark.anyio
HOUR = 240.0
RULE = IdleRule(120, 20, IdleAction.STOP, 0)
DEVICE = "GPU-gpu-1-0"


def with_hub(site: Site, control: Control) -> None:
    """The hub's spawner submits what it is asked to start."""

    async def spawn(user: str, name: str, options: Mapping[str, Any]) -> None:
        ask = Submission(
            Kind.SESSION,
            name=name,
            owner=user,
            key=options["key"],
            gpu=parse_gpus(options.get("gpus")),
            grace_s=parse_duration(options["grace"]),
        )
        await control.workloads.submit(SPAWNER, ask)

    site.hub.spawn = spawn


async def session(site: Site, control: Control, **fields: Any) -> Workload:
    made = await submit(control, Submission(Kind.SESSION, **{"name": "main", "owner": "ann", **fields}), SPAWNER)
    await site.clock.advance(1)
    assert site.there(made).state is State.RUNNING
    return made


async def report(control: Control, one: Workload, idle_s: float = 0.0, *, busy: bool = False, **fields: Any) -> Any:
    activity = Activity(0.0, 0.0, busy, **fields)
    return await control.extensions.report(ANN, one.id, 1, idle_s, activity)


async def idles(site: Site, control: Control, one: Workload, seconds: float, since_s: float = 0.0) -> None:
    """Time passes in which the session reports every few seconds that nothing happens."""
    passed = 0.0
    while passed < seconds and not site.there(one).state.is_terminal and site.there(one).stop is None:
        await report(control, one, since_s + passed)
        await site.clock.advance(min(10.0, seconds - passed))
        passed += 10


def told(site: Site, one: Workload) -> list[Reason]:
    return [event.reason for event in site.store.shelf.events if event.workload_id == one.id]


async def test_an_idle_session_is_warned_and_stopped() -> None:
    site = Site(idle=RULE)
    async with site.open() as control:
        one = await session(site, control)
        await idles(site, control, one, 95)
        assert site.there(one).idle_warned_at is None
        await idles(site, control, one, 10, 95)
        (warning,) = [reason for reason in told(site, one) if isinstance(reason, IdleWarning)]
        assert (round(warning.idle_s, -1), round(warning.left_s, -1), warning.keeps_cpu) == (100, 20, False)
        notices, _ = await report(control, one, 105)
        assert [(type(each.reason), each.offers) for each in notices] == [(IdleWarning, (Offer.EXTEND,))]
        assert isinstance(control.queries.details(site.there(one)).notes[0], IdleWarning)
        await idles(site, control, one, 60, 105)
        await site.clock.advance(20)
    after = site.there(one)
    assert (after.state, after.stop is not None and after.stop.cause) == (State.STOPPED, StopCause.IDLE)
    assert isinstance(after.reason, IdleTooLong)
    assert (control.idle.counts["warned"], control.idle.counts["idle"]) == (1, 1)


async def test_a_busy_session_is_never_stopped() -> None:
    site = Site(idle=RULE)
    async with site.open() as control:
        one = await session(site, control)
        for _ in range(40):
            await report(control, one, 9000, busy=True)  # its clock may say anything
            await site.clock.advance(10)
        assert control.idle.state_of(site.there(one)) is ActivityState.ACTIVE
    assert site.there(one).state is State.RUNNING
    assert not [reason for reason in told(site, one) if isinstance(reason, IdleWarning)]


async def test_work_in_time_withdraws_the_warning() -> None:
    site = Site(idle=RULE)
    async with site.open() as control:
        one = await session(site, control)
        await idles(site, control, one, 105)
        assert site.there(one).idle_warned_at is not None
        await report(control, one, 0)
        await site.clock.advance(4)
        assert site.there(one).idle_warned_at is None
        await idles(site, control, one, 90)
        assert site.there(one).state is State.RUNNING


async def test_a_session_that_says_nothing_counts_as_active_and_shows_so() -> None:
    site = Site(idle=RULE)
    async with site.open() as control:
        one = await session(site, control)
        assert control.queries.details(site.there(one)).notes == (), "its first report may still come"
        await site.clock.advance(310)
        assert control.idle.state_of(site.there(one)) is ActivityState.UNKNOWN
        assert control.queries.details(site.there(one)).notes == (ActivityUnknown(),)
        assert site.there(one).state is State.RUNNING
        await report(control, one, 310, is_measured=False)
        await site.clock.advance(150)
        assert site.there(one).state is State.RUNNING


async def test_a_warning_and_an_extension_survive_a_restart() -> None:
    site = Site(idle=RULE)
    async with site.open() as control:
        one = await session(site, control)
        await idles(site, control, one, 105)
        warned_at = site.there(one).idle_warned_at
        assert warned_at is not None
    async with site.open() as control:
        await site.clock.advance(3)
        assert site.there(one).idle_warned_at == warned_at, "nothing is decided before its first report"
        await idles(site, control, one, 5, 112)
        assert site.there(one).idle_warned_at == warned_at
        await control.extensions.extend(ANN, one.id, 240)
        kept_until = site.there(one).kept_until
    async with site.open() as control:
        await idles(site, control, one, 200, 120)
        assert (site.there(one).state, site.there(one).kept_until) == (State.RUNNING, kept_until)
        await idles(site, control, one, 80, 320)
        await site.clock.advance(20)
    assert site.there(one).state is State.STOPPED


async def test_an_environment_goes_before_its_tenant_and_that_before_the_settings() -> None:
    rules = Rules(tenants=(Tenant("commons", idle=IdleRule(600, action=IdleAction.RELEASE_GPU)),))
    site = Site(idle=RULE, rules=rules)
    site.environments[1] = replace(site.environments[1], idle=IdleRule(60, max_age_s=7200))
    async with site.open() as control:
        one = await session(site, control)
        rule = control.idle.rule_of(one.spec)
        assert rule == IdleRule(60, 20, IdleAction.RELEASE_GPU, 7200)
        _, next_s = await report(control, one)
        assert next_s == 4
        assert one.spec.time_limit_s == 7200, "its maximum age is its time limit"
        assert one.deadline is None


async def test_more_time_than_sessions_may_run_is_refused() -> None:
    site = Site(idle=replace(RULE, max_age_s=7200))
    async with site.open() as control:
        one = await session(site, control, time_limit_s=600)
        assert one.spec.time_limit_s == 600
        with pytest.raises(InvalidInput) as refused:
            await session(site, control, time_limit_s=7201)
        assert refused.value.reason == TimeLimitBeyondMaxAge(requested_s=7201, max_age_s=7200)
        assert (await submit(control, job(time_limit_s=86_400))).spec.time_limit_s == 86_400


async def test_only_its_gpu_is_taken_where_that_is_the_rule() -> None:
    site = Site(idle=replace(RULE, action=IdleAction.RELEASE_GPU))
    async with site.open() as control:
        with_hub(site, control)
        one = await session(site, control, gpu=parse_gpus("0.5"))
        await idles(site, control, one, 105)
        notices, _ = await report(control, one, 105)
        assert notices[0].offers == (Offer.EXTEND, Offer.RELEASE_GPU)
        await idles(site, control, one, 60, 105)
        await site.clock.advance(20)
        first, second = site.all()
        assert (first.state, second.state) == (State.STOPPED, State.RUNNING)
        assert isinstance(first.reason, GpuReleased)
        assert (first.spec.request.gpu is None, second.spec.request.gpu) == (False, None)
        assert RestartedAs(workload_id=second.id) in told(site, first)
        assert RestartOf(workload_id=first.id, cause=first.reason) in told(site, second)
        passed = 0
        while passed < 300:
            await control.extensions.report(ANN, second.id, 1, passed, Activity(0, 0))
            await site.clock.advance(20)
            passed += 20
        assert site.there(second).state is State.RUNNING, "without a GPU nothing is left to take"
        assert site.there(second).idle_warned_at is None


async def test_an_environment_that_needs_a_gpu_is_stopped_instead() -> None:
    site = Site(idle=replace(RULE, action=IdleAction.RELEASE_GPU))
    site.environments[1] = replace(site.environments[1], needs_gpu=True)
    async with site.open() as control:
        one = await session(site, control, gpu=parse_gpus("0.5"))
        with pytest.raises(Conflict) as refused:
            await control.extensions.release_gpu(ANN, one.id)
        assert refused.value.reason == EnvironmentNeedsGpu(environment="notebook")
        await idles(site, control, one, 160)
        await site.clock.advance(20)
    assert isinstance(site.there(one).reason, IdleTooLong)


async def test_a_user_releases_the_gpu_and_keeps_the_session() -> None:
    site = Site()
    async with site.open() as control:
        with_hub(site, control)
        one = await session(site, control, gpu=parse_gpus("0.5"), grace_s=45)
        await site.clock.advance(15)
        with pytest.raises(NotFound):
            await control.extensions.release_gpu(BOB, one.id)
        await control.extensions.release_gpu(ANN, one.id)
        await site.clock.advance(20)
        first, second = site.all()
        assert (first.state, first.reason) == (State.STOPPED, GpuReleased(by="ann"))
        assert (second.state, second.spec.name, second.spec.request) == (
            State.RUNNING,
            "main",
            replace(first.spec.request, gpu=None),
        )
        assert second.spec.grace_s == 45
        assert await control.usage_reports.of(first) is not None
        with pytest.raises(Conflict) as refused:
            await control.extensions.release_gpu(ANN, second.id)
        assert refused.value.reason == NoGpuToRelease(is_session=True)


async def test_an_extension_moves_the_time_limit_and_its_warning() -> None:
    site = Site()
    async with site.open() as control:
        one = await submit(control, job(time_limit_s=100))
        await site.clock.advance(90)
        assert site.there(one).warned
        await control.extensions.extend(ANN, one.id, 200)
        await site.clock.advance(1)
        after = site.there(one)
        assert not after.warned
        assert isinstance(told(site, one)[-1], Kept)
        await control.extensions.extend(ANN, one.id, 20)
        assert site.there(one).kept_until == after.kept_until, "a shorter one takes nothing away"
        await site.clock.advance(190)
        assert (site.there(one).state, site.there(one).warned) == (State.RUNNING, True)
        await site.clock.advance(20)
    assert site.there(one).state is State.TIMED_OUT


async def test_work_without_a_limit_has_nothing_to_extend() -> None:
    site = Site()
    async with site.open() as control:
        one = await submit(control)
        await site.clock.advance(1)
        with pytest.raises(Conflict) as refused:
            await control.extensions.extend(ANN, one.id, 7200)
        assert refused.value.reason == NothingToExtend()
        with pytest.raises(NotFound):
            await control.extensions.extend(BOB, one.id, 7200)
        with pytest.raises(InvalidInput):
            await control.extensions.extend(ANN, one.id, 0)
        await control.workloads.stop(ANN, one.id)
        await site.clock.advance(20)
        with pytest.raises(NotRunning):
            await control.extensions.extend(ANN, one.id, 7200)


async def test_nothing_is_extended_beyond_the_maximum_age() -> None:
    site = Site(idle=replace(RULE, max_age_s=200))
    async with site.open() as control:
        one = await session(site, control, time_limit_s=100)
        await site.clock.advance(80)
        await report(control, one)
        await control.extensions.extend(ANN, one.id, 7200)
        attempt = site.there(one).attempt
        assert attempt is not None
        assert attempt.started_at is not None
        assert site.there(one).deadline == attempt.started_at + 200
        kept = told(site, one)[-1]
        assert isinstance(kept, Kept)
        assert kept.limit == MaxAgeReached(max_age_s=200)
        with pytest.raises(Conflict) as refused:
            await control.extensions.extend(ANN, one.id, 7200)
        assert refused.value.reason == MaxAgeReached(max_age_s=200)


async def test_nothing_is_extended_into_a_reservation_that_needs_its_room() -> None:
    site = Site([factories.node("gpu-1", 1)])
    async with site.open() as control:
        one = await submit(control, job(gpu=parse_gpus("1"), time_limit_s=120))
        other = await submit(control, job(time_limit_s=120), BOB)
        await site.clock.advance(1)
        begins = site.clock.now() + 2 * HOUR
        request = Request(1000, 1024, parse_gpus("1"))
        wanted = Wanted("commons", ((begins, begins + HOUR),), request, owner="root")
        await control.reservations.add(ROOT, wanted)
        await control.extensions.extend(BOB, other.id, 3 * HOUR)
        assert site.there(other).kept_until == pytest.approx(site.clock.now() + 3 * HOUR)
        await control.extensions.extend(ANN, one.id, 3 * HOUR)
        assert site.there(one).deadline == begins
        kept = told(site, one)[-1]
        assert isinstance(kept, Kept)
        assert kept.limit == RoomReserved(starts_at=begins)
        with pytest.raises(Conflict) as refused:
            await control.extensions.extend(ANN, one.id, 3 * HOUR)
        assert refused.value.reason == RoomReserved(starts_at=begins)
        await site.clock.advance(1)


async def test_nothing_is_extended_beyond_the_gpu_hours_of_its_quota() -> None:
    rules = Rules(tenants=(Tenant("commons", quota=Quota(per_user=Bounds(gpu_s_month=300))),))
    site = Site(rules=rules)
    async with site.open() as control:
        one = await session(site, control, gpu=parse_gpus("1"), time_limit_s=120)
        await site.clock.advance(100)
        await control.extensions.extend(ANN, one.id, 7200)
        kept = told(site, one)[-1]
        assert isinstance(kept, Kept)
        assert isinstance(kept.limit, GpuHoursLimit)
        assert kept.until_at - site.clock.now() == pytest.approx(199, abs=5)
        await site.clock.advance(190)
        with pytest.raises(Conflict) as refused:
            await control.extensions.extend(ANN, one.id, 7200)
        assert isinstance(refused.value.reason, GpuHoursLimit)


async def test_who_may_not_enter_a_session_reports_nothing_about_it() -> None:
    roles = (RoleBinding(SubjectKind.USER, "oscar", Role.OPERATOR),)
    site = Site(platform_roles=roles)
    async with site.open() as control:
        one = await session(site, control)
        with pytest.raises(NotFound):
            await control.extensions.report(BOB, one.id, 1, 0, Activity(0, 0))
        operator = Principal("oscar", USER | {Scope.MANAGE})
        with pytest.raises(Forbidden):
            await control.extensions.report(operator, one.id, 1, 0, Activity(0, 0))
        with pytest.raises(NotRunning):
            await control.extensions.report(ANN, one.id, 2, 0, Activity(0, 0))
        await report(control, one, -1e9, programs=("x" * 500,) * 100)
        noted = control.idle.activity_of(site.there(one))
        assert noted is not None
        assert noted.active_at == site.clock.now()
        assert (len(noted.programs), len(noted.programs[0])) == (8, 64)


def measured(site: Site, *processes: ProcessMemory) -> None:
    site.devices.measured = [DeviceSample(DEVICE, 100, 0.5, power_w=100.0, processes=tuple(processes))]


async def test_who_holds_an_unused_gpu_is_told_who_waits() -> None:
    tenants = (Tenant("commons"), Tenant("other"))
    site = Site(samples_itself=False, rules=Rules(tenants=tenants), gpu_unused_after_s=60.0)
    async with site.open() as control:
        mine = await session(site, control, gpu=parse_gpus("1"))
        measured(site)
        await site.sampled(control, 90)
        assert not [reason for reason in told(site, mine) if isinstance(reason, GpuUnused)], "no user waits"
        await submit(control, job(gpu=parse_gpus("0.5")), BOB)
        eve = replace(BOB, name="eve", groups=("other",))
        await submit(control, job(gpu=parse_gpus("0.5"), tenant="other"), eve)
        await submit(control, job(gpu=parse_gpus("0.5")), ANN)
        await site.sampled(control, 30)
        found = [reason for reason in told(site, mine) if isinstance(reason, GpuUnused)]
        assert len(found) == 1
        assert (found[0].waiting, found[0].others) == (("bob",), 1), "users of other tenants have no name"
        notices, _ = await report(control, mine)
        assert [(type(one.reason), one.offers) for one in notices] == [(GpuUnused, (Offer.RELEASE_GPU,))]
        site.engine.owned[7] = ProcessOwner(7, f"{mine.id}-1", "python3", 0.0)
        measured(site, ProcessMemory(7, 512, utilisation=0.4))
        await site.sampled(control, 10)
        notices, _ = await report(control, mine)
        assert not notices
