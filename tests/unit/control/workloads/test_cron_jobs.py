"""Cron jobs in the control plane: who may change them, what fires, and that a kill neither loses nor doubles a run."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.control.test_crashes import Lives
from tests.unit.control.world import ANN, BOB, ROOT, SPAWNER, USER, Site, job

from commonage.control.control import Control
from commonage.control.settings import BundleLimits, Limits
from commonage.control.workloads.cron_jobs import MAX_PER_USER, NewCronJob
from commonage.domain.cron_jobs import CronJob, CronRule, MissedRuns, Overlap, run_id
from commonage.domain.errors import Conflict, Forbidden, InvalidInput, NotFound, TooMany
from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.principals import Principal
from commonage.domain.reasons.attempts import StoppedBy
from commonage.domain.reasons.cron_jobs import (
    CronJobCreated,
    CronRunRefused,
    CronRunsMissed,
    OwnerMayNotSubmit,
    PreviousRunActive,
    ReplacedByNextRun,
)
from commonage.domain.resources import Platform
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import Kind, State, Workload
from commonage.testing.behaviour import Behaviour
from commonage.testing.factories import NOW

pytestmark = pytest.mark.anyio
MINUTE = 60.0
FIRST = NOW + 40  # NOW is twenty seconds after a full minute
QUICK = Behaviour(lasts_s=5)


def wanted(schedule: str = "* * * * *", *, name: str = "nightly", **fields: Any) -> NewCronJob:
    rule = {key: fields.pop(key) for key in list(fields) if key in CronRule.__dataclass_fields__}
    own = {key: fields.pop(key) for key in list(fields) if key in NewCronJob.__dataclass_fields__}
    return NewCronJob(job(name=name, **fields), CronRule(schedule, **rule), **own)


async def made(control: Control, schedule: str = "* * * * *", who: Principal = ANN, **fields: Any) -> CronJob:
    return await control.cron_jobs.create(who, wanted(schedule, **fields))


def runs(site: Site) -> list[Workload]:
    return [one for one in site.all() if one.spec.cron_job is not None]


def due(site: Site) -> list[float | None]:
    return [one.spec.due_at and one.spec.due_at - FIRST for one in runs(site)]


async def events(control: Control) -> list[Any]:
    return [one.reason for one in await control.queries.events(ROOT, limit=1000)]


async def test_each_time_of_the_schedule_is_one_ordinary_workload(site: Site, control: Control) -> None:
    site.engine.default = QUICK
    cron_job = await made(control, secrets=(("TOKEN", "s3cret"),))
    await site.clock.advance(39)
    assert runs(site) == []
    await site.clock.advance(62)
    assert due(site) == [0.0, MINUTE]
    first = runs(site)[0]
    assert (first.id, first.state) == (run_id(cron_job.id, FIRST), State.SUCCEEDED)
    assert (first.spec.owner, first.spec.tenant, first.spec.cron_job) == ("ann", "commons", cron_job.id)
    assert site.world.runs[f"{first.id}-1"].request.secrets == (("TOKEN", "s3cret"),)
    found = control.cron_jobs.one(ANN, cron_job.id)
    assert found.last_due_at == found.decided_until == FIRST + MINUTE
    assert found.next_times(site.clock.now(), 2) == (FIRST + 2 * MINUTE, FIRST + 3 * MINUTE)
    assert CronJobCreated(
        by="ann", id=cron_job.id, name="nightly", schedule="* * * * *", time_zone="UTC"
    ) in await events(control)
    assert "cron_jobs" in {loop.name for loop in control.health()}


async def test_skip_waits_for_the_previous_run_and_says_so(site: Site, control: Control) -> None:
    cron_job = await made(control)
    await site.clock.advance(40 + 2 * MINUTE)
    (run,) = runs(site)
    refused = PreviousRunActive(workload_id=run.id)
    assert control.cron_jobs.one(ANN, cron_job.id).last_refused == refused
    assert [one for one in await events(control) if isinstance(one, CronRunRefused)] == [
        CronRunRefused(id=cron_job.id, name="nightly", due_at=FIRST + n * MINUTE, missed=0, cause=refused)
        for n in (1, 2)
    ]


async def test_allow_runs_both_and_replace_stops_the_older(site: Site, control: Control) -> None:
    await made(control, name="both", overlap=Overlap.ALLOW)
    replaced = await made(control, name="newest", overlap=Overlap.REPLACE)
    await site.clock.advance(40 + MINUTE + 20)
    states = {(one.spec.name, one.spec.due_at): one.state for one in runs(site)}
    assert states == {
        ("both", FIRST): State.RUNNING,
        ("both", FIRST + MINUTE): State.RUNNING,
        ("newest", FIRST): State.STOPPED,
        ("newest", FIRST + MINUTE): State.RUNNING,
    }
    old = site.there(next(one for one in runs(site) if one.spec.cron_job == replaced.id))
    assert old.reason == ReplacedByNextRun(name="newest", due_at=FIRST + MINUTE)


@pytest.mark.parametrize(("missed", "run"), [(MissedRuns.RUN_ONCE, 1), (MissedRuns.SKIP, 0)])
async def test_after_an_outage_the_newest_missed_time_runs_once_or_not_at_all(
    site: Site, missed: MissedRuns, run: int
) -> None:
    async with site.open() as control:
        await made(control, "*/5 * * * *", missed_runs=missed)
    await site.clock.advance(3600 + 230)
    async with site.open() as control:
        await site.clock.advance(1)
        assert len(runs(site)) == run
        told = [one for one in await events(control) if isinstance(one, CronRunsMissed | CronRunRefused)]
        assert [(type(one), one.missed) for one in told] == [(CronRunsMissed if run else CronRunRefused, 12)]


async def test_suspended_ones_do_not_fire_and_resuming_repeats_nothing(site: Site, control: Control) -> None:
    cron_job = await made(control, suspended=True)
    assert cron_job.next_times(NOW) == ()
    await site.clock.advance(300)
    assert runs(site) == []
    resumed = await control.cron_jobs.resume(ANN, cron_job.id)
    await site.clock.advance(1)
    assert (runs(site), resumed.suspended) == ([], False)
    await site.clock.advance(60)
    assert len(runs(site)) == 1
    await control.cron_jobs.suspend(ANN, cron_job.id)
    await site.clock.advance(300)
    assert len(runs(site)) == 1


async def test_a_trigger_runs_it_at_once_and_the_same_key_gives_the_same_run(site: Site, control: Control) -> None:
    cron_job = await made(control, "0 0 1 1 *", suspended=True)
    first = await control.cron_jobs.trigger(ANN, cron_job.id, key="k")
    again = await control.cron_jobs.trigger(ANN, cron_job.id, key="k")
    other = await control.cron_jobs.trigger(ANN, cron_job.id)
    assert first.workloads[0].id == again.workloads[0].id != other.workloads[0].id
    assert {one.spec.due_at for one in runs(site)} == {None}


async def test_only_those_who_see_the_runs_see_it_and_only_those_who_stop_them_change_it(
    site: Site, control: Control
) -> None:
    cron_job = await made(control)
    for change in (
        control.cron_jobs.suspend, control.cron_jobs.resume, control.cron_jobs.remove, control.cron_jobs.trigger
    ):  # fmt: skip
        with pytest.raises(NotFound):
            await change(BOB, cron_job.id)
    with pytest.raises(NotFound):
        control.cron_jobs.one(BOB, cron_job.id)
    assert control.cron_jobs.visible(BOB) == []
    assert [one.id for one in control.cron_jobs.visible(ROOT)] == [cron_job.id]
    await control.cron_jobs.remove(ROOT, cron_job.id)
    await site.clock.advance(120)
    assert (runs(site), control.cron_jobs.visible(ANN), await site.store.cron_jobs()) == ([], [], [])


async def test_a_viewer_sees_it_without_its_command_and_may_not_change_it() -> None:
    viewer = RoleBinding(SubjectKind.USER, "vic", Role.VIEWER)
    site = Site(rules=Rules((Tenant("lab", members=(viewer, RoleBinding(SubjectKind.USER, "ann", Role.MEMBER))),)))
    async with site.open() as control:
        cron_job = await made(control, tenant="lab", variables=(("A", "1"),))
        vic = Principal("vic", USER)
        (seen,) = control.cron_jobs.visible(vic)
        assert (seen.name, seen.spec.command, seen.spec.variables) == ("nightly", (), ())
        with pytest.raises(Forbidden):
            await control.cron_jobs.suspend(vic, cron_job.id)


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (wanted("0 7 * *"), "schedule"),
        (wanted(time_zone="Mars/Olympus"), "time_zone"),
        (wanted(starting_deadline_s=-1), "starting_deadline_s"),
        (wanted(failed_kept=-1), "failed_kept"),
        (NewCronJob(job(name="x", environment="nothing"), CronRule("@daily")), "environment"),
    ],
)
async def test_bad_input_names_its_field(control: Control, ask: NewCronJob, field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        await control.cron_jobs.create(ANN, ask)
    assert error.value.field == field
    assert control.cron_jobs.visible(ANN) == []


async def test_only_jobs_repeat(control: Control) -> None:
    service = NewCronJob(job("serve"), CronRule("@daily"))
    with pytest.raises(InvalidInput):
        await control.cron_jobs.create(ANN, replace(service, submission=replace(service.submission, kind=Kind.SERVICE)))


async def test_names_are_unique_for_an_owner_and_their_number_is_bounded(site: Site, control: Control) -> None:
    await made(control, "@daily")
    with pytest.raises(Conflict) as error:
        await made(control, "@hourly")
    assert error.value.problem_code == "cron-job-exists"
    await made(control, "@daily", BOB)
    for number in range(MAX_PER_USER - 1):
        await made(control, "@daily", name=f"job-{number}")
    with pytest.raises(TooMany):
        await made(control, "@daily", name="one too many")


async def test_a_run_waits_while_a_limit_leaves_no_room_and_is_submitted_once_there_is_some() -> None:
    site = Site(limits=Limits(workloads_per_user=1))
    async with site.open() as control:
        cron_job = await made(control, "*/30 * * * *")
        other = (await control.workloads.submit(ANN, job("sleep"))).workloads[0]
        at = next(iter(cron_job.next_times(NOW)))
        await site.clock.advance(at - NOW + 20)
        assert runs(site) == []
        assert control.cron_jobs.waiting(cron_job.id) is not None
        await control.workloads.stop(ANN, other.id)
        await site.clock.advance(30)
        assert [one.spec.due_at for one in runs(site)] == [at]
        assert control.cron_jobs.waiting(cron_job.id) is None


async def test_an_owner_who_lost_the_tenant_fires_no_more() -> None:
    member = RoleBinding(SubjectKind.USER, "ann", Role.MEMBER)
    site = Site(rules=Rules((Tenant("lab", members=(member,)),)))
    async with site.open() as control:
        cron_job = await made(control, tenant="lab")
        control.settings.declare(Platform(tenants=(Tenant("lab"),)))
        await site.clock.advance(45)
        assert runs(site) == []
        assert control.cron_jobs.one(ROOT, cron_job.id).last_refused == OwnerMayNotSubmit(owner="ann", tenant="lab")


async def test_groups_of_the_hub_count_as_they_were_when_it_was_made() -> None:
    site = Site(rules=Rules((Tenant("lab"),)))
    async with site.open() as control:
        await made(control, who=Principal("eve", USER, ("lab",)), tenant="lab")
        await site.clock.advance(45)
        assert [one.spec.tenant for one in runs(site)] == ["lab"]


async def test_only_the_newest_ended_runs_are_kept_if_asked(site: Site, control: Control) -> None:
    site.engine.behave(QUICK, name="good")
    site.engine.behave(Behaviour(lasts_s=5, exit_code=3), name="bad")
    await made(control, name="good", succeeded_kept=2)
    await made(control, name="bad", failed_kept=0)
    await made(control, name="bad", who=BOB)
    await site.clock.advance(40 + 4 * MINUTE + 30)
    kept = Counter((one.spec.owner, one.spec.name) for one in runs(site))
    assert kept == {("ann", "good"): 2, ("bob", "bad"): 5}
    assert [one.spec.due_at for one in runs(site) if one.spec.name == "good"] == [FIRST + n * MINUTE for n in (3, 4)]


async def test_runs_of_an_array_are_one_run(site: Site, control: Control) -> None:
    site.engine.default = QUICK
    await made(control, array_size=3, succeeded_kept=1)
    await site.clock.advance(40 + MINUTE + 20)
    assert len(runs(site)) == 3
    assert {one.array_index for one in runs(site)} == {0, 1, 2}
    assert {one.spec.due_at for one in runs(site)} == {FIRST + MINUTE}


async def test_a_bundle_is_kept_as_long_as_the_cron_job() -> None:
    async def chunks() -> Any:
        yield b"files"

    site = Site(bundles=BundleLimits(keep_s=60))
    async with site.open() as control:
        bundle = await control.bundles.send(ANN, chunks())
        cron_job = await made(control, "0 0 1 1 *", bundle=bundle.digest)
        await site.clock.advance(90)
        await control.bundles.collect()
        assert control.bundles.path(cron_job.spec) is not None
        await control.cron_jobs.remove(ANN, cron_job.id)
        await control.bundles.collect()
        with pytest.raises(NotFound):
            control.bundles.path(cron_job.spec)


async def test_a_clock_that_goes_back_repeats_nothing(site: Site, control: Control) -> None:
    site.engine.default = QUICK
    await made(control)
    await site.clock.advance(41)
    site.clock._now -= 3600.0
    await site.clock.advance(600)
    assert due(site) == [0.0]


async def test_a_user_stop_of_a_run_stops_only_that_run(site: Site, control: Control) -> None:
    await made(control)
    await site.clock.advance(45)
    (run,) = runs(site)
    await control.workloads.stop(ANN, run.id)
    await site.clock.advance(60)
    assert isinstance(site.there(run).reason, StoppedBy)
    assert len(runs(site)) == 2


LIFE = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from([1.0, 20.0, 45.0, 90.0])),
    st.tuples(st.just("meanwhile"), st.sampled_from([20.0, 45.0, 70.0]), st.integers(0, 300)),
    st.tuples(st.just("kill"), st.integers(0, 200)),
)
FAULTS = st.lists(st.sampled_from(["", "", "before", "after"]), max_size=12).map(deque)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LIFE, max_size=6), FAULTS)
def test_killed_at_any_point_each_time_is_decided_once(life: list[tuple[Any, ...]], faults: deque[str]) -> None:
    asyncio.run(_live(life, faults))


async def _live(life: list[tuple[Any, ...]], faults: deque[str]) -> None:
    lives = Lives(store_faults=deque())
    await lives.begin()
    assert lives.control is not None
    creating = [
        lives.control.cron_jobs.create(SPAWNER, wanted("* * * * *", name="short", overlap=overlap, owner=owner))
        for overlap, owner in ((Overlap.ALLOW, "ann"), (Overlap.SKIP, "bob"))
    ]
    for one in creating:
        await one
    lives.store_faults.extend(faults)
    began = lives.site.clock.now()
    for what, *given_ in life:
        if lives.control is None:
            await lives.begin()
        if what == "advance":
            await lives.site.clock.advance(*given_)
        elif what == "meanwhile":
            await lives.meanwhile(*given_)
        else:
            await lives.meanwhile(0.0, given_[0])
            await lives.kill()
    lives.store_faults.clear()
    if lives.control is None:
        await lives.begin()
    await lives.site.clock.advance(70)
    ended = lives.site.clock.now()
    await lives.kill()
    shelf = lives.site.store.shelf
    for cron_job in shelf.cron_jobs.values():
        of_it = [one for one in shelf.workloads.values() if one.spec.cron_job == cron_job.id]
        times = Counter(one.spec.due_at for one in of_it)
        assert set(times.values()) <= {1}, "a time runs once"
        decided = {
            one.reason.due_at for one in shelf.events
            if isinstance(one.reason, CronRunRefused) and one.reason.id == cron_job.id
        }  # fmt: skip
        assert not decided & set(times), "a time either runs or is refused"
        assert cron_job.decided_until == (ended // MINUTE) * MINUTE, "nothing is left undecided"
        assert len(times) + len(decided) + _missed(shelf.events, cron_job.id) >= (ended - began) // MINUTE


def _missed(events: list[Any], cron_job: str) -> int:
    told = [one.reason for one in events if isinstance(one.reason, CronRunsMissed | CronRunRefused)]
    return sum(one.missed for one in told if one.id == cron_job)
