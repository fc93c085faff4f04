"""What the GPUs tell of an attempt becomes an event of its workload, once, and is kept while the store is away."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.control.world import ANN, Site, job

from commonage.domain.errors import Unavailable
from commonage.domain.reasons import Reason
from commonage.domain.reasons.notes import GpuWarning
from commonage.domain.workloads import EventKind

pytestmark = pytest.mark.anyio


def told(site: Site) -> list[tuple[str | None, Reason]]:
    return [(one.attempt_id, one.reason) for one in site.store.shelf.events if one.kind is EventKind.WARNING]


async def test_the_owner_is_told_once() -> None:
    site = Site()
    site.samples_itself = False
    async with site.open() as control:
        mine = (await control.workloads.submit(ANN, job())).workloads[0]
        await site.sampled(control, 5)
        site.devices.warnings = [(f"{mine.id}-1", "its MPS daemon ended"), (f"{mine.id}-9", "nobody's")]
        await site.sampled(control, 10)
        assert told(site) == [(f"{mine.id}-1", GpuWarning(detail="its MPS daemon ended"))]
        (event,) = [one for one in site.store.shelf.events if one.kind is EventKind.WARNING]
        assert (event.owner, event.workload_id) == ("ann", mine.id)


async def test_it_is_told_when_the_store_is_back() -> None:
    site = Site()
    site.samples_itself = False
    async with site.open() as control:
        mine = (await control.workloads.submit(ANN, job())).workloads[0]
        await site.sampled(control, 5)
        site.devices.warnings = [(f"{mine.id}-1", "its MPS daemon ended")]
        site.store.trouble = Unavailable("the database is away")
        looking = asyncio.create_task(control.device_warnings.collect())
        while not looking.done():
            await site.clock.advance(1)
            await asyncio.sleep(0.01)
        with pytest.raises(Unavailable):
            await looking
        site.store.trouble = None
        await site.clock.advance(10)
        await site.sampled(control, 5)
        assert len(told(site)) == 1
