"""The watchdog: only attempts over their share are warned and, by the site's policy, ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.control.world import ANN, BOB, ROOT, Site, job, submit

from commonage.control.control import Control
from commonage.domain.errors import Unavailable
from commonage.domain.reasons.attempts import NeededBy, OverGpuShare
from commonage.domain.reasons.notes import (
    OverGpuShareFollows,
    OverGpuShareWarning,
    ProcessInfo,
    UnattributedGpuMemory,
    UnattributedGpuMemoryFreed,
)
from commonage.domain.requests import parse_gpus
from commonage.domain.statuses import ProcessOwner
from commonage.domain.workloads import Event, EventKind, State, Workload
from commonage.ports.devices import DeviceSample, ProcessMemory

pytestmark = pytest.mark.anyio
GIB = 1024
DEVICE = "GPU-gpu-1-0"


def measured(site: Site, used: int | None, *processes: tuple[int, int | None]) -> None:
    listed = tuple(ProcessMemory(pid, mib) for pid, mib in processes)
    site.devices.measured = [DeviceSample(DEVICE, used, 0.5, power_w=100.0, processes=listed)]


def runs(site: Site, workload: Workload, pid: int) -> int:
    """Process `pid` is that workload's."""
    site.engine.owned[pid] = ProcessOwner(pid, f"{workload.id}-1", "python3", 0.0)
    return pid


@pytest.fixture
def site() -> Site:
    return Site(samples_itself=False)


async def submitted(control: Control, who: Any = ANN, gpus: str = "8GiB", **fields: Any) -> Workload:
    return await submit(control, job(gpu=parse_gpus(gpus), **fields), who)


def warnings(site: Site, workload: Workload | None = None) -> list[Event]:
    wanted = workload.id if workload else None
    return [one for one in site.store.shelf.events if one.kind is EventKind.WARNING and one.workload_id == wanted]


async def test_it_is_warned_once_with_numbers() -> None:
    site = Site(samples_itself=False, gpu_over_share="warn")
    async with site.open() as control:
        mine = await submitted(control)
        await site.sampled(control, 1)
        measured(site, 10 * GIB, (runs(site, mine, 7), 10 * GIB))
        await site.sampled(control, 300)
        (event,) = warnings(site, mine)
        assert site.there(mine).state is State.RUNNING
        assert control.watchdog.counts == {"warned": 1}
    assert isinstance(event.reason, OverGpuShareWarning)
    assert (event.reason.gpu, event.reason.used_mib, event.reason.share_mib) == ("0", 10 * GIB, 8 * GIB)
    assert event.reason.follows is OverGpuShareFollows.NOTHING
    assert event.owner == "ann"


async def test_it_is_ended_after_a_while_and_its_neighbour_is_not() -> None:
    site = Site(samples_itself=False, gpu_over_share="stop", gpu_over_share_after_s=60)
    async with site.open() as control:
        mine, theirs = await submitted(control), await submitted(control, BOB)
        await site.sampled(control, 1)
        measured(site, 18 * GIB, (runs(site, mine, 7), 10 * GIB), (runs(site, theirs, 8), 8 * GIB))
        await site.sampled(control, 50)
        warned = warnings(site, mine)[0].reason
        assert isinstance(warned, OverGpuShareWarning)
        assert warned.follows is OverGpuShareFollows.STOP
        assert 10 <= warned.left_s <= 60
        assert site.there(mine).state is State.RUNNING
        await site.sampled(control, 30)
        assert site.there(mine).state is State.STOPPED
        assert site.there(theirs).state is State.RUNNING
        assert warnings(site, theirs) == []
    ended = site.there(mine).reason
    assert isinstance(ended, OverGpuShare)
    assert (ended.used_mib, ended.share_mib, ended.request_mib) == (10 * GIB, 8 * GIB, 11 * GIB)
    assert (ended.lasted_s or 0) >= (ended.allowed_s or 0) == 60


async def test_who_gives_it_back_goes_on() -> None:
    site = Site(samples_itself=False, gpu_over_share="stop", gpu_over_share_after_s=60)
    async with site.open() as control:
        mine = await submitted(control)
        await site.sampled(control, 1)
        for used in (10, 7, 10, 7, 10):
            measured(site, used * GIB, (runs(site, mine, 7), used * GIB))
            await site.sampled(control, 45)
        assert site.there(mine).state is State.RUNNING


async def test_while_nobody_needs_the_memory_it_goes_on() -> None:
    site = Site(samples_itself=False, gpu_over_share="contended")
    async with site.open() as control:
        mine = await submitted(control)
        await site.sampled(control, 1)
        measured(site, 14 * GIB, (runs(site, mine, 7), 14 * GIB))
        await site.sampled(control, 300)
        warned = warnings(site, mine)[0].reason
        assert isinstance(warned, OverGpuShareWarning)
        assert warned.follows is OverGpuShareFollows.STOP_WHEN_NEEDED
        assert site.there(mine).state is State.RUNNING
        theirs = await submitted(control, BOB, "12GiB")  # 10 GiB are free
        await site.sampled(control, 10)
        assert site.there(mine).state is State.STOPPED
        assert site.there(theirs).state is State.RUNNING
    ended = site.there(mine).reason
    assert isinstance(ended, OverGpuShare)
    assert ended.needed_by == NeededBy(is_queued=False, needed_mib=12 * GIB, free_mib=10 * GIB)
    assert ended.request_mib == 16 * GIB


async def test_one_in_the_queue_needs_it() -> None:
    site = Site(samples_itself=False, gpu_over_share="contended")
    async with site.open() as control:
        mine = await submitted(control)
        await site.sampled(control, 1)
        measured(site, 9 * GIB, (runs(site, mine, 7), 9 * GIB))
        waits = await submitted(control, BOB, "20GiB")
        await site.sampled(control, 20)
        assert site.there(mine).state is State.STOPPED
        assert site.there(waits).state is State.RUNNING


@pytest.mark.parametrize("policy", ["stop", "contended"])
async def test_missing_figures_and_reused_numbers_end_nobody(policy: str) -> None:
    site = Site(samples_itself=False, gpu_over_share=policy, gpu_over_share_after_s=10)
    async with site.open() as control:
        mine, theirs = await submitted(control), await submitted(control, BOB)
        await site.sampled(control, 1)
        runs(site, mine, 7), runs(site, theirs, 8)
        measured(site, None, (7, None), (8, None))
        await site.sampled(control, 60)
        reused = ProcessOwner(7, f"{mine.id}-1", "python3", site.clock.now() + 1e6)
        site.engine.owned[7] = reused  # began after the driver was asked
        measured(site, 24 * GIB, (7, 23 * GIB))
        await site.sampled(control, 60)
        assert [site.there(one).state for one in (mine, theirs)] == [State.RUNNING] * 2
        assert warnings(site, mine) == warnings(site, theirs) == []


async def test_a_device_that_is_lost_midway_ends_nobody() -> None:
    site = Site(samples_itself=False, gpu_over_share="stop", gpu_over_share_after_s=60)
    async with site.open() as control:
        mine = await submitted(control)
        await site.sampled(control, 1)
        measured(site, 10 * GIB, (runs(site, mine, 7), 10 * GIB))
        await site.sampled(control, 30)
        site.devices.measured = []
        await site.sampled(control, 300)
        assert site.there(mine).state is State.RUNNING
        assert control.watchdog.over == []


async def test_an_old_round_is_not_judged() -> None:
    site = Site(samples_itself=False, gpu_over_share="stop", gpu_over_share_after_s=0)
    async with site.open() as control:
        mine = await submitted(control)
        await site.sampled(control, 1)
        measured(site, 20 * GIB, (runs(site, mine, 7), 20 * GIB))
        round_ = await control.sampling._ask_devices([], site.clock.now())
        site.devices.measured = []
        for _ in range(3):
            await site.sampled(control, 60)
            await control.watchdog.check(round_)
        assert site.there(mine).state is State.RUNNING


async def test_vram_of_a_process_of_no_attempt_is_shown_and_told_once(site: Site) -> None:
    async with site.open() as control:
        site.engine.owned[99] = ProcessOwner(99, None, "blender", 0.0)
        site.engine.owned[98] = ProcessOwner(98, None, "nvidia-cuda-mps-server", 0.0)
        measured(site, 2 * GIB, (99, 2 * GIB), (98, 30))
        await site.sampled(control, 60)
        (event,) = warnings(site)
        assert isinstance(event.reason, UnattributedGpuMemory)
        assert (event.reason.used_mib, event.reason.processes) == (2 * GIB, (ProcessInfo(99, "blender"),))
        assert event.owner is None
        view = next(each for each in control.node_views.all() if each.devices)
        assert [(one.pid, one.memory_mib, one.name) for one in view.devices[0].unattributed] == [(99, 2048, "blender")]
        measured(site, 0)
        await site.sampled(control, 60)
        view = next(each for each in control.node_views.all() if each.devices)
        assert view.devices[0].unattributed == ()
    assert [one for one in site.store.shelf.events if isinstance(one.reason, UnattributedGpuMemoryFreed)]


async def test_a_stop_that_was_wished_already_is_not_wished_again() -> None:
    site = Site(samples_itself=False, gpu_over_share="stop", gpu_over_share_after_s=0)
    async with site.open() as control:
        mine = await submitted(control, grace_s=300)
        await site.sampled(control, 1)
        await control.workloads.stop(ROOT, mine.id)
        measured(site, 10 * GIB, (runs(site, mine, 7), 10 * GIB))
        await site.sampled(control, 20)
        assert site.there(mine).stop is not None
        assert control.watchdog.counts == {}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["warn", "stop", "contended"]),
    st.lists(
        st.tuples(
            st.none() | st.integers(0, 8 * GIB + 512),
            st.none() | st.integers(0, 30 * GIB),
            st.none() | st.integers(0, 30 * GIB),
            st.sampled_from([1.0, 5.0, 60.0]),
        ),
        min_size=1,
        max_size=8,
    ),
)
async def test_an_attempt_within_its_share_is_never_ended(
    policy: str, rounds: list[tuple[int | None, int | None, int | None, float]]
) -> None:
    """Whatever is sampled of it, of its neighbour, of the GPU."""
    site = Site(samples_itself=False, gpu_over_share=policy, gpu_over_share_after_s=5)
    async with site.open() as control:
        mine, theirs = await submitted(control), await submitted(control, BOB)
        await submitted(control, gpus="1")  # a workload always waits
        await site.sampled(control, 1)
        for allocated, beside, used, seconds in rounds:
            measured(site, used, (runs(site, mine, 7), allocated), (runs(site, theirs, 8), beside))
            await site.sampled(control, seconds)
        assert site.there(mine).state is State.RUNNING
        assert warnings(site, mine) == []


async def test_a_loop_that_is_ended_while_it_writes_ends(site: Site) -> None:
    """An error during shutdown must not replace the cancellation: the server would never stop."""
    writes = asyncio.Event()

    async def never(samples: object) -> None:
        writes.set()
        await asyncio.Event().wait()

    async def refuse(round_: object) -> None:
        raise Unavailable("the server is stopping")

    async with site.open() as control:
        control.sampling.on_round = refuse
        site.metrics.write = never  # type: ignore[method-assign]  # it hangs until it is cancelled
        loop = asyncio.create_task(control.sampling.run())
        await writes.wait()
        loop.cancel()
        ended, _ = await asyncio.wait([loop], timeout=5)
        assert ended
