"""Cron jobs that an appliance fires while its link is down: each due time once, whatever is cut or killed when."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.contract.engines.remote.rig import SITE
from tests.fakes.waiting import early_in_a_minute, until
from tests.integration.cron_sites import Appliance, real_appliance
from tests.unit.control.world import ANN, SPAWNER, job

from commonage.control.workloads.cron_jobs import NewCronJob
from commonage.domain.cron_jobs import CronJob, CronRule, Overlap, run_id
from commonage.domain.errors import NotFound
from commonage.domain.reasons.cron_jobs import (
    CronRunRefused,
    CronRunsMissed,
    PreviousRunActive,
    ReplacedByNextRun,
    SiteFiresCronJob,
    StartedBySite,
    TakenByCronRun,
)
from commonage.domain.workloads import State
from commonage.link.sites.messages.hello import CRON_PROTOCOL
from commonage.ports.cron_sites import SiteRun
from commonage.site_agent.agent import SiteAgent
from commonage.testing import factories as make
from commonage.testing.behaviour import Behaviour
from commonage.testing.factories import NOW
from commonage.testing.fault_proxy import Faults

pytestmark = pytest.mark.anyio
MINUTE, DONE = 60.0, State.SUCCEEDED
FIRST = NOW + 40  # NOW is twenty seconds after a full minute
QUICK, LONG = Behaviour(lasts_s=5), Behaviour(lasts_s=None)


def wanted(name: str = "minutely", cpus: int = 1000, **rule: Any) -> NewCronJob:
    return NewCronJob(job("act", name=name, cpus_milli=cpus), CronRule("* * * * *", **rule))


@pytest.fixture
async def appliance(tmp_path: Path) -> AsyncIterator[Appliance]:
    made = Appliance(tmp_path)
    await made.begin_agent(QUICK)
    await made.begin_control()
    await made.rig.connect()
    await made.pass_time(1)
    yield made
    if made.control is not None:
        await made.kill_control()
    await made.rig.stop_agent()


async def given_to(appliance: Appliance, new: NewCronJob) -> CronJob:
    """A cron job that the appliance has."""
    assert appliance.control is not None
    made = await appliance.control.cron_jobs.create(ANN, new)
    await appliance.pass_time(12)
    await until(lambda: appliance.site.store.shelf.cron_jobs[made.id].site == SITE)
    return made


def due(appliance: Appliance) -> list[float]:
    return sorted((one.spec.due_at or 0.0) - FIRST for one in appliance.runs())


def told(appliance: Appliance, kind: type[Any]) -> list[Any]:
    return [one.reason for one in appliance.site.store.shelf.events if isinstance(one.reason, kind)]


async def test_with_a_link_the_control_plane_fires(appliance: Appliance) -> None:
    await given_to(appliance, wanted())
    await appliance.pass_time(2 * MINUTE)
    await appliance.settled()
    assert due(appliance) == [0.0, MINUTE]
    assert {one.state for one in appliance.runs()} == {State.SUCCEEDED}
    assert told(appliance, StartedBySite) == []


async def test_due_times_of_a_cut_run_on_the_site_and_are_adopted_once(appliance: Appliance) -> None:
    cron_job = await given_to(appliance, wanted())
    await appliance.rig.cut()
    await appliance.pass_time(2 * MINUTE)
    assert appliance.control is not None
    waiting = appliance.control.cron_jobs.waiting(cron_job.id)
    assert isinstance(waiting, SiteFiresCronJob)
    assert appliance.runs() == []
    assert len(appliance.world.starts) == 2
    await appliance.rig.connect()
    await appliance.settled()
    assert due(appliance) == [0.0, MINUTE]
    for one in appliance.runs():
        assert one.id == run_id(cron_job.id, one.spec.due_at or 0.0)
        assert (one.state, one.attempts) == (State.SUCCEEDED, 1)
        assert one.attempt is not None
        assert one.attempt.ended_at is not None
        assert one.spec.due_at is not None
        assert one.spec.due_at <= one.attempt.allocation.at <= one.attempt.ended_at <= one.spec.due_at + 30
    assert set(appliance.world.starts.values()) == {1}
    assert appliance.control.cron_jobs.one(ANN, cron_job.id).decided_until == FIRST + MINUTE
    await appliance.pass_time(10)
    await appliance.settled()
    assert due(appliance) == [0.0, MINUTE, 2 * MINUTE]


async def test_a_cut_shorter_than_the_grace_leaves_the_time_to_the_control_plane(appliance: Appliance) -> None:
    await given_to(appliance, wanted())
    await appliance.pass_time(FIRST - 2 - appliance.rig.clock.now())
    await appliance.rig.cut()
    await appliance.pass_time(5)
    await appliance.rig.connect()
    await appliance.settled()
    assert due(appliance) == [0.0]
    assert told(appliance, StartedBySite) == []


async def test_a_run_without_room_waits_on_the_site_and_then_in_the_queue(appliance: Appliance) -> None:
    await given_to(appliance, wanted("large", cpus=9000 - 1000, overlap=Overlap.ALLOW))
    engine = await appliance.rig.fake.engine()
    engine.default = LONG
    await appliance.rig.cut()
    await appliance.pass_time(2 * MINUTE)
    assert len(appliance.world.starts) == 1
    await appliance.rig.connect()
    await appliance.settled()
    states = {(one.spec.due_at or 0.0) - FIRST: one.state for one in appliance.runs()}
    assert states == {0.0: State.RUNNING, MINUTE: State.QUEUED}


async def test_overlap_policies_hold_without_a_link(appliance: Appliance) -> None:
    engine = await appliance.rig.fake.engine()
    engine.default = LONG
    skips = await given_to(appliance, wanted("skips"))
    replaces = await given_to(appliance, wanted("replaces", overlap=Overlap.REPLACE))
    await appliance.rig.cut()
    await appliance.pass_time(95)
    await appliance.rig.connect()
    await appliance.settled()
    states = {(one.spec.name, (one.spec.due_at or 0.0) - FIRST): one.state for one in appliance.runs()}
    assert states == {
        ("skips", 0.0): State.RUNNING,
        ("replaces", 0.0): State.STOPPED,
        ("replaces", MINUTE): State.RUNNING,
    }
    refused = PreviousRunActive(workload_id=run_id(skips.id, FIRST))
    assert [one.cause for one in told(appliance, CronRunRefused) if one.id == skips.id] == [refused]
    stopped = next(one for one in appliance.runs() if one.id == run_id(replaces.id, FIRST))
    assert stopped.reason == ReplacedByNextRun(name="replaces", due_at=FIRST + MINUTE)


@pytest.mark.parametrize("change", ["suspend", "remove", "offboard"])
async def test_runs_of_a_cron_job_that_changed_during_the_cut_stay_in_the_history(
    appliance: Appliance, change: str
) -> None:
    cron_job = await given_to(appliance, wanted())
    await appliance.rig.cut()
    assert appliance.control is not None
    if change == "offboard":
        await appliance.control.cron_jobs.revise("root", lambda _: None)
    else:
        await getattr(appliance.control.cron_jobs, change)(ANN, cron_job.id)
    if change != "suspend":
        with pytest.raises(NotFound):
            appliance.control.cron_jobs.one(ANN, cron_job.id)
    await appliance.pass_time(2 * MINUTE)
    await appliance.rig.connect()
    await appliance.settled()
    assert due(appliance) == [0.0, MINUTE]
    assert {one.state for one in appliance.runs()} == {State.SUCCEEDED}
    await appliance.rig.cut()
    await appliance.pass_time(2 * MINUTE)
    assert len(appliance.world.starts) == 2, "the site has forgotten it"
    assert (cron_job.id in appliance.site.store.shelf.cron_jobs) == (change == "suspend")


async def test_a_start_whose_place_was_taken_meanwhile_queues_again(appliance: Appliance) -> None:
    assert appliance.control is not None
    await given_to(appliance, wanted("large", cpus=8000))
    engine = await appliance.rig.fake.engine()
    engine.default = Behaviour(lasts_s=80)
    await appliance.pass_time(FIRST - 15 - appliance.rig.clock.now())
    await appliance.rig.cut()
    await appliance.pass_time(2)  # the control plane does not show the outage yet
    late = (await appliance.control.workloads.submit(ANN, job("act", name="late", cpus_milli=4000))).workloads[0]
    await appliance.pass_time(18)
    assert appliance.site.there(late).state is State.STARTING
    await appliance.rig.connect()
    await until(lambda: appliance.site.there(late).state is State.HELD)
    (run,) = appliance.runs()
    after = appliance.site.there(late)
    assert (after.losses, run.state) == (0, State.RUNNING)
    assert after.not_before is not None
    assert after.attempt is not None
    assert after.attempt.reason == TakenByCronRun(node="node-1", workload_id=run.id)


async def test_files_of_a_cron_job_are_on_the_site_before_its_runs(appliance: Appliance, tmp_path: Path) -> None:
    assert appliance.control is not None
    cron_job = await given_to(appliance, wanted())
    files = tmp_path / "files.tar.gz"
    files.write_bytes(b"the files of a job")
    kept = appliance.control.cron_sites._made(appliance.site.store.shelf.cron_jobs[cron_job.id], SITE)
    assert kept is not None
    assert appliance.rig._remote is not None
    with_files = replace(kept, version="with files", start=replace(kept.start, bundle_path=str(files)))
    await appliance.rig._remote.cron_site.keep(with_files)
    await appliance.rig.cut()
    files.unlink()
    await appliance.pass_time(MINUTE)
    request = appliance.world.runs[f"{run_id(cron_job.id, FIRST)}-1"].request
    assert request.bundle_path is not None
    assert Path(request.bundle_path).read_bytes() == b"the files of a job"
    assert dict(request.variables)["COMMONAGE_WORKLOAD_ID"] == run_id(cron_job.id, FIRST)


async def test_an_agent_of_the_protocol_before_gets_no_cron_jobs(appliance: Appliance) -> None:
    await given_to(appliance, wanted())
    await appliance.rig.cut()
    appliance.rig.protocol = CRON_PROTOCOL - 1
    await appliance.rig.connect()
    await appliance.pass_time(MINUTE)
    await appliance.settled()
    assert len(due(appliance)) >= 1
    assert [one.site for one in appliance.site.store.shelf.cron_jobs.values()] == [None]
    assert appliance.rig.agent is not None
    assert appliance.rig.agent._cron_jobs._jobs == {}


async def test_a_site_speaks_about_its_own_cron_jobs_only(appliance: Appliance) -> None:
    assert appliance.control is not None
    cron_jobs = appliance.control.cron_jobs
    cron_job = await given_to(appliance, wanted())
    now, first = appliance.rig.clock.now(), run_id(cron_job.id, FIRST)
    good = SiteRun(cron_job.id, FIRST, now, make.allocation(f"{first}-1", site=SITE, node="node-1"))
    assert good.allocation is not None
    early = FIRST - 10 * MINUTE
    of_early = replace(good.allocation, attempt_id=f"{run_id(cron_job.id, early)}-1")
    for site, bad in (
        ("other", good),
        (SITE, replace(good, cron_job="c-unknown")),
        (SITE, replace(good, due_at=FIRST + 1)),
        (SITE, replace(good, due_at=FIRST + 24 * 60 * MINUTE)),
        (SITE, replace(good, allocation=replace(good.allocation, attempt_id=f"{first}-2"))),
        (SITE, replace(good, allocation=replace(good.allocation, node="foreign"))),
        (SITE, replace(good, allocation=replace(good.allocation, cpus_milli=10**9))),
        (SITE, replace(good, allocation=replace(good.allocation, shares=(make.share(),)))),
        (SITE, replace(good, allocation=replace(good.allocation, cpus_milli=500))),
        (SITE, replace(good, due_at=early, allocation=of_early)),
    ):
        assert await cron_jobs.adopt(site, bad) is None
    assert appliance.runs() == []
    for _ in range(2):
        assert await cron_jobs.adopt(SITE, good) == f"{first}-1"
    assert [one.id for one in appliance.runs()] == [first]


async def test_run_of_a_site_with_a_wrong_clock_counts_from_an_hour_before_it_was_due(appliance: Appliance) -> None:
    assert appliance.control is not None
    cron_job = await given_to(appliance, wanted())
    name = f"{run_id(cron_job.id, FIRST)}-1"
    given = replace(make.allocation(name, site=SITE, node="node-1"), at=NOW - 1e8)
    assert await appliance.control.cron_jobs.adopt(SITE, SiteRun(cron_job.id, FIRST, NOW - 1e8, given)) == name
    (adopted,) = appliance.runs()
    assert adopted.attempt is not None
    assert adopted.attempt.allocation.at == FIRST - 3600


async def test_a_site_gives_a_run_no_gpu_that_it_does_not_request(appliance: Appliance) -> None:
    assert appliance.control is not None
    cron_job = await given_to(appliance, wanted())
    device, live_state = make.device(), appliance.control.live_state
    (node,) = [one for one in live_state.nodes.values() if one.key == (SITE, "node-1")]
    live_state.put_nodes([replace(node, report=replace(node.report, devices=(device,)))])
    name = f"{run_id(cron_job.id, FIRST)}-1"
    given = make.allocation(name, site=SITE, node="node-1", shares=(make.share(device),))
    await appliance.control.cron_jobs.adopt(SITE, SiteRun(cron_job.id, FIRST, appliance.rig.clock.now(), given))
    assert appliance.runs() == []


async def test_number_of_live_runs_that_a_site_starts_is_limited(
    appliance: Appliance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commonage.control.workloads.cron_jobs.MAX_LIVE_RUNS", 2)
    assert appliance.control is not None
    cron_job = await given_to(appliance, wanted())
    now = appliance.rig.clock.now()
    for number in range(4):
        due_at = FIRST + number * MINUTE
        name = f"{run_id(cron_job.id, due_at)}-1"
        run = SiteRun(cron_job.id, due_at, now, make.allocation(name, site=SITE, node="node-1"))
        await appliance.control.cron_jobs.adopt(SITE, run)
    assert len(appliance.runs()) == 2


# --- a real agent, real processes and a line that breaks --------------------------------------------------------------


def _has_decided(agent: SiteAgent, number: int) -> bool:
    return len(agent._cron_jobs._runs) >= number


async def test_two_due_times_of_a_broken_line_run_as_processes_and_show_their_logs(tmp_path: Path) -> None:
    async with real_appliance(tmp_path) as real:
        await early_in_a_minute()
        shelf = real.site.store.shelf
        command = ("/bin/sh", "-c", 'echo "run $COMMONAGE_WORKLOAD_ID of $GREETING"')
        fields = {"cpus_milli": 100, "memory_mib": 64, "variables": (("GREETING", "spring"),)}
        new = NewCronJob(job(*command, name="real", **fields), CronRule("* * * * *", overlap=Overlap.ALLOW))
        made = await real.control.cron_jobs.create(ANN, new)
        await until(lambda: real.agent._cron_jobs._jobs and not real.control.cron_jobs._claiming)
        begun = {one.id for one in real.site.all()}  # a minute may have begun meanwhile

        real.proxy.faults = Faults(refuses=True)
        real.proxy.cut()
        await until(lambda: real.agent._connection is None)
        cut_at = made.rule.newest(0.0, real.clock.now()) or 0.0
        for number in (1, 2):
            real.set_clock(cut_at + number * MINUTE + 1)
            await until(partial(_has_decided, real.agent, number))
            await until(lambda: real.agent._attempts.live() == {})
        assert {one.id for one in real.site.all()} == begun, "the control plane fires nothing meanwhile"

        real.proxy.faults = Faults()
        ids = [run_id(made.id, cut_at + number * MINUTE) for number in (1, 2)]
        await until(lambda: [shelf.workloads[one].state for one in ids if one in shelf.workloads] == 2 * [DONE])
        for one in ids:
            assert (shelf.workloads[one].attempts, shelf.workloads[one].spec.cron_job) == (1, made.id)
            assert [line.text async for line in real.remote.logs(f"{one}-1")] == [f"run {one} of spring"]
        assert set(Counter(one.spec.due_at for one in real.site.all()).values()) == {1}
        by_site = [one.workload_id for one in shelf.events if isinstance(one.reason, StartedBySite)]
        assert set(by_site) == set(ids)
        assert len(by_site) == 2


LIFE = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from([1.0, 9.0, 31.0, 95.0])),
    st.tuples(st.sampled_from(["cut", "connect", "kill agent", "kill control", "suspend", "resume"])),
)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
)
@given(st.lists(LIFE, max_size=12))
def test_every_due_time_is_decided_once_over_any_cuts_and_restarts(life: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_live(Path(folder), life))


async def _live(folder: Path, life: list[tuple[Any, ...]]) -> None:
    appliance = Appliance(folder)
    await appliance.begin_agent(Behaviour(lasts_s=15))
    control = await appliance.begin_control()
    await appliance.rig.connect()
    began = appliance.rig.clock.now()
    made = [await control.cron_jobs.create(SPAWNER, wanted(str(overlap), overlap=overlap)) for overlap in Overlap]
    linked = True
    for what, *arguments in life:
        if what == "advance":
            await appliance.pass_time(*arguments)
        elif what == "cut":
            await appliance.rig.cut()
            linked = False
        elif what == "connect" and not linked:
            await appliance.rig.connect()
            linked = True
        elif what == "kill agent":
            await appliance.rig.stop_agent()
            await appliance.begin_agent(Behaviour(lasts_s=15))
            linked = False
        elif what == "kill control":
            await appliance.kill_control()
            control = await appliance.begin_control()
            linked = False
        elif what in ("suspend", "resume"):
            await getattr(control.cron_jobs, what)(SPAWNER, made[0].id)
    if not linked:
        await appliance.rig.connect()
    await appliance.pass_time(70)
    now = appliance.rig.clock.now()
    await appliance.pass_time((now // MINUTE + 1) * MINUTE + 25 - now)  # far from the next due time
    await appliance.settled()
    shelf, steady = appliance.site.store.shelf.cron_jobs, {one.id for one in made[1:]}
    last = appliance.rig.clock.now() // MINUTE * MINUTE
    await until(lambda: all(shelf[one].decided_until == last for one in steady), "nothing is left undecided")
    ended = appliance.rig.clock.now()
    await appliance.kill_control()
    await appliance.rig.stop_agent()
    _check(appliance, began, ended, steady)


def _check(appliance: Appliance, began: float, ended: float, steady: set[str]) -> None:
    """`steady` are the cron jobs that were never suspended."""
    shelf = appliance.site.store.shelf
    assert set(appliance.world.starts.values()) <= {1}, "each attempt starts once"
    known = {one.attempt.id for one in appliance.runs() if one.attempt is not None}
    succeeded = {one.attempt.id for one in appliance.runs() if one.attempt and one.state is State.SUCCEEDED}
    assert succeeded <= set(appliance.world.starts) <= known, "what started is in the history"
    assert {one.state for one in appliance.runs()} <= {State.SUCCEEDED, State.STOPPED, State.RUNNING, State.STARTING}
    for cron_job in shelf.cron_jobs.values():
        of_it = [one for one in appliance.runs() if one.spec.cron_job == cron_job.id]
        times = Counter(one.spec.due_at for one in of_it)
        assert set(times.values()) <= {1}, "a time runs once"
        refused = [one for one in told(appliance, CronRunRefused) if one.id == cron_job.id]
        assert not {one.due_at for one in refused} & set(times), "a time either runs or is refused"
        if cron_job.id in steady:
            assert cron_job.decided_until == ended // MINUTE * MINUTE, "nothing is left undecided"
            missed = [one for one in told(appliance, CronRunsMissed) if one.id == cron_job.id]
            count = len(times) + len(refused) + sum(one.missed for one in (*refused, *missed))
            assert count == ended // MINUTE - began // MINUTE
