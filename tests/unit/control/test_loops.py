"""Loops one by one: what they do when a part they need is away, and what they measure."""

import asyncio

import pytest
from tests.unit.control.world import ANN, Site, job, submit

from commonage.control.control import Control
from commonage.control.loops.timers import Timers, Verdict, judge
from commonage.control.state.feed import Feed
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.domain.errors import Unavailable
from commonage.domain.iterations import Iterations
from commonage.domain.lifecycle import StopRequested, Trigger
from commonage.domain.node_usage import NodeUsage
from commonage.domain.nodes import NodeState
from commonage.domain.reasons.attempts import PreparingEnvironment
from commonage.domain.reasons.waiting import Other
from commonage.domain.requests import parse_gpus
from commonage.domain.workloads import Condition, Dependency, State, Workload
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.ports.store import Batch
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour
from commonage.testing.factories import node_key
from commonage.testing.fakes.clock import FakeClock
from commonage.testing.fakes.store import MemoryStore

pytestmark = pytest.mark.anyio


async def test_a_dependent_is_looked_at_again_when_the_store_could_not_answer() -> None:
    store, live_state, clock = MemoryStore(), LiveState(), FakeClock()
    await store.open()
    timers = timers_of(store, live_state, clock)
    allocated = factories.workload(State.HELD, depends_on=(Dependency("gone", Condition.AFTER_ANY),))
    live_state.load([allocated], [])
    timers.changed(allocated)
    store.trouble = Unavailable("the database is away")
    with pytest.raises(Unavailable):
        await timers.tick()
    store.trouble = None
    await timers.tick()
    assert timers._writer.waiting == 1


class CountingStore(MemoryStore):
    """Counts how often a workload is read; each time takes `takes_s` of the clock."""

    def __init__(self, clock: FakeClock, takes_s: float = 0.0) -> None:
        super().__init__()
        self.read = 0
        self._clock, self._takes_s = clock, takes_s

    async def workload(self, workload_id: str) -> Workload:
        self.read += 1
        await self._clock.advance(self._takes_s)
        return await super().workload(workload_id)


def timers_of(store: MemoryStore, live_state: LiveState, clock: FakeClock) -> Timers:
    return Timers(store, live_state, Writer(store, live_state, Feed(), clock), clock, 60, lambda _environment: None)


async def test_an_ended_dependency_is_read_once_however_many_workloads_name_it() -> None:
    clock, live_state = FakeClock(), LiveState()
    store = CountingStore(clock)
    await store.open()
    ended = factories.workload(State.SUCCEEDED)
    await store.commit(Batch(inserts=[ended]))
    conditions = [Condition.AFTER_OK, Condition.AFTER_ANY] * 50
    spec = factories.spec(depends_on=tuple(Dependency(ended.id, condition) for condition in conditions))
    live_state.load([factories.workload(State.HELD, spec_=spec) for _ in range(200)], [])
    timers = timers_of(store, live_state, clock)
    for _ in range(2):  # the second time as after a change of the catalogue
        timers.conditions_changed()
        await timers.tick()
    assert timers._writer.waiting == 400
    assert store.read == 2


async def test_time_limits_do_not_wait_until_all_dependencies_are_checked() -> None:
    clock, live_state = FakeClock(factories.NOW), LiveState()
    store = CountingStore(clock, takes_s=1.0)
    await store.open()
    held = [factories.workload(State.HELD, depends_on=(Dependency(f"gone-{each}"),)) for each in range(5)]
    running = factories.workload(State.RUNNING, time_limit_s=1.5, attempt=factories.attempt(started_at=factories.NOW))
    live_state.load([*held, running], [])
    timers = timers_of(store, live_state, clock)
    timers.conditions_changed()
    stopped = list[str]()
    note = timers._writer.note

    def noted(workload_id: str, trigger: Trigger) -> asyncio.Future[Workload | None]:
        if isinstance(trigger, StopRequested):
            stopped.append(workload_id)
        return note(workload_id, trigger)

    timers._writer.note = noted  # type: ignore[method-assign]  # records the stops and their order
    for _ in held:
        await timers.tick()
    first, second, *others = (one.id for one in held)
    assert list(dict.fromkeys(stopped)) == [first, second, running.id, *others]


class Ends:
    """A loop that ends without an error."""

    def __init__(self, waits_for: str) -> None:
        self._waits_for = waits_for
        self.iterations = Iterations("ends", FakeClock().now)

    async def run(self) -> None:
        if self._waits_for:
            other = asyncio.create_task(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(other.cancel)
            await other


@pytest.mark.parametrize(
    ("waits_for", "why"), [("", "ended"), ("another task", "waited for a task that was cancelled")]
)
async def test_loop_that_ends_ends_the_control_plane(site: Site, waits_for: str, why: str) -> None:
    """A task group would leave the others running: a control plane without one of its loops."""
    await site.store.open()
    control = site.control()
    await control.open()
    try:
        with pytest.raises(ExceptionGroup) as failed:
            async with asyncio.timeout(10):
                await control.run(Ends(waits_for))
        (error,) = failed.value.exceptions
        assert isinstance(error, RuntimeError) and why in str(error)
    finally:
        await control.close()


def met(verdict: Verdict) -> bool | None:
    """True, False for never, None for not yet."""
    return None if isinstance(verdict, Other) else verdict is None


@pytest.mark.parametrize(
    ("state", "attempts", "after", "ok", "not_ok", "any_"),
    [
        (State.HELD, 0, None, None, None, None),
        (State.QUEUED, 0, None, None, None, None),
        (State.STARTING, 1, None, None, None, None),
        (State.RUNNING, 1, True, None, None, None),
        (State.SUCCEEDED, 1, True, True, False, True),
        (State.FAILED, 1, True, False, True, True),
        (State.STOPPED, 0, True, False, True, True),
        (State.TIMED_OUT, 1, True, False, True, True),
        (State.LOST, 1, True, False, True, True),
    ],
)
def test_when_a_dependency_is_met(
    state: State, attempts: int, after: bool | None, ok: bool | None, not_ok: bool | None, any_: bool | None
) -> None:
    other = factories.workload(state) if attempts else factories.workload(state, attempt=None)
    verdicts = {condition: met(judge(condition, other)) for condition in Condition}
    assert verdicts == {
        Condition.AFTER_START: after,
        Condition.AFTER_OK: ok,
        Condition.AFTER_NOT_OK: not_ok,
        Condition.AFTER_ANY: any_,
    }


async def test_the_store_away_for_minutes_while_work_runs_and_ends(site: Site) -> None:
    site.engine.behave(Behaviour(lasts_s=30), name="ends")
    async with site.open() as control:
        ends = await submit(control, job(name="ends"))
        limited = await submit(control, job(name="limited", time_limit_s=40))
        await site.clock.advance(1)
        site.store.trouble = Unavailable("the database is away")
        await site.clock.advance(20)
        with pytest.raises(Unavailable):
            await control.workloads.submit(ANN, job(key="asks the store first"))
        await site.clock.advance(100)
        assert control.writer.waiting < 100, "loops do not pile up what they said already"
        assert site.engine.world.runs[f"{ends.id}-1"].forgotten is False
        site.store.trouble = None
        await site.clock.advance(10)
        assert site.there(ends).state is State.SUCCEEDED
        assert site.there(limited).state is State.TIMED_OUT
        assert (await control.workloads.submit(ANN, job())).created


async def test_a_node_that_reports_while_the_store_is_away_is_written_later(site: Site, control: Control) -> None:
    site.store.trouble = Unavailable("the database is away")
    site.engine.add_node(factories.node("new-1", 1).report)
    await site.clock.advance(20)
    site.store.trouble = None
    await site.clock.advance(10)
    assert control.live_state.nodes[node_key("new-1")].state is NodeState.READY
    assert node_key("new-1") in site.store.shelf.nodes


async def test_samples_of_attempts_devices_and_nodes(site: Site) -> None:
    site.engine.default = Behaviour(lasts_s=None, holds_mib=300)
    async with site.open() as control:
        one = await submit(control, job(gpu=parse_gpus("6GiB")))
        await site.clock.advance(1)
        attempt = f"{one.id}-1"
        used = ProcessMemory(None, 5000, attempt_id=attempt)
        site.devices.measured = [DeviceSample("GPU-gpu-1-0", 5100, 0.5, power_w=100.0, processes=(used,))]
        site.metrics.samples.clear()
        await control.sampling.tick()
        await site.clock.advance(2)
        await control.sampling.tick()
        newest = {(sample.subject, sample.metric): sample.value for sample in site.metrics.samples}
    assert (
        newest.items()
        >= {
            (f"attempt:{attempt}", "memory_mib"): 300,
            (f"attempt:{attempt}", "gpu_memory_mib"): 5000,
            (f"attempt:{attempt}", "gpu_utilisation"): 0.5,
            ("device:local/GPU-gpu-1-0", "gpu_memory_mib"): 5100,
            ("device:local/GPU-gpu-1-0", "power_w"): 100.0,
            ("node:local/gpu-1", "allocated_cpu_cores"): 1.0,
            ("node:local/gpu-1", "allocated_memory_mib"): 1024,
            ("platform", "running"): 1,
            ("platform", "queue_length"): 0,
        }.items()
    )
    assert newest[f"attempt:{attempt}", "cpu_cores"] == pytest.approx(1.0)
    assert ("device:local/GPU-gpu-1-0", "temperature_c") not in newest, "what is not measured is not made up"
    assert [allocation.attempt_id for allocation in site.devices.allocated] == [attempt]


async def test_simulated_devices_show_use_from_the_start_of_the_program_on(site: Site) -> None:
    site.engine.default = Behaviour(
        lasts_s=None, start_delay_s=60, start_reason=PreparingEnvironment(environment="PyTorch", step="")
    )
    async with site.open() as control:
        one = await submit(control, job(gpu=parse_gpus("6GiB")))
        await site.clock.advance(30)
        await control.sampling.tick()
        assert site.there(one).state is State.STARTING
        assert list(site.devices.allocated) == []
        await site.clock.advance(40)
        await control.sampling.tick()
        (allocated,) = site.devices.allocated
        attempt = site.there(one).attempt
        assert attempt is not None
        assert (allocated.attempt_id, allocated.at) == (attempt.id, attempt.started_at)


async def test_old_samples_are_tidied_every_minute(site: Site) -> None:
    async with site.open() as control:
        for _ in range(13):
            await site.clock.advance(10)
            await control.sampling.tick()
    assert len(site.metrics.tidied) == pytest.approx(3, abs=1)


def test_positions_in_a_long_queue() -> None:
    live_state = LiveState()
    queued = [factories.workload(State.QUEUED, priority=number % 3) for number in range(3000)]
    for one in reversed(queued):
        live_state.put(one)
    expected = sorted(queued, key=lambda one: (-one.spec.priority, one.submitted_at, one.id))
    for place, one in enumerate(expected, 1):
        assert live_state.position(one.id, factories.NOW) == place
    assert live_state.position("nobody", factories.NOW) is None
    live_state.put(factories.changed(expected[0], state=State.STOPPED))
    assert live_state.position(expected[1].id, factories.NOW) == 1
    assert live_state.get(expected[0].id) is None
    assert live_state.counts() == {State.QUEUED: 2999}


async def test_measured_use_of_a_node_is_sampled_and_makes_no_write(site: Site, control: Control) -> None:
    await site.clock.advance(10)
    written = control.writer.commits
    for cores in (1.0, 2.5):
        usage = NodeUsage(cores, 2048, network_sent_bytes_per_s=9.0)
        site.engine.add_node(factories.node("gpu-1", 1, usage=usage).report)
        await site.clock.advance(10)
    assert control.writer.commits == written
    now = site.clock.now()
    [*_, point] = await control.metrics.query("cpu_cores", "node:local/gpu-1", since=now - 60, until=now + 1)
    assert point.mean == 2.5
    assert await control.metrics.query("temperature_c", "node:local/gpu-1", since=now - 60, until=now + 1) == []
