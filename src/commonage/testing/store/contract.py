"""Contract tests for every store. Inherit StoreContract in a test class and supply the fixture `store`, empty and open.

This file covers writing; the other `store_…_contract` files cover the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given

from commonage.domain.errors import CommonageError, Conflict, InvalidInput, NotFound, StaleVersion, Unavailable
from commonage.domain.nodes import Node, NodeKey
from commonage.domain.reasons.attempts import StartFailed
from commonage.domain.workloads import State, Workload
from commonage.ports.store import Batch, Filter, Store, Visible
from commonage.testing import factories as make
from commonage.testing import strategies as some
from commonage.testing.store.images_contract import StoreImagesContract
from commonage.testing.store.offboarding_contract import StoreOffboardingContract
from commonage.testing.store.reading_contract import StoreReadingContract, some_examples
from commonage.testing.store.reservations_contract import StoreReservationsContract
from commonage.testing.store.resources_contract import StoreResourcesContract
from commonage.testing.store.retention_contract import StoreRetentionContract
from commonage.testing.store.usage_reports_contract import StoreUsageReportsContract

_EVERYTHING = Filter()


def as_kept(workload: Workload) -> Workload:
    """The workload as the store returns it: the values of secrets are removed at its end."""
    return replace(workload, spec=workload.spec.without_secrets()) if workload.state.is_terminal else workload


async def outcome(store: Store, batch: Batch) -> str | None:
    """The problem code of a failed commit, None for a successful one."""
    try:
        await store.commit(batch)
    except CommonageError as error:
        return error.problem_code
    return None


@pytest.mark.anyio
class StoreContract(
    StoreReadingContract,
    StoreUsageReportsContract,
    StoreReservationsContract,
    StoreResourcesContract,
    StoreImagesContract,
    StoreRetentionContract,
    StoreOffboardingContract,
):
    """Writing is atomic, durable, and loses no concurrent change."""

    async def test_new_store_is_empty(self, store: Store) -> None:
        assert await store.live() == []
        assert await store.last_event_seq() == 0
        assert await store.last_workload_id() is None
        assert (await store.workloads(_EVERYTHING, limit=10)).items == []
        assert (await store.workloads(_EVERYTHING, limit=10)).next_cursor is None
        assert await store.count(_EVERYTHING) == {}
        assert await store.events() == []
        assert await store.nodes() == []
        assert await store.usage(since=0, until=2e9, by="owner") == []
        assert await store.workload_by_key("ann", "key") is None

    async def test_empty_batch_is_nothing(self, store: Store) -> None:
        await store.commit(Batch())

    @some_examples
    @given(history=some.histories())
    async def test_what_is_read_is_what_was_written(self, store: Store, history: tuple[Workload, Workload]) -> None:
        first, second = history
        await store.commit(Batch(inserts=[first]))
        assert await store.workload(first.id) == as_kept(first)
        await store.commit(Batch(updates=[second]))
        assert await store.workload(first.id) == as_kept(second)
        assert (await store.workloads(_EVERYTHING, limit=1)).items == [as_kept(second)]
        tries = {each.attempt.id: each.attempt for each in (first, second) if each.attempt}
        assert {each.id: each for each in await store.attempts(first.id)} == tries

    async def test_text_that_no_database_holds_stops_nothing(self, store: Store) -> None:
        odd = "broken \x00 output \ud800 of a program"
        why = StartFailed(error=odd)
        run = make.attempt(reason=why)
        workload = make.workload(
            State.RUNNING, id=run.workload_id, attempt=run, reason=why, name=odd, variables=((odd, odd),)
        )
        await store.commit(Batch(inserts=[workload], events=[make.event(1, workload, reason=why)]))
        kept = await store.workload(workload.id)
        assert isinstance(kept.reason, StartFailed)
        assert kept.reason.error.startswith("broken ") and kept.reason.error.endswith(" of a program")
        with pytest.raises(NotFound):
            await store.workload(odd)
        assert await store.workload_by_key(odd, odd) is None
        assert await store.attempts(odd) == []
        assert await store.events(workload_id=odd, visible=Visible(odd, (odd,), (odd,))) == []
        assert (await store.workloads(Filter(owner=odd, text=odd), limit=1)).items == []

    async def test_it_survives_closing(self, store: Store) -> None:
        workload = make.workload(State.RUNNING, secrets=(("TOKEN", "hush"),))
        await store.commit(Batch([workload], events=[make.event(7, workload)], nodes=[make.node("a", 2)]))
        await store.close()
        await store.open()
        assert await store.live() == [workload]
        assert await store.last_event_seq() == 7
        assert await store.last_workload_id() == workload.id
        assert await store.nodes() == [make.node("a", 2)]

    async def test_closed_store_is_unavailable(self, store: Store) -> None:
        await store.close()
        with pytest.raises(Unavailable):
            await store.commit(Batch([make.workload()]))
        with pytest.raises(Unavailable):
            await store.live()

    # --- versions ---

    async def test_update_must_follow_the_version_there(self, store: Store) -> None:
        first = make.workload()
        await store.commit(Batch([first]))
        second = make.changed(first, state=State.RUNNING)
        await store.commit(Batch(updates=[second]))
        for stale in (first, second, replace(second, version=4), make.changed(make.workload())):
            with pytest.raises(StaleVersion):
                await store.commit(Batch(updates=[stale]))
        assert await store.workload(first.id) == second

    async def test_several_changes_of_one_workload_in_a_batch(self, store: Store) -> None:
        first = make.workload()
        second = make.changed(first, state=State.STARTING, attempt=make.attempt(first.id, 1, State.STARTING))
        third = make.changed(second, state=State.RUNNING, attempt=make.attempt(first.id, 2, State.RUNNING))
        await store.commit(Batch([first], updates=[second]))
        assert await store.workload(first.id) == second
        fourth = make.changed(third, reason=StartFailed(error="on"))
        await store.commit(Batch(updates=[third, fourth]))
        assert await store.workload(first.id) == fourth
        assert [each.number for each in await store.attempts(first.id)] == [1, 2]
        with pytest.raises(StaleVersion):
            await store.commit(Batch(updates=[make.changed(fourth), make.changed(fourth)]))

    async def test_of_two_changes_at_once_one_is_refused_whole(self, store: Store) -> None:
        for round_ in range(5):
            disputed, *others = [make.workload() for _ in range(4)]
            await store.commit(Batch([disputed, others[0], others[1]]))
            rivals = []
            for number in (0, 1):
                mine = make.changed(disputed, reason=StartFailed(error=f"of {number}"))
                also = make.changed(others[number], reason=StartFailed(error="also"))
                new = make.workload(name=f"new of {number}")
                told = make.event(round_ * 2 + number + 1, new)
                rivals.append(Batch([new], [also, mine], [told], [make.node(f"{round_}-{number}")]))
            outcomes = await asyncio.gather(*(outcome(store, each) for each in rivals))
            assert sorted(outcomes, key=str) == [None, "stale-version"]
            await self._is_whole_or_not_at_all(store, rivals, outcomes)

    async def _is_whole_or_not_at_all(
        self, store: Store, batches: Sequence[Batch], outcomes: Sequence[str | None]
    ) -> None:
        seqs = {event.seq for event in await store.events(limit=10_000)}
        names = {node.name for node in await store.nodes()}
        ids = {each.id for each in (await store.workloads(_EVERYTHING, limit=10_000)).items}
        for batch, failed in zip(batches, outcomes, strict=True):
            written = failed is None
            assert all((event.seq in seqs) is written for event in batch.events)
            assert all((node.name in names) is written for node in batch.nodes)
            assert all((each.id in ids) is written for each in batch.inserts)
            for each in batch.updates:
                kept = await store.workload(each.id) if each.id in ids else None
                assert (kept == each) is written
                assert (
                    {t.id for t in await store.attempts(each.id)} >= {t.id for t in [each.attempt] if t}
                ) or not written

    async def test_many_commits_at_once_lose_nothing(self, store: Store) -> None:
        workloads = [make.workload() for _ in range(40)]
        await asyncio.gather(
            *(store.commit(Batch([each], events=[make.event(i + 1, each)])) for i, each in enumerate(workloads))
        )
        later = [make.changed(each, state=State.RUNNING, attempt=make.attempt(each.id)) for each in workloads]
        await asyncio.gather(
            *(store.commit(Batch(updates=[each], events=[make.event(i + 101, each)])) for i, each in enumerate(later))
        )
        assert await store.live() == later
        assert len(await store.events()) == 80

    async def test_nobody_sees_half_a_batch(self, store: Store) -> None:
        seen: list[int] = []

        async def look() -> None:
            while sum(seen[-1:]) < 50:
                seen.append(sum((await store.count(_EVERYTHING)).values()))

        async def write() -> None:
            for _ in range(5):
                await store.commit(Batch([make.workload() for _ in range(10)]))

        await asyncio.gather(look(), write())
        assert all(number % 10 == 0 for number in seen)

    async def test_a_cancelled_commit_is_whole_or_not_at_all(self, store: Store) -> None:
        for _ in range(5):
            batch = Batch([make.workload() for _ in range(20)])
            commit = asyncio.ensure_future(store.commit(batch))
            await asyncio.sleep(0)
            commit.cancel()
            await asyncio.gather(commit, return_exceptions=True)
            after = make.workload()
            await store.commit(Batch([after]))
            ids = {each.id for each in await store.live()}
            assert after.id in ids
            assert len(ids & {each.id for each in batch.inserts}) in (0, 20)

    # --- all or nothing ---

    @pytest.mark.parametrize(
        "fault", ["stale", "unknown", "same id", "same key", "key twice", "same event", "event twice"]
    )
    async def test_one_fault_and_nothing_is_written(self, store: Store, fault: str) -> None:
        there = make.workload(key="taken")
        other = make.workload()
        await store.commit(Batch([there, other], events=[make.event(1, there)]))
        new = make.workload(key="mine", secrets=(("A", "b"),))
        changed = make.changed(other, state=State.RUNNING, attempt=make.attempt(other.id))
        batch = Batch([new], [changed], [make.event(2, new)], [make.node("b")])
        match fault:
            case "stale":
                batch.updates.append(replace(there, version=3))
            case "unknown":
                batch.updates.append(make.changed(make.workload()))
            case "same id":
                batch.inserts.append(make.workload(id=there.id))
            case "same key":
                batch.inserts.append(make.workload(key="taken"))
            case "key twice":
                batch.inserts.append(make.workload(key="mine"))
            case "same event":
                batch.events.append(make.event(1, new))
            case "event twice":
                batch.events.append(make.event(2, new))
        codes = {
            "stale": "stale-version",
            "unknown": "stale-version",
            "same key": "key-taken",
            "key twice": "key-taken",
        }
        with pytest.raises(Conflict) as caught:
            await store.commit(batch)
        assert caught.value.problem_code == codes.get(fault, "conflict")
        assert await store.live() == [there, other]
        assert await store.attempts(other.id) == []
        assert [event.seq for event in await store.events()] == [1]
        assert await store.nodes() == []
        assert await store.workload_by_key("ann", "mine") is None

    # --- client keys ---

    async def test_a_key_leads_to_what_was_submitted_with_it(self, store: Store) -> None:
        anns, bobs = make.workload(key="k"), make.workload(key="k", owner="bob")
        await store.commit(Batch([anns, bobs, make.workload(key="other"), make.workload(), make.workload()]))
        assert await store.workload_by_key("ann", "k") == anns
        assert await store.workload_by_key("bob", "k") == bobs
        assert await store.workload_by_key("carl", "k") is None
        assert await store.workload_by_key("ann", "K") is None
        ended = make.changed(anns, state=State.SUCCEEDED)
        await store.commit(Batch(updates=[ended]))
        assert await store.workload_by_key("ann", "k") == ended
        assert await outcome(store, Batch([make.workload(key="k")])) == "key-taken"

    async def test_an_array_shares_its_key(self, store: Store) -> None:
        members = make.array(5, key="sweep")
        await store.commit(Batch(members))
        assert await store.workload_by_key("ann", "sweep") == members[0]
        assert await store.live() == members
        assert await outcome(store, Batch(make.array(2, key="sweep"))) == "key-taken"

    async def test_of_two_with_one_key_at_once_one_wins(self, store: Store) -> None:
        for round_ in range(5):
            rivals = [make.workload(key=f"key-{round_}") for _ in range(4)]
            outcomes = await asyncio.gather(*(outcome(store, Batch([each])) for each in rivals))
            assert sorted(outcomes, key=str) == [None, *["key-taken"] * 3]
            winner = rivals[outcomes.index(None)]
            assert await store.workload_by_key("ann", f"key-{round_}") == winner

    # --- secrets ---

    async def test_secrets_end_with_the_workload(self, store: Store) -> None:
        hush = (("TOKEN", "hush"), ("ä", "∞"))
        members = make.array(3, secrets=hush, key="array")
        alone = make.workload(secrets=hush)
        await store.commit(Batch([*members, alone]))
        assert await store.live() == [*members, alone]
        ended = [make.changed(each, state=State.STOPPED) for each in (members[0], alone)]
        await store.commit(Batch(updates=ended))
        assert [each.spec.secrets for each in await store.live()] == [hush, hush]
        kept = [as_kept(each) for each in ended]
        assert [await store.workload(each.id) for each in ended] == kept
        assert await store.workload_by_key("ann", "array") == kept[0]
        page = await store.workloads(Filter(states=[State.STOPPED]), limit=10)
        assert page.items == kept[::-1]
        again = make.changed(ended[0], reason=StartFailed(error="still"))
        await store.commit(Batch(updates=[again]))
        assert (await store.workload(again.id)).spec.secrets == ()

    async def test_secrets_of_one_that_never_lived_are_not_kept(self, store: Store) -> None:
        born = make.workload(secrets=(("A", "b"),))
        stillborn = make.workload(State.FAILED, secrets=(("A", "b"),))
        await store.commit(Batch([born, stillborn], updates=[make.changed(born, state=State.STOPPED)]))
        assert (await store.workload(born.id)).spec.secrets == ()
        assert (await store.workload(stillborn.id)).spec.secrets == ()

    # --- nodes ---

    @some_examples
    @given(one=some.nodes(), other=some.nodes())
    async def test_nodes_are_replaced_by_site_and_name(self, store: Store, one: Node, other: Node) -> None:
        other = replace(other, site=one.site, name=one.name)
        await store.commit(Batch(nodes=[one]))
        assert one in await store.nodes()
        await store.commit(Batch(nodes=[one, other]))
        there = await store.nodes()
        assert [each for each in there if each.key == one.key] == [other]
        assert there == sorted(there, key=lambda each: each.key)

    async def test_a_node_that_was_removed_is_gone(self, store: Store) -> None:
        gone, other = make.node("gone"), make.node("stays")
        elsewhere = replace(gone, site="elsewhere")
        await store.commit(Batch(nodes=[gone, other, elsewhere]))
        await store.commit(Batch(departed=[gone.key, NodeKey(gone.site, "never there")]))
        assert await store.nodes() == sorted([other, elsewhere], key=lambda each: each.key)
        await store.commit(Batch(nodes=[gone]))
        assert gone in await store.nodes()

    async def test_what_is_unknown_is_not_found(self, store: Store) -> None:
        await store.commit(Batch([make.workload()]))
        for name in ("", "x", make.workload_id(), "é" * 1000):
            with pytest.raises(NotFound) as caught:
                await store.workload(name)
            assert caught.value.problem_code == "workload-not-found"
            assert await store.attempts(name) == []

    async def test_usage_by_something_else_is_invalid(self, store: Store) -> None:
        with pytest.raises(InvalidInput):
            await store.usage(since=0, until=1, by="colour")
