"""Several sites under one control plane: the same node names, and sites that do not answer."""

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from tests.unit.control.world import FOREVER, Site, job, submit

from commonage.control.engines import Engines
from commonage.domain.errors import EngineFailure
from commonage.domain.lifecycle import StopRun
from commonage.domain.nodes import NodeKey, NodeReport, NodeState
from commonage.domain.requests import parse_gpus
from commonage.domain.statuses import Measurement, Phase, StartRequest, Status
from commonage.domain.workloads import State
from commonage.ports.engine import Engine
from commonage.testing import factories as make
from commonage.testing.fakes.clock import FakeClock, settle
from commonage.testing.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio
HERE, EAST = NodeKey("local", "gpu-1"), NodeKey("east", "gpu-1")


class Silent(FakeEngine):
    """A site that never answers."""

    async def nodes(self) -> Sequence[NodeReport]:
        await asyncio.Event().wait()
        return ()

    async def measure(self) -> Sequence[Measurement]:
        await asyncio.Event().wait()
        return ()

    async def statuses(self) -> Sequence[Status]:
        await asyncio.Event().wait()
        return ()


def east(site: Site, kind: type[FakeEngine] = FakeEngine) -> FakeEngine:
    return kind("east", [make.node("gpu-1", 1).report], site.clock, default=FOREVER)


@pytest.fixture
def site() -> Site:
    return Site([make.node("gpu-1", 1)])


async def test_sites_may_have_nodes_of_the_same_name(site: Site) -> None:
    async with site.open() as control:
        control.engines.add(east(site))
        await site.clock.advance(10)
        assert set(control.live_state.nodes) == {HERE, EAST}
        placed = []
        for _ in range(2):
            one = await submit(control, job(gpu=parse_gpus("1")))
            await site.clock.advance(5)
            attempt = site.there(one).attempt
            assert attempt is not None
            placed.append(attempt.allocation.node_key)
        assert set(placed) == {HERE, EAST}
        assert {each.key.label for each in control.live_state.nodes.values()} == {"gpu-1", "east/gpu-1"}


async def test_nodes_of_an_added_site_are_known_at_once(site: Site) -> None:
    async with site.open() as control:
        control.engines.add(east(site))
        await settle()
        assert control.live_state.nodes[EAST].state is NodeState.READY


async def test_a_silent_site_delays_no_other(site: Site) -> None:
    async with site.open() as control:
        control.engines.add(east(site, Silent))
        await site.clock.advance(10)
        one = await submit(control, job())
        await site.clock.advance(5)
        assert site.there(one).state is State.RUNNING
        site.engine.add_node(make.node("gpu-2").report)
        await site.clock.advance(10)
        assert control.live_state.nodes[NodeKey("local", "gpu-2")].state is NodeState.READY


async def test_a_site_may_report_its_own_attempts_only(site: Site) -> None:
    async with site.open() as control:
        other = east(site)
        control.engines.add(other)
        one = await submit(control, job(labels=(("site", "local"),)))
        await site.clock.advance(5)
        attempt = site.there(one).attempt
        assert attempt is not None
        ended = Status(attempt.id, Phase.ENDED, site.clock.now(), exit_code=1)
        control.reconcile.report(other, ended)
        await site.clock.advance(5)
        assert site.there(one).state is State.RUNNING
        control.reconcile.report(site.engine, ended)
        await site.clock.advance(5)
        assert site.there(one).state is State.FAILED


async def test_earlier_attempt_that_reappears_is_ended_at_the_site_that_reports_it(site: Site) -> None:
    async with site.open() as control:
        other = east(site)
        control.engines.add(other)
        one = await submit(control, job(labels=(("site", "local"),)))
        await site.clock.advance(5)
        stopped: list[tuple[str, str]] = []
        for engine in (site.engine, other):

            async def stop(attempt_id: str, _grace_s: float, at: str = engine.site) -> None:
                stopped.append((at, attempt_id))

            engine.stop = stop  # type: ignore[method-assign]  # it records the calls
        control.reconcile.report(other, Status(f"{one.id}-7", Phase.RUNNING, site.clock.now()))
        await site.clock.advance(1)
        assert set(stopped) == {("east", f"{one.id}-7")}
        assert site.there(one).state is State.RUNNING


async def test_a_site_may_measure_its_own_attempts_only(site: Site) -> None:
    async with site.open() as control:
        other = east(site)
        one = await submit(control, job(labels=(("site", "local"),)))
        await site.clock.advance(5)

        async def measure() -> Sequence[Measurement]:
            return [Measurement(f"{one.id}-1", 0.0, 999_999), Measurement("evil", 0.0, 1)]

        other.measure = measure  # type: ignore[method-assign]  # it also measures attempts of others
        control.engines.add(other)
        before = len(site.metrics.samples)
        await site.sampled(control, 30)
        found = site.metrics.samples[before:]
        assert found, "the answer of one site does not spoil the round"
        assert not [each for each in found if each.value == 999_999 or "evil" in each.subject]


async def test_a_removed_site_takes_no_work(site: Site) -> None:
    async with site.open() as control:
        control.engines.add(east(site))
        await site.clock.advance(10)
        control.engines.remove("east")
        await site.clock.advance(10)
        assert control.live_state.nodes[EAST].state is not NodeState.READY
        assert control.live_state.nodes[HERE].state is NodeState.READY


async def test_sites_that_fail_or_are_slow_are_left_out_of_an_answer() -> None:
    clock = FakeClock()
    engines = Engines([FakeEngine(name, [], clock) for name in ("slow", "good", "broken", "full")])

    async def name(engine: Engine) -> str:
        if engine.site == "slow":
            await asyncio.Event().wait()
        if engine.site == "broken":
            raise EngineFailure("its daemon is away", retryable=True)
        if engine.site == "full":
            raise OSError(errno.EMFILE, "too many open files")
        return engine.site

    assert await engines.ask(name, timeout_s=0.05) == {"good": "good"}


async def test_each_engine_has_one_task_while_its_site_is_known() -> None:
    clock, running = FakeClock(), set[str]()

    async def run(engine: Engine) -> None:
        running.add(engine.site)
        try:
            await asyncio.Event().wait()
        finally:
            running.discard(engine.site)

    engines = Engines([FakeEngine("a", [], clock)])
    task = asyncio.create_task(engines.run_each(run))
    await settle()
    engines.add(FakeEngine("b", [], clock))
    await settle()
    assert running == {"a", "b"}
    engines.remove("a")
    await settle()
    assert running == {"b"}
    task.cancel()
    await asyncio.wait([task])
    assert running == set()


async def test_an_error_of_one_task_ends_all() -> None:
    async def run(_: Engine) -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        await Engines([FakeEngine("a", [], FakeClock())]).run_each(run)


class SlowToOpen(FakeEngine):
    def __init__(self, site: str) -> None:
        super().__init__(site, [], FakeClock())
        self.may_open = asyncio.Event()
        self.closed = False

    async def open(self) -> None:
        await self.may_open.wait()

    async def close(self) -> None:
        await asyncio.Event().wait()


async def test_a_site_that_does_not_open_is_left_out_until_it_is_open() -> None:
    slow, quick = SlowToOpen("slow"), FakeEngine("quick", [], FakeClock())
    engines = Engines([slow, quick])
    await engines.open(timeout_s=0.01)
    assert list(engines) == ["quick"]
    slow.may_open.set()
    await settle()
    assert set(engines) == {"quick", "slow"}


async def test_an_engine_that_cannot_be_opened_is_an_error() -> None:
    class Broken(FakeEngine):
        async def open(self) -> None:
            raise EngineFailure("its folder cannot be read")

    with pytest.raises(EngineFailure, match="its folder cannot be read"):
        await Engines([Broken("broken", [], FakeClock())]).open()


async def test_closing_waits_for_no_silent_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonage.control.engines.CLOSE_TIMEOUT_S", 0.01)
    opening = Engines([SlowToOpen("still opening")])
    await opening.open(timeout_s=0.01)
    await opening.close()
    await Engines([SlowToOpen("silent")]).close()


async def test_the_stop_of_an_unknown_attempt_waits_for_no_silent_site(site: Site) -> None:
    class Stuck(FakeEngine):
        async def stop(self, attempt_id: str, grace_s: float) -> None:
            await asyncio.Event().wait()

    stopped: list[str] = []

    class Noting(FakeEngine):
        async def stop(self, attempt_id: str, grace_s: float) -> None:
            stopped.append(attempt_id)

    async with site.open() as control:
        control.engines.add(east(site, Stuck))
        control.engines.add(Noting("west", [], site.clock))
        gone = make.workload()
        control.reconcile.effect(gone.id, StopRun(f"{gone.id}-1", 1))
        await settle()
        assert stopped == [f"{gone.id}-1"]


def test_labels_of_nodes_elsewhere_name_their_site() -> None:
    assert (replace(make.node("n"), site="east").key.label, make.node("n").key.label) == ("east/n", "n")


class Defective(FakeEngine):
    """Its answers raise an exception that is no CommonageError."""

    async def nodes(self) -> Sequence[NodeReport]:
        raise ValueError("invalid literal for int(): '1k'")

    async def measure(self) -> Sequence[Measurement]:
        raise KeyError("podRef")

    async def statuses(self) -> Sequence[Status]:
        raise TypeError("a defect")

    async def start(self, request: StartRequest) -> None:
        raise ValueError("a defect")

    async def watch(self) -> AsyncIterator[Status]:
        raise OverflowError("a defect")
        yield


async def test_an_engine_with_a_defect_ends_nothing(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async with site.open() as control:
        control.engines.add(east(site, Defective))
        engine = control.engines["east"]
        await control.nodes.tick(engine)
        measured = len(site.metrics.samples)
        await control.sampling.tick()
        assert len(site.metrics.samples) > measured
        await site.clock.advance(60)
        here = await submit(control)
        await site.clock.advance(10)
        assert site.there(here).state is not State.QUEUED
        assert EAST not in control.live_state.nodes
    traced = [one.message for one in caplog.records if one.exc_info]
    calls = ("nodes", "measure", "statuses", "watch")
    assert sorted(traced) == sorted(f"site east: unexpected error of the engine in {call}()" for call in calls)


async def test_a_start_that_raises_anything_is_refused(site: Site) -> None:
    class Refusing(FakeEngine):
        async def start(self, request: StartRequest) -> None:
            raise ValueError("a defect")

    async with site.open(Refusing("local", [make.node("gpu-1", 1).report], site.clock)) as control:
        asked = await submit(control)
        await site.clock.advance(120)
        assert "in start(): ValueError" in str(site.there(asked).reason)


async def test_cancelling_passes_the_guard(site: Site) -> None:
    asked = asyncio.create_task(Engines([Silent("east", [], site.clock)])["east"].nodes())  # type: ignore[arg-type]  # a coroutine
    await settle()
    asked.cancel()
    await asyncio.wait([asked])
    assert asked.cancelled()
