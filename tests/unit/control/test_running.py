"""From submit to the end, with everything that can happen between."""

import asyncio

import pytest
from tests.unit.control.world import ANN, BOB, FOREVER, ROOT, SPAWNER, Site, job, submit

from commonage.control.control import Control
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import Conflict, EngineFailure, NotFound
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import NodeState
from commonage.domain.reasons import Reason, attempts, waiting
from commonage.domain.reasons.attempts import StartFailed
from commonage.domain.reasons.nodes import DiskNearlyFull, DrainedBy, NotReporting
from commonage.domain.requests import parse_gpus
from commonage.domain.statuses import StartRequest
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.workloads import Condition, Dependency, EventKind, Kind, RetryPolicy, State, StopCause
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour
from commonage.testing.factories import node_key
from commonage.testing.fakes.clock import settle

pytestmark = pytest.mark.anyio
INSTALLING = attempts.PreparingEnvironment(environment="base", step="installing torch")


async def test_a_job_runs_and_ends(site: Site) -> None:
    site.engine.behave(Behaviour(lasts_s=5))
    async with site.open() as control:
        one = await submit(control)
        assert one.state is State.QUEUED
        await site.clock.advance(1)
        assert site.there(one).state is State.RUNNING
        await site.clock.advance(5)
    ended = site.there(one)
    assert (ended.state, ended.reason) == (State.SUCCEEDED, attempts.Completed())
    assert ended.attempt is not None
    assert ended.attempt.ended_at == ended.attempt.started_at + 5  # type: ignore[operator]
    assert site.world.starts == {f"{one.id}-1": 1}
    assert site.world.runs[f"{one.id}-1"].forgotten, "its end is written, the engine need not remember it"
    kinds = [event.kind for event in site.store.shelf.events if event.workload_id == one.id]
    assert kinds == [EventKind.SUBMITTED, EventKind.STARTING, EventKind.RUNNING, EventKind.ENDED]
    assert [event.seq for event in site.store.shelf.events] == sorted({one.seq for one in site.store.shelf.events})


async def test_it_starts_at_once_when_the_nodes_are_idle(site: Site, control: Control) -> None:
    one = await submit(control)
    await site.clock.advance(0.02)
    assert site.there(one).state is State.RUNNING


async def test_the_order_holds_what_the_workload_must_know(site: Site) -> None:
    async with site.open() as control:
        ask = job("sh", array_size=2, gpu=parse_gpus("6GiB"), variables=(("A", "1"),), secrets=(("S", "2"),))
        await control.workloads.submit(ANN, ask)
        await site.clock.advance(1)
    second = site.all()[1]
    order = site.world.runs[f"{second.id}-1"].request
    variables = dict(order.variables)
    assert variables.items() >= {
        "COMMONAGE_WORKLOAD_ID": second.id, "COMMONAGE_ATTEMPT": "1", "COMMONAGE_CPUS": "1",
        "COMMONAGE_MEMORY_MIB": "1024", "COMMONAGE_GPU_MEMORY_MIB": "6144", "COMMONAGE_ARRAY_INDEX": "1",
        "COMMONAGE_ARRAY_SIZE": "2", "COMMONAGE_ARRAY_ID": site.all()[0].id, "A": "1",
    }.items()  # fmt: skip
    assert order.secrets == (("S", "2"),)
    assert (order.kind, order.wants_port, order.owner) == (Kind.JOB, False, "ann")


async def test_failure_and_retry_after_a_pause(site: Site) -> None:
    site.engine.behave(Behaviour(exit_code=3), times=2)
    site.engine.default = Behaviour(lasts_s=1)
    async with site.open() as control:
        one = await submit(control, job(retry=RetryPolicy(3, 10.0)))
        await site.clock.advance(1)
        held = site.there(one)
        assert held.state is State.HELD
        assert held.reason == waiting.RetryScheduled(
            retry=1, retries=3, pause_s=10.0, attempt=1, state="failed", cause=attempts.ExitCode(exit_code=3)
        )
        await site.clock.advance(8)
        assert site.there(one).state is State.HELD
        await site.clock.advance(2)
        scheduled = site.there(one).reason
        assert isinstance(scheduled, waiting.RetryScheduled)
        assert (scheduled.retry, scheduled.pause_s) == (2, 20.0)
        await site.clock.advance(23)
    assert (site.there(one).state, site.there(one).attempts) == (State.SUCCEEDED, 3)
    assert set(site.world.starts.values()) == {1}


async def test_time_limit_with_a_warning(site: Site) -> None:
    async with site.open() as control:
        one = await submit(control, job(time_limit_s=100))
        await site.clock.advance(79)
        assert not site.there(one).warned
        await site.clock.advance(3)
        assert site.there(one).warned
        await site.clock.advance(20)
    ended = site.there(one)
    assert (ended.state, ended.reason) == (State.TIMED_OUT, attempts.TimeLimitReached(limit_s=100))
    warnings = [event for event in site.store.shelf.events if event.kind is EventKind.WARNING]
    assert [event.workload_id for event in warnings] == [one.id]


async def test_time_that_its_environment_takes_is_not_counted(site: Site) -> None:
    site.engine.behave(Behaviour(start_delay_s=300, start_reason=INSTALLING, lasts_s=50))
    async with site.open() as control:
        one = await submit(control, job(time_limit_s=60))
        await site.clock.advance(299)
        assert (site.there(one).state, site.there(one).reason) == (State.STARTING, INSTALLING)
        await site.clock.advance(60)
    assert site.there(one).state is State.SUCCEEDED


@pytest.mark.parametrize("wait_s", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("delay_s", [0.0, 10.0])
async def test_stop_whenever_it_comes(site: Site, wait_s: float, delay_s: float) -> None:
    site.engine.default = Behaviour(lasts_s=None, start_delay_s=delay_s)
    async with site.open() as control:
        one = await submit(control)
        await site.clock.advance(wait_s)
        await control.workloads.stop(ANN, one.id, "no longer needed")
        await control.workloads.stop(ANN, one.id)
        await site.clock.advance(20)
        with pytest.raises(Conflict, match="has already ended: stopped"):
            await control.workloads.stop(ANN, one.id)
    stopped = site.there(one)
    assert (stopped.state, stopped.reason) == (State.STOPPED, attempts.StoppedBy(by="ann", comment="no longer needed"))
    assert all(run.phase(site.clock.now()) == "ended" for run in site.world.runs.values())


async def test_stop_one_that_is_queued_and_one_that_is_held(site: Site, control: Control) -> None:
    runs = await submit(control, job(cpus_milli=8000, gpu=parse_gpus("1")))
    waits = await submit(control, job(cpus_milli=8000, gpu=parse_gpus("1")))
    held = await submit(control, job(depends_on=(Dependency(runs.id),)))
    await site.clock.advance(1)
    assert [site.there(one).state for one in (runs, waits, held)] == [State.RUNNING, State.QUEUED, State.HELD]
    for one in (waits, held):
        assert (await control.workloads.stop(ROOT, one.id)).state is State.STOPPED
    assert site.there(held).stop.cause is StopCause.ADMIN  # type: ignore[union-attr]


async def test_one_that_ignores_the_stop_is_ended_by_force(site: Site) -> None:
    site.engine.default = Behaviour(lasts_s=None, ignores_term=True)
    async with site.open() as control:
        one = await submit(control, job(grace_s=30))
        await site.clock.advance(1)
        await control.workloads.stop(ANN, one.id)
        await site.clock.advance(28)
        assert site.there(one).state is State.RUNNING
        assert site.there(one).reason == attempts.Stopping(cause=attempts.StoppedBy(by="ann"))
        await site.clock.advance(3)
    assert site.there(one).state is State.STOPPED


@pytest.mark.parametrize(
    ("condition", "behaviour", "expected"),
    [
        (Condition.AFTER_OK, Behaviour(lasts_s=5), State.SUCCEEDED),
        (Condition.AFTER_OK, Behaviour(lasts_s=5, exit_code=1), State.STOPPED),
        (Condition.AFTER_NOT_OK, Behaviour(lasts_s=5, exit_code=1), State.SUCCEEDED),
        (Condition.AFTER_NOT_OK, Behaviour(lasts_s=5), State.STOPPED),
        (Condition.AFTER_ANY, Behaviour(lasts_s=5, exit_code=1), State.SUCCEEDED),
        (Condition.AFTER_START, FOREVER, State.SUCCEEDED),
    ],
)
async def test_dependencies(site: Site, condition: Condition, behaviour: Behaviour, expected: State) -> None:
    site.engine.behave(behaviour, name="first")
    site.engine.default = Behaviour()
    async with site.open() as control:
        first = await submit(control, job(name="first"))
        second = await submit(control, job(name="second", depends_on=(Dependency(first.id, condition),)))
        third = await submit(control, job(name="third", depends_on=(Dependency(second.id),)))
        assert second.state is State.HELD
        assert second.reason == waiting.DependencyNotMet(others=(waiting.Other(first.id, "first", "queued"),))
        await site.clock.advance(10)
    assert site.there(second).state is expected
    if expected is State.STOPPED:
        assert site.there(second).reason == attempts.DependencyFailed(
            workload_id=first.id, name="first", condition=condition.value, state=site.there(first).state.value
        )
    assert site.there(third).state is expected, "what can never be met breaks the whole chain"


async def test_what_waits_for_others_or_for_a_pause_goes_on_after_a_restart(site: Site) -> None:
    site.default = Behaviour(exit_code=1)
    site.engine = site.new_engine()
    async with site.open() as control:
        first = await submit(control, job(retry=RetryPolicy(1, 30.0)))
        second = await submit(control, job(depends_on=(Dependency(first.id, Condition.AFTER_NOT_OK),)))
        await site.clock.advance(1)
        assert [site.there(one).state for one in (first, second)] == [State.HELD, State.HELD]
    async with site.open():
        await site.clock.advance(40)
        assert site.there(first).attempts == 2
    assert [site.there(one).state for one in (first, second)] == [State.FAILED, State.FAILED]


async def test_a_dependency_that_ended_while_nobody_was_there(site: Site) -> None:
    async with site.open() as control:
        first = await submit(control)
        second = await submit(control, job(depends_on=(Dependency(first.id, Condition.AFTER_ANY),)))
        await site.clock.advance(1)
    ended = factories.changed(site.there(first), state=State.STOPPED)
    site.store.shelf.workloads[first.id] = ended
    async with site.open():
        await site.clock.advance(1)
        assert site.there(second).state is State.RUNNING


async def test_a_dependency_that_is_met_or_broken_at_submit(site: Site) -> None:
    site.engine.default = Behaviour()
    async with site.open() as control:
        first = await submit(control)
        await site.clock.advance(1)
        assert (await submit(control, job(depends_on=(Dependency(first.id),)))).state is State.QUEUED
        with pytest.raises(Conflict) as error:
            await submit(control, job(depends_on=(Dependency(first.id, Condition.AFTER_NOT_OK),)))
        assert error.value.problem_code == "dependency-broken"


async def test_waiting_for_an_array_of_others(site: Site) -> None:
    site.engine.default = Behaviour(lasts_s=2)
    async with site.open() as control:
        members = (await control.workloads.submit(ANN, job(array_size=20))).workloads
        last = await submit(control, job(depends_on=tuple(Dependency(one.id) for one in members)))
        await site.clock.advance(20)
    assert site.there(last).state is State.SUCCEEDED
    assert site.there(last).attempt.allocation.at >= max(site.there(one).since for one in members)  # type: ignore[union-attr]


NO_INTERPRETER = Behaviour(refuses="there is no such interpreter")
BUSY = Behaviour(refuses="busy", refusal_retryable=True)


@pytest.mark.parametrize(
    ("behaviour", "refusals", "state", "reason"),
    [
        (NO_INTERPRETER, None, State.FAILED, attempts.StartFailed(error="there is no such interpreter")),
        (BUSY, 2, State.RUNNING, attempts.Running(node="cpu-1")),
        (BUSY, None, State.FAILED, attempts.StartFailed(error="busy")),
    ],
)
async def test_refused_start_is_retried_only_if_retryable(
    site: Site, behaviour: Behaviour, refusals: int | None, state: State, reason: Reason
) -> None:
    site.engine.behave(behaviour, times=refusals)
    async with site.open() as control:
        one = await submit(control)
        await site.clock.advance(60)
    assert (site.there(one).state, site.there(one).reason, site.there(one).attempts) == (state, reason, 1)


async def test_the_log_has_the_engines_own_text_of_a_refused_start(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_order: StartRequest) -> None:
        raise EngineFailure("the Docker daemon refuses it", native="Docker: invalid mount config")

    monkeypatch.setattr(site.engine, "start", refuse)
    async with site.open() as control:
        one = await submit(control)
        await site.clock.advance(1)
    assert site.there(one).reason == StartFailed(error="the Docker daemon refuses it")
    assert "Docker: invalid mount config" in caplog.text


async def test_stop_while_its_start_is_tried_again(site: Site) -> None:
    site.engine.behave(BUSY)
    async with site.open() as control:
        one = await submit(control)
        await site.clock.advance(2)
        await control.workloads.stop(ANN, one.id)
        await site.clock.advance(30)
    assert site.there(one).state is State.STOPPED


async def test_an_attempt_that_vanishes_is_lost_and_tried_again(site: Site) -> None:
    async with site.open() as control:
        one = await submit(control, job(retry=RetryPolicy(1, 1.0), requeue=False))
        await site.clock.advance(1)
        site.engine.lose(f"{one.id}-1")
        await site.clock.advance(30)
        assert site.there(one).attempt.id == f"{one.id}-2"  # type: ignore[union-attr]
        site.engine.lose(f"{one.id}-2")
        await site.clock.advance(30)
    assert (site.there(one).state, site.there(one).reason) == (State.LOST, attempts.Disappeared())


async def test_engine_forgets_an_attempt_that_vanished(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[str] = []

    async def forget(attempt_id: str) -> None:
        forgotten.append(attempt_id)

    monkeypatch.setattr(site.engine, "forget", forget)
    async with site.open() as control:
        one = await submit(control, job(requeue=False))
        await site.clock.advance(1)
        site.engine.lose(f"{one.id}-1")
        await site.clock.advance(30)
    assert site.there(one).state is State.LOST
    assert forgotten == [f"{one.id}-1"]


async def test_an_attempt_that_was_started_and_is_never_seen_is_given_up(site: Site) -> None:
    site.engine.default = Behaviour(lasts_s=None, start_delay_s=1000)
    async with site.open() as control:
        one = await submit(control, job(requeue=False))
        await site.clock.advance(1)
        site.engine.lose(f"{one.id}-1")
        await site.clock.advance(60)
    assert site.there(one).state is State.LOST


async def test_a_stopped_one_that_vanishes_has_stopped(site: Site) -> None:
    site.engine.default = Behaviour(lasts_s=None, ignores_term=True)
    async with site.open() as control:
        one = await submit(control, job(grace_s=1000))
        await site.clock.advance(1)
        await control.workloads.stop(ANN, one.id)
        site.engine.lose(f"{one.id}-1")
        await site.clock.advance(20)
    assert site.there(one).state is State.STOPPED


async def test_a_lost_node(site: Site, control: Control) -> None:
    one = await submit(control, job(gpu=parse_gpus("1")))
    await site.clock.advance(1)
    site.engine.lose_node("gpu-1")
    await site.clock.advance(60)
    assert control.live_state.nodes[node_key("gpu-1")].state is NodeState.LOST
    assert isinstance(control.live_state.nodes[node_key("gpu-1")].reasons[0], NotReporting)
    assert site.there(one).state is State.QUEUED
    site.engine.add_node(factories.node("gpu-1", 1).report)
    await site.clock.advance(10)
    assert control.live_state.nodes[node_key("gpu-1")].state is NodeState.READY
    assert (site.there(one).state, site.there(one).attempts) == (State.RUNNING, 2)


async def test_draining_keeps_what_runs_and_takes_no_more(site: Site, control: Control) -> None:
    runs = await submit(control, job(gpu=parse_gpus("0.5")))
    await site.clock.advance(1)
    await control.nodes.drain(ROOT, node_key("gpu-1"), True)
    waits = await submit(control, job(gpu=parse_gpus("0.5")))
    await site.clock.advance(20)
    assert [site.there(one).state for one in (runs, waits)] == [State.RUNNING, State.QUEUED]
    reason = control.queries.details(site.there(waits)).reason
    assert isinstance(reason, waiting.NodeDraining)
    assert (reason.node, reason.by) == ("gpu-1", "root")
    await control.nodes.drain(ROOT, node_key("gpu-1"), False)
    await site.clock.advance(1)
    assert site.there(waits).state is State.RUNNING


async def test_a_stop_to_drain_survives_reports_restarts_and_the_loss_of_the_node(site: Site) -> None:
    async with site.open() as control:
        await control.nodes.drain(ROOT, node_key("gpu-1"), True)
        await site.clock.advance(11)
    async with site.open() as control:
        assert control.live_state.nodes[node_key("gpu-1")].state is NodeState.DRAINING
        site.engine.lose_node("gpu-1")
        await site.clock.advance(60)
        assert control.live_state.nodes[node_key("gpu-1")].state is NodeState.LOST
        site.engine.add_node(factories.node("gpu-1", 1).report)
        await site.clock.advance(10)
        assert control.live_state.nodes[node_key("gpu-1")].state is NodeState.DRAINING


async def test_a_lost_node_is_not_ready_because_somebody_stops_it(site: Site, control: Control) -> None:
    site.engine.lose_node("gpu-1")
    await site.clock.advance(60)
    assert (await control.nodes.drain(ROOT, node_key("gpu-1"), False)).state is NodeState.LOST


FULL = DiskNearlyFull(folders=("/data",), free_mib=0, min_mib=256)


async def test_a_node_with_a_fault_takes_no_work(site: Site, control: Control) -> None:
    site.engine.add_node(factories.node("gpu-1", 1, faults=(FULL,)).report)
    await site.clock.advance(10)
    node = control.live_state.nodes[node_key("gpu-1")]
    assert (node.state, node.reasons, node.drain) == (NodeState.FAULTY, (FULL,), False)
    await control.nodes.drain(ROOT, node_key("gpu-1"), False)
    assert control.live_state.nodes[node_key("gpu-1")].state is NodeState.FAULTY
    node = await control.nodes.drain(ROOT, node_key("gpu-1"), True)
    assert (node.state, node.reasons) == (NodeState.DRAINING, (DrainedBy(by="root"), FULL))
    await control.nodes.drain(ROOT, node_key("gpu-1"), False)
    site.engine.add_node(factories.node("gpu-1", 1).report)
    await site.clock.advance(10)
    assert control.live_state.nodes[node_key("gpu-1")].state is NodeState.READY


async def test_an_engine_that_does_not_answer_loses_nothing(site: Site) -> None:
    async with site.open() as control:
        one = await submit(control)
        await site.clock.advance(1)
        site.engine.outage = "the engine is away"
        await site.clock.advance(25)
        assert site.there(one).state is State.RUNNING
        site.engine.outage = None
        await site.clock.advance(10)
    assert site.there(one).state is State.RUNNING


async def test_what_runs_without_a_allocation_is_ended(site: Site) -> None:
    unattributed_process = factories.workload(State.QUEUED)
    async with site.open() as control:
        allocation = factories.allocation(f"{unattributed_process.id}-1", node="cpu-1")
        attempt = factories.attempt(unattributed_process.id, state=State.STARTING, allocation=allocation)
        starting = factories.workload(State.STARTING, id=unattributed_process.id, environment="base", attempt=attempt)
        order = control._start_requests.of(starting)
        await site.engine.start(order)
        await site.clock.advance(12)
    run = site.world.runs[f"{unattributed_process.id}-1"]
    assert run.forgotten


async def test_engine_is_told_what_the_owner_may_store() -> None:
    site = Site(rules=Rules((Tenant("lab", quota=Quota(per_user=Bounds(storage_mib=3072))),)))
    async with site.open() as control:
        allocation = factories.allocation("x-1", node="cpu-1")
        attempt = factories.attempt("x", state=State.STARTING, allocation=allocation)
        starting = factories.workload(State.STARTING, id="x", environment="base", attempt=attempt)
        assert control._start_requests.of(starting).home_mib == 3072


async def test_repeated_statuses_change_nothing(site: Site) -> None:
    site.engine.repeats = 3
    async with site.open() as control:
        one = await submit(control)
        await site.clock.advance(1)
        version, events = site.there(one).version, len(site.store.shelf.events)
        site.engine.repeat(f"{one.id}-1")
        await site.clock.advance(30)
        assert (site.there(one).version, len(site.store.shelf.events)) == (version, events)


async def test_standing_down_ends_sessions_and_returns_work(site: Site) -> None:
    async with site.open() as control:
        session = await submit(control, Submission(Kind.SESSION, owner="ann"), SPAWNER)
        service = await submit(control, Submission(Kind.SERVICE, ("serve",)), BOB)
        one = await submit(control)
        await site.clock.advance(1)
        assert set(site.states()) == {State.RUNNING}
        left = asyncio.create_task(control.stop_all(20))
        await site.clock.advance(5)
        assert await left == 0
        assert site.there(session).state is State.STOPPED
        assert [site.there(each).state for each in (service, one)] == [State.QUEUED, State.QUEUED]
        assert site.there(one).reason == waiting.Requeued(cause=attempts.ServerStopped())
    async with site.open():
        await site.clock.advance(1)
        assert [site.there(each).attempts for each in (service, one)] == [2, 2]


async def test_standing_down_says_how_many_still_run() -> None:
    site = Site()
    site.engine.default = Behaviour(lasts_s=None, ignores_term=True)
    async with site.open() as control:
        await submit(control, job(grace_s=100))
        await site.clock.advance(1)
        left = asyncio.create_task(control.stop_all(5))
        await site.clock.advance(6)
        assert await left == 1


LOOPS = {
    "session_restarts", "bundles", "drains", "nodes", "gangs", "writer", "prepulls", "reconcile", "reservations",
    "retention", "classes", "quota-notices", "offboardings", "cron_jobs", "cron_sites", "sample", "schedule", "timers",
    "watch", "node_pools", "idle", "services", "environment_builds", "tenants",
}  # fmt: skip


async def test_health_names_every_loop_with_its_last_turn(site: Site) -> None:
    async with site.open() as control:
        await site.clock.advance(60)
        for _ in range(50):  # samples of GPUs are taken in a thread
            await settle()
        health = {one.name: one for one in control.health()}
    assert set(health) == LOOPS
    assert not [one for one in health.values() if one.stuck]
    for name in ("nodes", "gangs", "reconcile", "schedule", "timers"):
        age_s = health[name].age_s
        assert age_s is not None
        assert 0 <= age_s <= 6, name


async def test_health_names_the_loops_of_engines(site: Site) -> None:
    iterations = Iterations("fake: clean up", site.clock.now)
    site.engine.loops = lambda: [iterations]  # type: ignore[method-assign]
    async with site.open() as control:
        iterations.begin()
        await site.clock.advance(61)
        health = {one.name: one for one in control.health()}
    assert set(health) == LOOPS | {"fake: clean up"}
    assert health["fake: clean up"].stuck


async def test_health_names_the_loop_whose_turn_does_not_end(site: Site) -> None:
    answers = asyncio.Event()

    async def late(_batch: object) -> None:
        await answers.wait()

    async with site.open() as control:
        site.store.commit = late  # type: ignore[method-assign]
        writing = asyncio.create_task(control.writer.write(nodes=list(control.live_state.nodes.values())))
        await site.clock.advance(61)
        assert "writer" in {one.name for one in control.health() if one.stuck}
        answers.set()
        await writing


async def test_a_loop_of_an_adapter_runs_with_the_others_and_its_error_ends_all(site: Site) -> None:
    broken = asyncio.Event()

    class Adapter:
        iterations = Iterations("adapter", site.clock.now)

        async def run(self) -> None:
            with self.iterations.rest():
                await broken.wait()
            raise ValueError("it broke")

    await site.store.open()
    control = site.control()
    await control.open()
    loops = asyncio.create_task(control.run(Adapter()))
    await site.clock.advance(1)
    assert "adapter" in {one.name for one in control.health()}
    broken.set()
    with pytest.raises(ExceptionGroup) as caught:
        await loops
    assert caught.group_contains(ValueError, match="it broke")
    await control.close()


async def test_logs_of_a_try_and_of_none(site: Site) -> None:
    site.engine.default = Behaviour(prints=("hello", "world"))
    async with site.open() as control:
        one = await submit(control)
        waits = await submit(control, job(gpu=parse_gpus("1"), depends_on=(Dependency(one.id),)))
        with pytest.raises(NotFound, match=r"NoSuchAttempt\(.*attempt=None"):
            await anext(control.queries.logs(ANN, waits.id))
        await site.clock.advance(1)
        assert [line.text async for line in control.queries.logs(ANN, one.id)] == ["hello", "world"]
        assert [line.text async for line in control.queries.logs(ANN, one.id, attempt=1, tail=1)] == ["world"]
        with pytest.raises(NotFound, match=r"NoSuchAttempt\(.*attempt=7"):
            await anext(control.queries.logs(ANN, one.id, attempt=7))


async def test_an_environment_that_left_the_catalogue(control: Control) -> None:
    with pytest.raises(EngineFailure, match="EnvironmentNotFound"):
        control._start_requests.of(factories.workload(State.STARTING, environment="gone"))
