"""Contract tests for reservations, cron jobs and notices of quotas in a store. Part of `contract`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from commonage.domain.classes import Announcement, ClassMeeting, Consent
from commonage.domain.cron_jobs import Overlap
from commonage.domain.errors import Conflict
from commonage.domain.reasons.cron_jobs import PreviousRunActive
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.requests import Request
from commonage.domain.tenants import QuotaNotice, Reservation
from commonage.domain.workloads import State
from commonage.ports.store import Batch, Filter, Store
from commonage.testing import factories as make
from commonage.testing import strategies as some
from commonage.testing.store.reading_contract import some_examples


@pytest.mark.anyio
class StoreReservationsContract:
    """Reservations are found until their window is over, and replaced and removed by id."""

    @some_examples
    @given(asked=some.requests())
    async def test_a_reservation_is_read_as_it_was_written(self, store: Store, asked: Request) -> None:
        written = make.reservation(request=asked, owner="ann", title="a class ü", count=50)
        await store.commit(Batch(reservations=[written]))
        assert await store.reservations(after=make.NOW) == [written]
        await store.commit(Batch(unreserved=[written.id]))

    async def test_cron_jobs_are_read_as_they_were_written_and_removed_by_id(self, store: Store) -> None:
        secret = make.cron_job(secrets=(("TOKEN", "s3cret"),), overlap=Overlap.REPLACE, succeeded_kept=3)
        other = make.cron_job(last_refused=PreviousRunActive(workload_id="w1"), suspended=True, groups=("lab",))
        other = replace(other, site="clinic", removed=True)
        await store.commit(Batch(cron_jobs=[secret, other]))
        assert await store.cron_jobs() == [secret, other]
        moved_on = replace(secret, decided_until=make.NOW + 60)
        await store.commit(Batch(cron_jobs=[moved_on], removed_cron_jobs=[other.id, "never-there"]))
        assert await store.cron_jobs() == [moved_on]

    async def test_meetings_of_classes_are_read_as_they_were_written_and_removed_by_id(self, store: Store) -> None:
        asked = Consent("ann", "grace", None, make.NOW)
        meeting = ClassMeeting(
            "ml@1", "ml", 1.0, 2.0, announcement=Announcement("Hi ü", "grace", 1.5), consents=(asked,)
        )
        other = ClassMeeting("ml@9", "ml", 9.0, 10.0)
        await store.commit(Batch(class_meetings=[meeting, other]))
        assert await store.class_meetings() == [meeting, other]
        after = replace(meeting, over=True)
        await store.commit(Batch(class_meetings=[after], removed_class_meetings=[other.id]))
        assert await store.class_meetings() == [after]

    async def test_runs_are_found_by_their_cron_job(self, store: Store) -> None:
        runs = [make.workload(cron_job="c1", due_at=make.NOW), make.workload(State.FAILED, cron_job="c1")]
        await store.commit(Batch(inserts=[*runs, make.workload(cron_job="c2"), make.workload()]))
        found = await store.workloads(Filter(cron_job="c1"), limit=10)
        assert list(found.items) == runs[::-1]
        assert (await store.workloads(Filter(cron_job="c1", states=[State.FAILED]), limit=10)).items == [runs[1]]
        assert await store.count(Filter(cron_job="c2")) == {State.QUEUED: 1}

    async def test_a_run_and_the_progress_of_its_cron_job_are_written_together_or_not_at_all(
        self, store: Store
    ) -> None:
        cron_job, run = make.cron_job(), make.workload(key="c1:60")
        await store.commit(Batch(cron_jobs=[cron_job], inserts=[run]))
        again = Batch(cron_jobs=[replace(cron_job, decided_until=60.0)], inserts=[make.workload(key="c1:60")])
        with pytest.raises(Conflict):
            await store.commit(again)
        assert await store.cron_jobs() == [cron_job]

    async def test_reservations_come_in_the_order_in_which_they_begin(self, store: Store) -> None:
        windows = [(50.0, 60.0), (10.0, 99.0), (10.0, 20.0)]
        written = [make.reservation(make.NOW + start, make.NOW + end) for start, end in windows]
        await store.commit(Batch(reservations=written))
        assert await store.reservations(after=make.NOW) == [written[1], written[2], written[0]]

    async def test_those_that_are_over_are_left_out(self, store: Store) -> None:
        early, late = make.reservation(make.NOW, make.NOW + 10), make.reservation(make.NOW, make.NOW + 20)
        await store.commit(Batch(reservations=[early, late]))
        assert await store.reservations(after=make.NOW + 10) == [late]
        assert await store.reservations(after=make.NOW + 9.5) == [early, late]

    async def test_a_newer_word_replaces_the_older(self, store: Store) -> None:
        first = make.reservation()
        longer = replace(first, ends_at=first.ends_at + 60, count=7)
        await store.commit(Batch(reservations=[first]))
        await store.commit(Batch(reservations=[first, longer]))
        assert await store.reservations(after=make.NOW) == [longer]

    async def test_what_is_taken_away_is_gone_and_the_rest_stays(self, store: Store) -> None:
        one, other = make.reservation(), make.reservation()
        await store.commit(Batch(reservations=[one, other]))
        await store.commit(Batch(unreserved=[one.id, "never-there"]))
        assert await store.reservations(after=make.NOW) == [other]

    async def test_quota_notices_are_replaced_by_their_bound(self, store: Store) -> None:
        first = QuotaNotice("notices", QuotaScope.USER, "ann", Resource.GPU_HOURS, 80, make.NOW, make.NOW + 5)
        other = replace(first, scope=QuotaScope.MODEL, name="A100")
        old = replace(first, resource=Resource.STORAGE, period_at=make.NOW - 1)
        await store.commit(Batch(quota_notices=[first, other, old]))
        full = replace(first, level=100, at=make.NOW + 9)
        await store.commit(Batch(quota_notices=[full]))
        found = [one for one in await store.quota_notices(since=make.NOW) if one.tenant == "notices"]
        assert found == [other, full]

    async def test_odd_text_does_no_harm(self, store: Store) -> None:
        odd: Reservation = make.reservation(title="nul \x00 and \ud800")
        await store.commit(Batch(reservations=[odd]))
        (found,) = await store.reservations(after=make.NOW)
        assert (found.id, found.title[:4]) == (odd.id, "nul ")
