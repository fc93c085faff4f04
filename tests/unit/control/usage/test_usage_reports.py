"""Usage reports grow with every round, are made at the end, and outlive a restart."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.control.world import ANN, BOB, Site, job, submit

from commonage.control.control import Control
from commonage.domain.errors import Unavailable
from commonage.domain.requests import parse_gpus
from commonage.domain.statuses import LastUse, Phase, Status
from commonage.domain.usage import UsageReport
from commonage.domain.workloads import RetryPolicy, State, Workload
from commonage.ports.devices import DeviceSample, ProcessMemory
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
GIB = 1024
DEVICE = "GPU-gpu-1-0"
HOLDS = Behaviour(lasts_s=None, holds_mib=300)


@pytest.fixture
def site() -> Site:
    return Site(samples_itself=False)


async def submitted(control: Control, who: Any = ANN, gpus: str | None = "8GiB", **fields: Any) -> Workload:
    return await submit(control, job(gpu=parse_gpus(gpus), **fields), who)


def measured(site: Site, energy_j: float | None = None, **allocated: tuple[int | None, float | None]) -> None:
    """MiB and utilisation of attempts, by id, on the one GPU, which draws 100 W."""
    listed = tuple(
        ProcessMemory(None, mib, attempt_id=each.replace("_", "-"), utilisation=busy)
        for each, (mib, busy) in allocated.items()
    )
    used = sum(one.memory_mib or 0 for one in listed)
    site.devices.measured = [DeviceSample(DEVICE, used, None, power_w=100.0, processes=listed, energy_j=energy_j)]


async def of(control: Control, workload: Workload) -> UsageReport:
    found = await control.usage_reports.of(
        control.live_state.get(workload.id) or await control.store.workload(workload.id)
    )
    assert found is not None
    return found


async def test_what_was_asked_and_what_was_used(site: Site) -> None:
    site.engine.default = HOLDS
    async with site.open() as control:
        one = await submitted(control)
        await site.sampled(control, 10)
        for mib, busy in ((None, None), (0, 0.0), (4000, 0.8), (5000, 0.6), (1000, 0.0)):
            measured(site, **{f"{one.id}_1": (mib, busy)})
            await site.sampled(control, 20)
        site.engine.end(f"{one.id}-1")
        await site.sampled(control, 1)
        usage_report = await of(control, one)
        await site.sampled(control, 10)
    figures = usage_report.figures
    assert usage_report == site.store.shelf.usage_reports[f"{one.id}-1"], "and so it is kept"
    assert usage_report.ended_at is not None
    assert (usage_report.vram_mib, usage_report.device_mib, usage_report.devices, usage_report.gpu_milli) == (
        8192,
        24576,
        1,
        333,
    )
    assert figures.measured_s == pytest.approx(110, abs=12)
    assert usage_report.vram_peak_mib == 5000
    assert usage_report.vram_mean_mib == pytest.approx(2500, rel=0.2)
    assert usage_report.sufficient_vram_mib == 5632
    assert figures.memory_peak_mib == 300
    assert figures.cpu_peak_milli == pytest.approx(1000, rel=0.3)
    assert usage_report.idle_share == pytest.approx(0.4, abs=0.15)
    assert figures.first_gpu_s == pytest.approx(50, abs=12)
    assert usage_report.energy_wh == pytest.approx(100 * 100 / 3600, rel=0.25)
    assert usage_report.gpu_h == pytest.approx(0.333 * 111 / 3600, rel=0.1)
    assert usage_report.simulated


async def test_two_on_one_device_pay_for_what_each_computes(site: Site) -> None:
    async with site.open() as control:
        mine, theirs = await submitted(control), await submitted(control, BOB)
        await site.sampled(control, 1)
        energy = 1e6
        for _ in range(20):
            energy += 500
            measured(site, energy, **{f"{mine.id}_1": (100, 0.6), f"{theirs.id}_1": (100, 0.2)})
            await site.sampled(control, 5)
        first, second = await of(control, mine), await of(control, theirs)
    assert first.figures.energy_j == pytest.approx(3 * second.figures.energy_j, rel=0.01)
    assert first.figures.energy_j + second.figures.energy_j == pytest.approx(energy - 1e6, rel=0.15)
    assert first.gpu_utilisation == pytest.approx(0.6)


async def test_a_counter_that_was_reset_is_not_believed(site: Site) -> None:
    async with site.open() as control:
        one = await submitted(control)
        await site.sampled(control, 1)
        for energy in (9e9, 5.0, 5.0):
            measured(site, energy, **{f"{one.id}_1": (100, 0.6)})
            await site.sampled(control, 5)
        usage_report = await of(control, one)
    assert 0 <= usage_report.figures.energy_j <= 100 * 20


async def test_without_a_device_there_are_no_figures_of_one(site: Site) -> None:
    site.engine.default = HOLDS
    async with site.open() as control:
        one = await submitted(control, gpus=None)
        await site.sampled(control, 30)
        usage_report = await of(control, one)
    assert (
        usage_report.vram_peak_mib,
        usage_report.sufficient_vram_mib,
        usage_report.idle_share,
        usage_report.energy_wh,
    ) == (None,) * 4
    assert usage_report.sufficient_memory_mib == 768
    assert usage_report.ended_at is None


async def test_one_that_ended_before_anybody_looked_has_none(site: Site) -> None:
    site.engine.default = Behaviour(lasts_s=0.5)
    async with site.open() as control:
        await site.sampled(control, 1)
        one = await submitted(control)
        await site.sampled(control, 2)
        assert site.there(one).state is State.SUCCEEDED
        assert await control.usage_reports.of(site.there(one)) is None


async def test_all_tries_are_on_one_usage_report(site: Site) -> None:
    async with site.open() as control:
        one = await submitted(control, retry=RetryPolicy(1, 5.0))
        await site.sampled(control, 1)
        measured(site, **{f"{one.id}_1": (5000, 0.5)})
        await site.sampled(control, 20)
        site.engine.end(f"{one.id}-1", 1)
        await site.sampled(control, 10)
        measured(site, **{f"{one.id}_2": (1000, 0.5)})
        await site.sampled(control, 20)
        site.engine.end(f"{one.id}-2")
        await site.sampled(control, 10)
        usage_report = await of(control, one)
    assert len(site.store.shelf.usage_reports) == 2
    assert usage_report.vram_peak_mib == 5000
    assert usage_report.figures.measured_s == pytest.approx(40, abs=12)


async def test_figures_outlive_a_restart(site: Site) -> None:
    async with site.open() as control:
        one, other = await submitted(control), await submitted(control)
        await site.sampled(control, 1)
        measured(site, **{f"{one.id}_1": (5000, 0.5), f"{other.id}_1": (100, 0.1)})
        await site.sampled(control, 130)
    assert site.store.shelf.usage_reports[f"{one.id}-1"].ended_at is None
    site.engine.end(f"{other.id}-1")
    async with site.open() as control:
        measured(site, **{f"{one.id}_1": (1000, 0.5)})
        await site.sampled(control, 100)
        site.engine.end(f"{one.id}-1")
        await site.sampled(control, 10)
        usage_report, gone = await of(control, one), await of(control, other)
    assert usage_report.vram_peak_mib == 5000
    assert usage_report.figures.measured_s == pytest.approx(230, abs=75), "a minute at most is lost"
    assert gone.ended_at is not None
    assert all(each.ended_at for each in site.store.shelf.usage_reports.values())


async def test_while_the_store_is_away_figures_are_kept_in_memory(site: Site) -> None:
    async with site.open() as control:
        one = await submitted(control)
        await site.sampled(control, 1)
        measured(site, **{f"{one.id}_1": (5000, 0.5)})
        await site.sampled(control, 20)
        site.store.trouble = Unavailable("the database is away")
        site.engine.end(f"{one.id}-1")
        await site.sampled(control, 100)
        site.store.trouble = None
        await site.sampled(control, 20)
        usage_report = await of(control, one)
    assert usage_report.vram_peak_mib == 5000
    assert site.store.shelf.usage_reports[f"{one.id}-1"] == usage_report


async def test_alike_are_those_of_one_owner_environment_and_command(site: Site, control: Control) -> None:
    for who, command in ((ANN, ("train",)), (BOB, ("train",)), (ANN, ("test",))):
        one = await submit(control, job(*command, gpu=parse_gpus("1GiB")), who)
        await site.sampled(control, 1)
        measured(site, **{f"{one.id}_1": (500, 0.5)})
        await site.sampled(control, 10)
        site.engine.end(f"{one.id}-1")
        await site.sampled(control, 1)
        assert len(await control.usage_reports.alike("ann", "base", ["train"])) == 1, "also before it is written"
    assert await control.usage_reports.alike("ann", "notebook", ["train"]) == []
    assert await control.usage_reports.alike("carl", "base", ["train"]) == []


async def test_one_that_ends_before_the_first_round_has_what_its_engine_read_at_the_end(site: Site) -> None:
    site.engine.default = HOLDS
    async with site.open() as control:
        one = await submitted(control)
        await site.clock.advance(2)
        attempt = site.there(one).attempt
        assert attempt is not None
        assert attempt.started_at is not None
        now = site.clock.now()
        ended = Status(attempt.id, Phase.ENDED, now, exit_code=0, started_at=attempt.started_at, used=LastUse(1.5, 200))
        control.reconcile.report(site.engine, ended)
        await site.sampled(control, 1)
        usage_report = await of(control, one)
        assert (usage_report.figures.cpu_s, usage_report.figures.memory_peak_mib) == (1.5, 200)
        assert usage_report.figures.cpu_peak_milli == round(1500 / (now - attempt.started_at))
        assert (usage_report.ended_at, usage_report.vram_peak_mib) == (now, None)
        assert [each.attempt_id for each in await control.store.usage_reports(one.id)] == [attempt.id]


async def test_the_last_use_completes_what_was_measured(site: Site) -> None:
    site.engine.default = HOLDS
    async with site.open() as control:
        one = await submitted(control)
        await site.sampled(control, 30)
        before = (await of(control, one)).figures
        control.usage_reports.note_last_use(f"{one.id}-1", LastUse(before.cpu_s + 3, 9000))
        site.engine.end(f"{one.id}-1")
        await site.sampled(control, 1)
        after = (await of(control, one)).figures
        assert after.cpu_s == before.cpu_s + 3
        assert after.memory_peak_mib == before.memory_peak_mib


async def test_the_last_use_of_an_attempt_that_has_ended_already_is_not_kept(site: Site, control: Control) -> None:
    one = await submitted(control)
    await site.clock.advance(2)
    site.engine.end(f"{one.id}-1")
    await site.clock.advance(2)
    assert site.there(one).state is State.SUCCEEDED
    control.usage_reports.note_last_use(f"{one.id}-1", LastUse(1.0, 1))
    assert control.usage_reports._last_use == {}
