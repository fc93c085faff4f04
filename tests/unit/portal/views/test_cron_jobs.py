"""Pages of cron jobs: created from the launch form with the next times shown, listed, suspended, run, removed."""

from __future__ import annotations

import pytest
from tests.fakes.portal import Portal
from tests.unit.portal.conftest import Person
from tests.unit.portal.test_pages import assert_whole

from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
JOB = {"kind": "job", "command": "python report.py", "name": "report", "schedule": "0 7 * * 1-5",
       "time_zone": "Europe/Berlin", "overlap": "replace", "missed_runs": "skip",
       "starting_deadline": "10m"}  # fmt: skip
SEVEN = [f"2023-11-{day}T06:00:00Z" for day in (15, 16, 17, 20, 21)]


async def test_the_form_shows_the_next_five_times_while_one_types(portal: Portal, ann: Person) -> None:
    shown = (await ann.post("launch/dry-run", JOB, HX_Request="true")).text
    assert [one for one in SEVEN if one in shown] == SEVEN
    wrong = (await ann.post("launch/dry-run", {**JOB, "schedule": "0 7 * *"}, HX_Request="true")).text
    assert "it has 4 fields, not 5" in wrong
    assert "Next five times" not in wrong
    once = (await ann.post("launch/dry-run", {**JOB, "kind": "session"}, HX_Request="true")).text
    assert "Next five times" not in once


async def test_a_cron_job_is_created_listed_and_changed(portal: Portal, ann: Person, clock: FakeClock) -> None:
    assert "No cron jobs" in (await ann.get("cron-jobs")).text
    created = await ann.post("launch", JOB)
    assert created.status_code == 303
    path = created.headers["location"].partition("/cron-jobs/")[2]
    page = await ann.get(f"cron-jobs/{path}")
    assert_whole(page.text)
    for words in ("0 7 * * 1-5", "Europe/Berlin", "replace", "skip", "10 min", "No runs yet", *SEVEN):
        assert words in page.text
    for verb, words in (("suspend", "none: it is suspended"), ("resume", SEVEN[0])):
        assert (await ann.post(f"cron-jobs/{path}/{verb}")).status_code == 303
        assert words in (await ann.get(f"cron-jobs/{path}")).text
    run = await ann.post(f"cron-jobs/{path}/trigger")
    run_id = run.headers["location"].rpartition("/")[2]
    assert f"workloads/{run_id}" in (await ann.get(f"cron-jobs/{path}")).text
    assert f"cron-jobs/{path}" in (await ann.get(f"workloads/{run_id}")).text
    listed = await ann.get("cron-jobs")
    assert_whole(listed.text)
    assert (await ann.post(f"cron-jobs/{path}/remove")).status_code == 303
    assert "No cron jobs" in (await ann.get("cron-jobs")).text
    assert (await ann.get(f"cron-jobs/{path}")).status_code == 404


async def test_an_error_of_the_schedule_keeps_what_was_entered(portal: Portal, ann: Person) -> None:
    refused = await ann.post("launch", {**JOB, "time_zone": "Mars/Olympus"})
    assert refused.status_code == 422
    assert_whole(refused.text)
    assert "Mars/Olympus" in refused.text and 'value="0 7 * * 1-5"' in refused.text
    assert "No cron jobs" in (await ann.get("cron-jobs")).text


async def test_a_second_one_of_the_same_name_is_refused(portal: Portal, ann: Person) -> None:
    await ann.post("launch", JOB)
    again = await ann.post("launch", JOB)
    assert again.status_code == 409
    assert "already" in again.text
