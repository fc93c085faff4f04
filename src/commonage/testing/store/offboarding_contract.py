"""Contract tests for new names of history and owners of waiting work in a store. Part of `contract`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from commonage.domain.offboarding import Change, Offboarding, Step, Subject, Wanted
from commonage.domain.usage import DAY_S, Usage
from commonage.domain.workloads import Attempt, State, Workload
from commonage.ports.store import Batch, Filter, Store
from commonage.testing import factories as make

_COLUMNS = {Subject.USER: "owner", Subject.TENANT: "tenant"}


async def _rename(store: Store, subject: Subject, name: str, to: str) -> int:
    """Until nothing is left; the number of transactions."""
    rounds = 1
    while await store.rename(subject, name, to, limit=2):
        rounds += 1
    return rounds


async def _usage(store: Store, by: str) -> Sequence[Usage]:
    return await store.usage(since=0.0, until=4e9, by=by)


def _ended(owner: str, tenant: str, key: str | None = None) -> Workload:
    found = make.workload(State.SUCCEEDED, spec_=make.spec(gpus="2GiB", owner=owner, tenant=tenant, key=key))
    assert found.attempt is not None
    ended = replace(found.attempt, ended_at=found.attempt.allocation.at + 3600)
    return replace(found, attempt=ended, since=found.attempt.allocation.at + 3600)


def _charged(workload: Workload, **fields: Any) -> Workload:
    return replace(workload, spec=replace(workload.spec, **fields), version=workload.version + 1)


def _of(workload: Workload) -> Attempt:
    assert workload.attempt is not None
    return workload.attempt


@pytest.mark.anyio
class StoreOffboardingContract:
    """A renamed user or tenant has its whole history under the new name, and others keep theirs."""

    async def test_an_offboarding_is_read_as_it_was_written_last(self, store: Store) -> None:
        wanted = Wanted(Subject.TENANT, Change.RENAME, "optics ü", to="photonics")
        begun = Offboarding("o1", wanted, "v1", "root", 12.5)
        other = Offboarding("o0", Wanted(Subject.USER, Change.REMOVE, "ann", keep_account=True), "v2", "root", 13.5)
        await store.commit(Batch(offboardings=[begun, other]))
        after = replace(begun.after(Step.WORKLOADS, 14.5), last_error="the hub is away")
        await store.commit(Batch(offboardings=[after]))
        assert await store.offboardings() == [other, after]

    @pytest.mark.parametrize("subject", list(Subject))
    async def test_ended_work_with_its_usage_gets_the_new_name(self, store: Store, subject: Subject) -> None:
        column = _COLUMNS[subject]
        mine = [_ended("ann", "optics") for _ in range(5)]
        theirs = _ended("bob", "chemistry")
        reports = [make.usage_report(one, 1) for one in (*mine, theirs)]
        await store.commit(Batch([*mine, theirs], usage_reports=reports))
        name = getattr(mine[0].spec, column)
        before = {one.subject: one for one in await _usage(store, column)}
        rounds = await _rename(store, subject, name, "new ü")
        assert rounds > 2, "it takes bounded transactions"
        assert await store.rename(subject, name, "new ü", limit=2) is False
        after = {one.subject: one for one in await _usage(store, column)}
        assert after == {
            "new ü": replace(before[name], subject="new ü"),
            getattr(theirs.spec, column): before[getattr(theirs.spec, column)],
        }
        which = Filter(owner="new ü") if subject is Subject.USER else Filter(tenant="new ü")
        found = (await store.workloads(which, limit=9)).items
        assert {one.id for one in found} == {one.id for one in mine}
        assert {getattr(one.spec, column) for one in found} == {"new ü"}
        assert await store.workload(theirs.id) == theirs
        holds = {one.attempt_id: one for one in await store.past_holds(since=0.0, limit=9)}
        assert {getattr(holds[_of(one).id], column) for one in mine} == {"new ü"}

    async def test_keys_reports_and_events_of_a_user_follow(self, store: Store) -> None:
        mine, theirs = _ended("ann", "optics", key="k"), _ended("bob", "optics", key="k")
        report = replace(make.usage_report(mine, 1), owner="ann", command_hash="c", ended_at=50.0)
        events = [make.event(1, mine), replace(make.event(2), owner="ann"), make.event(3, theirs)]
        await store.commit(Batch([mine, theirs], events=events, usage_reports=[report]))
        await _rename(store, Subject.USER, "ann", "anna")
        assert await store.workload_by_key("ann", "k") is None
        found = await store.workload_by_key("anna", "k")
        assert found is not None
        assert found.id == mine.id
        assert [one.owner for one in await store.events()] == ["anna", "anna", "bob"]
        assert [one.owner for one in await store.usage_reports_like("anna", "c", limit=9)] == ["anna"]
        assert await store.usage_reports_like("ann", "c", limit=9) == []

    async def test_events_of_a_tenant_follow_with_and_without_a_workload(self, store: Store) -> None:
        mine = _ended("ann", "optics")
        alone = replace(make.event(2), owner=None, tenant="optics", workload_id=None)
        image = replace(make.event(3), owner="ann", tenant="optics", workload_id=None)
        other = replace(make.event(4), owner=None, tenant="chemistry", workload_id=None)
        await store.commit(Batch([mine], events=[make.event(1, mine), alone, image, other]))
        await _rename(store, Subject.TENANT, "optics", "photonics")
        assert [one.tenant for one in await store.events()] == ["photonics", "photonics", "photonics", "chemistry"]

    @pytest.mark.parametrize("subject", list(Subject))
    async def test_totals_of_deleted_work_get_the_new_name(self, store: Store, subject: Subject) -> None:
        column = _COLUMNS[subject]
        gone = [_ended("ann", "optics"), _ended("bob", "chemistry")]
        await store.commit(Batch(gone))
        await store.commit(Batch(expired=[one.id for one in gone]))
        day = (gone[0].since // DAY_S) * DAY_S
        since, until = day - DAY_S, day + 2 * DAY_S
        name, other = (getattr(one.spec, column) for one in gone)
        before = {one.subject: one for one in await store.usage(since=since, until=until, by=column)}
        await _rename(store, subject, name, "new")
        after = {one.subject: one for one in await store.usage(since=since, until=until, by=column)}
        assert after == {"new": replace(before[name], subject="new"), other: before[other]}

    async def test_live_work_keeps_its_name_and_its_former_attempts_get_the_new_one(self, store: Store) -> None:
        live = replace(_ended("ann", "optics"), state=State.QUEUED)
        await store.commit(Batch([live]))
        await _rename(store, Subject.USER, "ann", "anna")
        assert (await store.workload(live.id)).spec.owner == "ann"
        assert [one.subject for one in await _usage(store, "owner")] == ["anna"]

    async def test_reassigned_work_leaves_its_former_attempts_with_their_payer(self, store: Store) -> None:
        before = replace(_ended("ann", "optics", key="k"), state=State.QUEUED)
        await store.commit(Batch([before]))
        after = _charged(before, owner="bob", tenant="chemistry", key=None)
        await store.commit(Batch(updates=[after], reassigned=[after]))
        found = await store.workload(before.id)
        assert (found.spec.owner, found.spec.tenant) == ("bob", "chemistry")
        assert [one.spec.owner for one in await store.live()] == ["bob"]
        assert (await store.workloads(Filter(owner="bob"), limit=9)).items == [found]
        assert await store.workload_by_key("ann", "k") is None
        assert await store.workload_by_key("bob", "k") is None
        assert [one.subject for one in await _usage(store, "owner")] == ["ann"]
        again = make.attempt(before.id, 2, State.RUNNING)
        running = replace(after, version=3, attempt=again, state=State.RUNNING)
        await store.commit(Batch(updates=[running]))
        assert [one.subject for one in await _usage(store, "owner")] == ["ann", "bob"]

    async def test_reassigned_work_that_keeps_its_key_is_found_by_it(self, store: Store) -> None:
        members = make.array(3, owner="ann", key="k")
        await store.commit(Batch(members))
        after = [_charged(one, owner="anna") for one in members]
        await store.commit(Batch(updates=after, reassigned=after))
        assert await store.workload_by_key("ann", "k") is None
        found = await store.workload_by_key("anna", "k")
        assert found is not None
        assert found.id == members[0].id
        await store.commit(Batch([make.workload(spec_=make.spec(owner="ann", key="k"))]))
