"""Contract tests for usage reports in a store. Part of `contract`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commonage.domain.usage import UsageFigures, UsageReport
from commonage.domain.workloads import State, Workload
from commonage.ports.store import Batch, Store
from commonage.testing import factories as make

_FULL = UsageFigures(60.0, 55.5, 1900, 700, 39_000.0, 55.0, 5321, 290_000.0, 55.0, 41.5, 5.0, 50.0, 9000.5, 3.25, 10.0)


def _usage_report_of(workload: Workload, number: int = 1, **fields: Any) -> UsageReport:
    base = make.usage_report(workload, number, figures=_FULL, gpu_h=0.125)
    return replace(base, **fields)


@pytest.mark.anyio
class StoreUsageReportsContract:
    """Usage reports are rewritten while an attempt runs, and found by workload and by command hash."""

    async def test_a_usage_report_is_read_as_it_was_written(self, store: Store) -> None:
        workload = make.workload(State.RUNNING)
        written = _usage_report_of(workload)
        await store.commit(Batch([workload], usage_reports=[written]))
        assert await store.usage_reports(workload.id) == [written]
        assert await store.usage_reports(make.workload_id()) == []

    async def test_the_newest_figures_of_a_try_replace_the_older(self, store: Store) -> None:
        workload = make.workload(State.RUNNING)
        first = _usage_report_of(workload, figures=UsageFigures())
        last = _usage_report_of(workload, ended_at=make.NOW + 60)
        await store.commit(Batch([workload], usage_reports=[first]))
        await store.commit(Batch(usage_reports=[first, last]))
        assert await store.usage_reports(workload.id) == [last]

    async def test_usage_reports_of_all_tries_come_oldest_first(self, store: Store) -> None:
        workload = make.workload(State.RUNNING)
        tries = [_usage_report_of(workload, number, began_at=make.NOW + number) for number in (1, 2, 3)]
        await store.commit(Batch([workload], usage_reports=tries[::-1]))
        assert await store.usage_reports(workload.id) == tries

    async def test_open_usage_reports_are_those_that_have_not_ended(self, store: Store) -> None:
        crowd = [make.workload(State.RUNNING) for _ in range(4)]
        ends = (None, make.NOW + 5, None, make.NOW + 9)
        written = [
            _usage_report_of(each, began_at=make.NOW + place, ended_at=end)
            for place, (each, end) in enumerate(zip(crowd, ends, strict=True))
        ]
        await store.commit(Batch(crowd, usage_reports=written[::-1]))
        assert await store.open_usage_reports() == [written[0], written[2]]

    async def test_usage_reports_alike_are_ended_ones_of_one_owner_newest_first(self, store: Store) -> None:
        mine = [make.workload(State.RUNNING) for _ in range(4)]
        hers = make.workload(State.RUNNING, owner="bob")
        ended = [_usage_report_of(each, ended_at=make.NOW + place) for place, each in enumerate(mine)]
        other = replace(ended[3], command_hash="something else", ended_at=make.NOW + 99)
        running = _usage_report_of(mine[2], 2)
        await store.commit(
            Batch([*mine, hers], usage_reports=[*ended[:3], other, running, _usage_report_of(hers, ended_at=1.0)])
        )
        alike = ended[0].command_hash
        assert await store.usage_reports_like("ann", alike, limit=10) == ended[2::-1]
        assert await store.usage_reports_like("ann", alike, limit=2) == ended[2:0:-1]
        assert len(await store.usage_reports_like("bob", alike, limit=10)) == 1
        assert await store.usage_reports_like("odd \x00", "\ud800", limit=10) == []
