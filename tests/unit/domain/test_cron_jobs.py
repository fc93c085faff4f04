"""Cron jobs: their times, also over clock changes, and what runs after outages and steps of the clock."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonage.domain.cron_jobs import (
    CronRule,
    Decision,
    MissedRuns,
    Overlap,
    decide,
    run_id,
    slot_of,
)
from commonage.domain.errors import InvalidInput
from commonage.domain.reasons.cron_jobs import MAX_COUNTED, PreviousRunActive, StartingDeadlinePassed
from commonage.domain.workloads import IdSequence, is_workload_id

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Pacific/Apia"]
SCHEDULES = [
    "* * * * *",
    "*/15 * * * *",
    "30 2 * * *",
    "0 3 * * *",
    "0 7 * * 1-5",
    "15 */6 * * *",
    "0 0 29 2 *",
    "0 12 L * *",
    "@hourly",
    "0 1,2,3 * * 0",
]
DAY_S = 86_400.0
instants = st.floats(1.5e9, 2.5e9)
rules = st.builds(CronRule, st.sampled_from(SCHEDULES), st.sampled_from(ZONES))


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def local(instant: float, zone: ZoneInfo = BERLIN) -> str:
    return datetime.fromtimestamp(instant, zone).isoformat()


def test_times_are_local_times_of_the_zone() -> None:
    rule = CronRule("0 7 * * 1-5", "Europe/Berlin")
    found = rule.next_times(at("2026-11-27 06:59"))
    assert [local(one) for one in found] == [
        "2026-11-27T07:00:00+01:00",
        "2026-11-30T07:00:00+01:00",
        "2026-12-01T07:00:00+01:00",
        "2026-12-02T07:00:00+01:00",
        "2026-12-03T07:00:00+01:00",
    ]


def test_a_time_that_the_clock_repeats_runs_once() -> None:
    rule = CronRule("30 2 * * *", "Europe/Berlin")
    found = rule.next_times(at("2026-10-24 12:00"), 2)
    assert [local(one) for one in found] == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    assert next(rule.after(at("2026-10-25 02:10", fold=1))) == found[1], "the hour that is repeated has begun"


def test_a_time_that_the_clock_skips_runs_right_after_it() -> None:
    found = CronRule("30 2 * * *", "Europe/Berlin").next_times(at("2026-03-28 12:00"), 2)
    assert [local(one) for one in found] == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]


def test_a_step_in_minutes_goes_on_through_the_repeated_hour() -> None:
    found = list(islice(CronRule("*/30 * * * *", "Europe/Berlin").after(at("2026-10-25 01:45")), 6))
    assert {later - earlier for earlier, later in pairwise(found)} == {1800.0}


@pytest.mark.parametrize("schedule", ["", "0 7 * *", "0 0 30 2 *", "61 * * * *", "0 0 7 * * 1", "x" * 101, "é * * * *"])
def test_bad_schedules_are_refused_with_the_field(schedule: str) -> None:
    with pytest.raises(InvalidInput) as error:
        CronRule(schedule).check()
    assert (error.value.field, error.value.problem_code) == ("schedule", "invalid-schedule")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "", "+25:00", "a\x00b"])
def test_unknown_time_zones_are_refused(zone: str) -> None:
    with pytest.raises(InvalidInput) as error:
        CronRule("0 7 * * *", zone).check()
    assert error.value.field == "time_zone"


@settings(max_examples=150, deadline=None)
@given(rules, instants)
def test_times_rise_and_do_not_depend_on_where_the_search_begins(rule: CronRule, begin: float) -> None:
    times = list(islice(rule.after(begin), 6))
    assert all(earlier < later for earlier, later in pairwise([begin, *times]))
    assert all(one == int(one) and int(one) % 60 == 0 for one in times)
    for index, one in enumerate(times[:-1]):
        assert next(rule.after(one)) == times[index + 1]
        assert next(rule.after(one - 1)) == one
        assert next(rule.after((one + times[index + 1]) / 2)) == times[index + 1]


@settings(max_examples=100, deadline=None)
@given(rules, instants, st.floats(0, 60 * DAY_S))
def test_the_newest_time_of_a_span_is_the_last_one_in_it(rule: CronRule, begin: float, span_s: float) -> None:
    until = begin + span_s
    found = rule.newest(begin, until)
    if found is None:
        assert next(rule.after(begin)) > until
    else:
        assert begin < found <= until < next(rule.after(found))


def test_after_a_long_outage_only_the_newest_time_runs() -> None:
    rule = CronRule("* * * * *")
    assert decide(rule, 1.7e9, 1.7e9 + 3 * 365 * DAY_S) == Decision(1.7e9 + 3 * 365 * DAY_S - 20, MAX_COUNTED)


def test_missed_times_are_skipped_if_asked() -> None:
    rule = CronRule("0 7 * * *", missed_runs=MissedRuns.SKIP)
    due_at = at("2026-11-24 07:00", ZoneInfo("UTC"))
    on_time, late = decide(rule, due_at - DAY_S, due_at + 30), decide(rule, due_at - DAY_S, due_at + 90)
    assert on_time == Decision(due_at)
    assert late == Decision(due_at, 0, StartingDeadlinePassed(late_s=90.0, deadline_s=60))


@pytest.mark.parametrize("missed", list(MissedRuns))
def test_a_run_starts_within_its_starting_deadline_or_not_at_all(missed: MissedRuns) -> None:
    rule = CronRule("0 7 * * *", missed_runs=missed, starting_deadline_s=600)
    due_at = at("2026-11-24 07:00", ZoneInfo("UTC"))
    inside, outside = decide(rule, due_at - DAY_S, due_at + 600), decide(rule, due_at - DAY_S, due_at + 601)
    assert inside is not None and inside.refused is None
    assert outside is not None and isinstance(outside.refused, StartingDeadlinePassed)


@pytest.mark.parametrize(("overlap", "runs"), [(Overlap.ALLOW, True), (Overlap.SKIP, False), (Overlap.REPLACE, True)])
def test_an_active_run_stops_the_next_only_under_skip(overlap: Overlap, runs: bool) -> None:
    due_at = at("2026-11-24 07:00", ZoneInfo("UTC"))
    found = decide(CronRule("0 7 * * *", overlap=overlap), due_at - 1, due_at, active="w1")
    assert found == Decision(due_at, 0, None if runs else PreviousRunActive(workload_id="w1"))


@settings(max_examples=80, deadline=None)
@given(
    st.builds(
        CronRule,
        st.sampled_from(SCHEDULES),
        st.sampled_from(ZONES),
        st.sampled_from(Overlap),
        st.sampled_from(MissedRuns),
        st.none() | st.integers(0, 7200),
    ),
    instants,
    st.lists(st.tuples(st.floats(-2 * DAY_S, 3 * DAY_S), st.booleans()), min_size=1, max_size=12),
)
def test_each_time_is_decided_once_whatever_the_clock_does(
    rule: CronRule, begin: float, turns: list[tuple[float, bool]]
) -> None:
    """The clock goes on, stands still in outages, and steps back and forward."""
    now = decided_until = begin
    decided: list[float] = []
    for step_s, active in turns:
        now += step_s
        found = decide(rule, decided_until, now, "w1" if active else "")
        if found is None:
            due_at = rule.newest(decided_until, now)
            assert due_at is None
            continue
        assert decided_until < found.due_at <= now
        decided.append(found.due_at)
        decided_until = found.due_at
        assert decide(rule, decided_until, now, "") is None, "at the same moment there is nothing more to do"
    assert all(earlier < later for earlier, later in pairwise(decided))


@given(st.text("0123456789abcdef", min_size=1), st.integers(25_000_000, 60_000_000))
def test_the_id_of_a_run_is_a_workload_id_that_is_not_later_than_its_time(cron_job: str, minute: int) -> None:
    due_at = minute * 60.0
    found = run_id(cron_job, due_at)
    assert found == run_id(cron_job, due_at)
    assert is_workload_id(found)
    assert found < IdSequence().next(due_at, 0)
    assert IdSequence().next(due_at - 61, (1 << 19) - 1) < found


@given(st.lists(st.text("0123456789abcdef", min_size=8, max_size=14), unique=True, min_size=2, max_size=30))
def test_runs_at_one_time_differ_by_the_slot_of_their_cron_job(cron_jobs: list[str]) -> None:
    assert len({run_id(one, 1.8e9) for one in cron_jobs}) == len({slot_of(one) for one in cron_jobs})


def test_a_rule_ends_where_the_calendar_ends() -> None:
    assert CronRule("0 0 1 1 *").next_times(datetime(9999, 6, 1, tzinfo=UTC).timestamp()) == ()
