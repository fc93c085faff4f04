"""Contract tests for usage reports in a store. Part of `store_contract`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commonage.domain.receipts import Figures, Receipt
from commonage.domain.workloads import State, Workload
from commonage.ports.store import Batch, Store
from commonage.testing import factories as make

_FULL = Figures(60.0, 55.5, 1900, 700, 39_000.0, 55.0, 5321, 290_000.0, 55.0, 41.5, 5.0, 50.0, 9000.5, 3.25, 10.0)


def _receipt_of(workload: Workload, number: int = 1, **fields: Any) -> Receipt:
    base = make.receipt(workload, number, figures=_FULL, gpu_h=0.125)
    return replace(base, **fields)


@pytest.mark.anyio
class StoreReceiptsContract:
    """Usage reports are rewritten while an attempt runs, and found by workload and by likeness."""

    async def test_a_receipt_is_read_as_it_was_written(self, store: Store) -> None:
        workload = make.workload(State.RUNNING)
        written = _receipt_of(workload)
        await store.commit(Batch([workload], receipts=[written]))
        assert await store.receipts(workload.id) == [written]
        assert await store.receipts(make.workload_id()) == []

    async def test_the_newest_figures_of_a_try_replace_the_older(self, store: Store) -> None:
        workload = make.workload(State.RUNNING)
        first = _receipt_of(workload, figures=Figures())
        last = _receipt_of(workload, ended_at=make.NOW + 60)
        await store.commit(Batch([workload], receipts=[first]))
        await store.commit(Batch(receipts=[first, last]))
        assert await store.receipts(workload.id) == [last]

    async def test_receipts_of_all_tries_come_oldest_first(self, store: Store) -> None:
        workload = make.workload(State.RUNNING)
        tries = [_receipt_of(workload, number, began_at=make.NOW + number) for number in (1, 2, 3)]
        await store.commit(Batch([workload], receipts=tries[::-1]))
        assert await store.receipts(workload.id) == tries

    async def test_open_receipts_are_those_that_have_not_ended(self, store: Store) -> None:
        crowd = [make.workload(State.RUNNING) for _ in range(4)]
        ends = (None, make.NOW + 5, None, make.NOW + 9)
        written = [
            _receipt_of(each, began_at=make.NOW + place, ended_at=end)
            for place, (each, end) in enumerate(zip(crowd, ends, strict=True))
        ]
        await store.commit(Batch(crowd, receipts=written[::-1]))
        assert await store.open_receipts() == [written[0], written[2]]

    async def test_receipts_alike_are_ended_ones_of_one_owner_newest_first(self, store: Store) -> None:
        mine = [make.workload(State.RUNNING) for _ in range(4)]
        hers = make.workload(State.RUNNING, owner="bob")
        ended = [_receipt_of(each, ended_at=make.NOW + place) for place, each in enumerate(mine)]
        other = replace(ended[3], likeness="something else", ended_at=make.NOW + 99)
        running = _receipt_of(mine[2], 2)
        await store.commit(Batch([*mine, hers], receipts=[*ended[:3], other, running, _receipt_of(hers, ended_at=1.0)]))
        alike = ended[0].likeness
        assert await store.receipts_like("ann", alike, limit=10) == ended[2::-1]
        assert await store.receipts_like("ann", alike, limit=2) == ended[2:0:-1]
        assert len(await store.receipts_like("bob", alike, limit=10)) == 1
        assert await store.receipts_like("odd \x00", "\ud800", limit=10) == []
