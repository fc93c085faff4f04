"""The contract of the store is worth nothing if it lets a broken store pass: each of these must fail."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from commonage.domain.errors import CommonageError
from commonage.domain.images import Image
from commonage.domain.tenants import Reservation
from commonage.domain.usage import Usage, UsageReport
from commonage.domain.workloads import Attempt, State, Workload
from commonage.ports.store import Batch, Filter, Page, Store, Visible
from commonage.testing.fakes.store import MemoryStore, Shelf
from commonage.testing.store.contract import StoreContract

suite = StoreContract()


class LosesAnEvent(MemoryStore):
    def write(self, batch: Batch) -> None:
        super().write(replace(batch, events=batch.events[:-1]))


class IgnoresVersions(MemoryStore):
    def check_version(self, workload: Workload, versions: dict[str, int]) -> None:
        pass


class WritesBeforeItChecks(MemoryStore):
    async def commit(self, batch: Batch) -> None:
        self.write(Batch(inserts=batch.inserts, events=batch.events))
        await super().commit(Batch(updates=batch.updates, nodes=batch.nodes))


class ChecksTooEarly(MemoryStore):
    async def commit(self, batch: Batch) -> None:
        self.check(batch)
        await asyncio.sleep(0)
        self.write(batch)


class ForgetsWhenClosed(MemoryStore):
    async def close(self) -> None:
        self.shelf = Shelf()
        await super().close()


class KeepsSecrets(MemoryStore):
    def write(self, batch: Batch) -> None:
        super().write(batch)
        for workload in [*batch.inserts, *batch.updates]:
            self.shelf.workloads[workload.id] = workload


class ForgetsTries(MemoryStore):
    async def attempts(self, workload_id: str) -> Sequence[Attempt]:
        return (await super().attempts(workload_id))[-1:]


class SkipsOneBetweenPages(MemoryStore):
    async def workloads(self, which: Filter, *, limit: int, cursor: str | None = None) -> Page[Workload]:
        page = await super().workloads(which, limit=limit, cursor=cursor)
        return page if cursor is None else replace(page, items=page.items[1:])


class TakesAnyCursor(MemoryStore):
    async def workloads(self, which: Filter, *, limit: int, cursor: str | None = None) -> Page[Workload]:
        try:
            return await super().workloads(which, limit=limit, cursor=cursor)
        except CommonageError:
            return await super().workloads(which, limit=limit)


class CountsWhatHasEnded(MemoryStore):
    async def live(self) -> Sequence[Workload]:
        return sorted(self.shelf.workloads.values(), key=lambda each: each.id)


class ShowsEmptyStates(MemoryStore):
    async def count(self, which: Filter) -> dict[State, int]:
        return dict.fromkeys(State, 0) | await super().count(which)


class CountsBeyondTheWindow(MemoryStore):
    async def usage(
        self,
        *,
        since: float,
        until: float,
        by: str,
        visible: Visible | None = None,
        workload_id: str | None = None,
    ) -> Sequence[Usage]:
        return await super().usage(since=since, until=until + 5, by=by, visible=visible, workload_id=workload_id)


class OneKeyForAll(MemoryStore):
    async def workload_by_key(self, owner: str, key: str) -> Workload | None:
        found: Iterable[Workload] = await self.live()
        return next((each for each in found if each.spec.key == key), None)


class KeepsTheFirstFigures(MemoryStore):
    def write(self, batch: Batch) -> None:
        kept = dict(self.shelf.usage_reports)
        super().write(batch)
        self.shelf.usage_reports.update(kept)


class TellsOthersFigures(MemoryStore):
    async def usage_reports_like(self, owner: str, command_hash: str, *, limit: int) -> Sequence[UsageReport]:
        return [each for each in self.shelf.usage_reports.values() if each.command_hash == command_hash][:limit]


class KeepsWhatIsTakenAway(MemoryStore):
    def write(self, batch: Batch) -> None:
        super().write(replace(batch, unreserved=[]))


class GivesWhatIsOver(MemoryStore):
    async def reservations(self, *, after: float) -> Sequence[Reservation]:
        return await super().reservations(after=0.0)


class ForgetsWhatWasRemoved(MemoryStore):
    async def images(self) -> Sequence[Image]:
        return [each for each in await super().images() if each.removed is None]


class KeepsTheFirstImage(MemoryStore):
    def write(self, batch: Batch) -> None:
        kept = dict(self.shelf.images)
        super().write(replace(batch, images=list(reversed(batch.images))))
        self.shelf.images.update(kept)


Test = Callable[[Store], Awaitable[None]]


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (LosesAnEvent, suite.test_events_are_given_in_order),
        (ForgetsWhatWasRemoved, suite.test_what_was_removed_is_remembered_with_who_did_it),
        (KeepsTheFirstImage, suite.test_a_newer_image_takes_the_name_of_the_older),
        (LosesAnEvent, suite.test_it_survives_closing),
        (IgnoresVersions, suite.test_update_must_follow_the_version_there),
        (IgnoresVersions, suite.test_of_two_changes_at_once_one_is_refused_whole),
        (WritesBeforeItChecks, suite.test_of_two_changes_at_once_one_is_refused_whole),
        (WritesBeforeItChecks, lambda store: suite.test_one_fault_and_nothing_is_written(store, "stale")),
        (ChecksTooEarly, suite.test_of_two_changes_at_once_one_is_refused_whole),
        (ChecksTooEarly, suite.test_of_two_with_one_key_at_once_one_wins),
        (ForgetsWhenClosed, suite.test_it_survives_closing),
        (KeepsSecrets, suite.test_secrets_end_with_the_workload),
        (KeepsSecrets, suite.test_secrets_of_one_that_never_lived_are_not_kept),
        (ForgetsTries, suite.test_tries_are_given_oldest_first),
        (SkipsOneBetweenPages, suite.test_pages_have_no_gaps_while_others_insert),
        (TakesAnyCursor, suite.test_cursor_of_another_list_is_refused),
        (TakesAnyCursor, lambda store: suite.test_broken_cursor_is_refused(store, "x")),
        (CountsWhatHasEnded, suite.test_live_are_those_that_have_not_ended_oldest_first),
        (ShowsEmptyStates, suite.test_new_store_is_empty),
        (CountsBeyondTheWindow, suite.test_usage_of_everybody_is_in_order),
        (KeepsTheFirstFigures, suite.test_the_newest_figures_of_a_try_replace_the_older),
        (TellsOthersFigures, suite.test_usage_reports_alike_are_ended_ones_of_one_owner_newest_first),
        (KeepsWhatIsTakenAway, suite.test_what_is_taken_away_is_gone_and_the_rest_stays),
        (GivesWhatIsOver, suite.test_those_that_are_over_are_left_out),
        (OneKeyForAll, suite.test_a_key_leads_to_what_was_submitted_with_it),
    ],
)
def test_it_bites(broken: type[MemoryStore], test: Test) -> None:
    async def run(store: MemoryStore) -> None:
        await store.open()
        await test(store)

    asyncio.run(run(MemoryStore()))
    # A test that expects an error, and gets none, fails with pytest's own exception.
    with pytest.raises((AssertionError, CommonageError, pytest.fail.Exception)):
        asyncio.run(run(broken()))
