"""Contract tests for the deletion of ended workloads and old events in a store. Part of `contract`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonage.domain.errors import NotFound
from commonage.domain.usage import DAY_S, Usage
from commonage.domain.workloads import State, Workload
from commonage.ports.store import Batch, Filter, Store, Visible
from commonage.testing import factories as make
from commonage.testing.store.reading_contract import some_examples

_HOUR_S = 3600
_PERIODS = [(0, 5), (0, 1), (1, 3), (2, 3), (4, 5), (-3, 9)]
_SPANS = st.lists(st.tuples(st.integers(0, 5 * 24), st.integers(0, 60)), min_size=1, max_size=3)
_WORKLOADS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), _SPANS), min_size=1, max_size=5)


def _ended(since: float, key: str | None = None) -> Workload:
    return replace(make.workload(State.SUCCEEDED, key=key), since=since)


async def _sums(store: Store, owner: str | None = None) -> list[Sequence[Usage]]:
    return [
        await store.usage(
            since=first * DAY_S, until=end * DAY_S, by=by, visible=None if owner is None else Visible(owner)
        )
        for (first, end), by in itertools.product(_PERIODS, ("owner", "tenant", "environment"))
    ]


def _same(one: Sequence[Usage], other: Sequence[Usage]) -> None:
    assert [each.subject for each in one] == [each.subject for each in other]
    for mine, others in zip(one, other, strict=True):
        for name in ("gpu_gib_h", "gpu_h", "cpu_h", "memory_gib_h"):
            assert getattr(mine, name) == pytest.approx(getattr(others, name), rel=1e-9, abs=1e-9)


@pytest.mark.anyio
class StoreRetentionContract:
    """Deleted workloads leave nothing except their usage, which stays the same for every period of whole days."""

    async def test_a_deleted_workload_is_gone_with_everything_of_it(self, store: Store) -> None:
        gone, stays = _ended(10.0, key="k"), _ended(20.0)
        reports = [make.usage_report(each, 1) for each in (gone, stays)]
        await store.commit(Batch([gone, stays], usage_reports=reports))
        await store.commit(Batch(expired=[gone.id]))
        with pytest.raises(NotFound):
            await store.workload(gone.id)
        assert await store.attempts(gone.id) == []
        assert await store.usage_reports(gone.id) == []
        assert await store.workload_by_key("ann", "k") is None
        assert (await store.workloads(Filter(), limit=9)).items == [stays]
        assert len(await store.usage_reports(stays.id)) == 1
        await store.commit(Batch([make.workload(key="k")]))

    async def test_a_live_workload_is_never_deleted(self, store: Store) -> None:
        live = [make.workload(state) for state in State if not state.is_terminal]
        await store.commit(Batch(live))
        await store.commit(Batch(expired=[each.id for each in live]))
        assert list(await store.live()) == live

    async def test_candidates_are_the_ended_ones_oldest_end_first(self, store: Store) -> None:
        late, early, new = _ended(20.0), _ended(10.0), _ended(30.0)
        await store.commit(Batch([late, early, new, replace(make.workload(), since=1.0)]))
        assert await store.expired(before=30.0, needed=(), limit=9) == [early.id, late.id]
        assert await store.expired(before=30.0, needed=(), limit=1) == [early.id]
        assert await store.expired(before=30.0, needed=[early.id, "unknown"], limit=1) == [late.id]
        assert await store.expired(before=5.0, needed=(), limit=9) == []

    async def test_members_of_a_needed_array_are_no_candidates(self, store: Store) -> None:
        members = [replace(each, state=State.SUCCEEDED, since=5.0) for each in make.array(3)]
        alone = _ended(6.0)
        await store.commit(Batch([*members, alone]))
        assert await store.expired(before=9.0, needed=[members[0].spec.array_id or ""], limit=9) == [alone.id]
        assert len(await store.expired(before=9.0, needed=(), limit=9)) == 4

    async def test_the_spec_of_an_array_stays_as_long_as_a_member(self, store: Store) -> None:
        members = [replace(each, state=State.SUCCEEDED) for each in make.array(3)]
        await store.commit(Batch(members))
        await store.commit(Batch(expired=[members[0].id]))
        assert (await store.workload(members[1].id)).spec == members[1].spec
        await store.commit(Batch(expired=[each.id for each in members]))
        assert (await store.workloads(Filter(), limit=9)).items == []

    async def test_deleted_events_are_gone(self, store: Store) -> None:
        await store.commit(Batch(events=[make.event(seq, None) for seq in range(1, 6)]))
        await store.commit(Batch(expired_events=[1, 2, 4, 77]))
        assert [event.seq for event in await store.events()] == [3, 5]
        assert await store.last_event_seq() == 5

    @settings(some_examples, max_examples=40)
    @given(crowd=_WORKLOADS, deleted=st.sets(st.integers(0, 4)), again=st.booleans())
    async def test_usage_of_whole_days_is_the_same_after_deletion(
        self, store: Store, crowd: list[tuple[str, str, list[tuple[int, int]]]], deleted: set[int], again: bool
    ) -> None:
        workloads = []
        for owner, tenant, spans in crowd:
            workload = make.workload(State.SUCCEEDED, owner=owner, tenant=tenant)
            await store.commit(Batch([workload]))
            for number, (begin, hours) in enumerate(spans, start=1):
                shares = [make.share(make.device(), memory_mib=1024)]
                allocation = make.allocation(f"{workload.id}-{number}", shares=shares, at=begin * _HOUR_S)
                attempt = make.attempt(
                    workload.id, number, State.SUCCEEDED, allocation=allocation, ended_at=(begin + hours) * _HOUR_S
                )
                workload = replace(workload, attempt=attempt, version=workload.version + 1)
                await store.commit(Batch(updates=[workload]))
            workloads.append(workload)
        before, of_a = await _sums(store), await _sums(store, "a")
        expired = [each.id for number, each in enumerate(workloads) if number in deleted]
        await store.commit(Batch(expired=expired))
        if again:  # as after a crash that hid the answer
            await store.commit(Batch(expired=expired))
        for one, other in zip([*before, *of_a], [*await _sums(store), *await _sums(store, "a")], strict=True):
            _same(_held(one), _held(other))

    async def test_workloads_are_counted_once_in_every_period(self, store: Store) -> None:
        crowd = []
        for first, last in ((0, 0), (0, 2), (1, 3)):
            one = make.workload(State.SUCCEEDED)
            allocation = make.allocation(f"{one.id}-1", at=first * DAY_S + 60.0)
            ended_at = last * DAY_S + 120.0
            crowd.append(replace(one, attempt=make.attempt(one.id, allocation=allocation, ended_at=ended_at)))
        await store.commit(Batch(crowd))
        before = await _sums(store)
        await store.commit(Batch(expired=[each.id for each in crowd]))
        assert [[each.workloads for each in one] for one in await _sums(store)] == [
            [each.workloads for each in one] for one in before
        ]

    async def test_a_part_of_a_day_has_its_part_of_the_total(self, store: Store) -> None:
        one = make.workload(State.SUCCEEDED)
        allocation = make.allocation(f"{one.id}-1", at=0.0)
        one = replace(one, attempt=make.attempt(one.id, allocation=allocation, ended_at=6.0 * _HOUR_S))
        await store.commit(Batch([one]))
        [before] = await store.usage(since=0, until=DAY_S, by="owner")
        await store.commit(Batch(expired=[one.id]))
        [half] = await store.usage(since=DAY_S / 2, until=2 * DAY_S, by="owner")
        assert half.cpu_h == pytest.approx(before.cpu_h / 2)
        assert await store.usage(since=0, until=DAY_S, by="workload") == []


def _held(found: Sequence[Usage]) -> list[Usage]:
    """Without those that hold nothing: a workload between two attempts is counted on those days, and has no usage."""
    return [each for each in found if each.cpu_h]
