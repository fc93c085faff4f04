"""Cron jobs through the API on every store, and on the command line."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.fakes.waiting import early_in_a_minute, until
from tests.integration.api_world import STORES, Api, make_store, served, serving
from tests.integration.command_line import Run, commonage_at

from commonage.domain.cron_jobs import run_id
from commonage.ports.store import Batch
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
NIGHTLY = {"schedule": "0 7 * * 1-5", "time_zone": "Europe/Berlin", "job": {"command": ["true"], "name": "nightly"}}


@pytest.fixture(params=STORES)
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path, make_store(request.param, tmp_path, request)) as running:
        running.engine.behave(Behaviour(lasts_s=0.1))
        yield running


async def test_a_cron_job_from_creation_to_removal(api: Api) -> None:
    async with api.client("ann") as ann, api.client("bob") as bob:
        considered = (await ann.post("/cron-jobs/dry-run", json=NIGHTLY)).json()
        assert len(considered["next_times"]) == 5
        assert {datetime.fromtimestamp(at, UTC).minute for at in considered["next_times"]} == {0}
        created = await ann.post("/cron-jobs", json=NIGHTLY)
        assert created.status_code == 201
        made = created.json()
        assert (made["next_times"], made["overlap"], made["owner"]) == (considered["next_times"], "skip", "ann")
        path = f"/cron-jobs/{made['id']}"
        again = await ann.post("/cron-jobs", json=NIGHTLY)
        assert (again.status_code, again.json()["code"]) == (409, "cron-job-exists")
        assert (await bob.get(path)).json()["code"] == "cron-job-not-found"
        assert (await bob.get("/cron-jobs")).json()["items"] == []
        assert (await ann.post(f"{path}/suspend")).json()["next_times"] == []
        triggered = await ann.post(f"{path}/trigger", json={"key": "once"})
        assert triggered.status_code == 201
        repeated = await ann.post(f"{path}/trigger", json={"key": "once"})
        assert (repeated.status_code, repeated.json()["ids"]) == (200, triggered.json()["ids"])
        runs = (await ann.get("/workloads", params={"cron_job": made["id"]})).json()["items"]
        assert [(one["id"], one["cron_job"], one["due_at"]) for one in runs] == [
            (triggered.json()["ids"][0], made["id"], None)
        ]
        assert (await ann.post(f"{path}/resume")).json()["suspended"] is False
        assert (await ann.delete(path)).status_code == 200
        assert (await ann.get(path)).status_code == 404


async def test_a_due_time_becomes_a_workload(api: Api) -> None:
    async with api.client("ann") as ann:
        await early_in_a_minute()
        made = (await ann.post("/cron-jobs", json={**NIGHTLY, "schedule": "* * * * *"})).json()
        due_at = time.time() // 60 * 60
        found = api.control.live_state.cron_jobs[made["id"]]
        # As if it had been made two minutes ago: no test waits for a minute to pass.
        await api.control.store.commit(Batch(cron_jobs=[replace(found, decided_until=due_at - 60)]))
        await api.control.cron_jobs.open()

        async def runs() -> bool:
            return bool((await ann.get("/workloads", params={"cron_job": made["id"]})).json()["items"])

        await until(runs)
        run = (await ann.get(f"/workloads/{run_id(made['id'], due_at)}")).json()
        assert (run["cron_job"], run["due_at"], run["key"]) == (made["id"], due_at, f"{made['id']}:{int(due_at)}")

        async def decided() -> bool:
            shown: float | None = (await ann.get(f"/cron-jobs/{made['id']}")).json()["last_due_at"]
            return shown == due_at

        await until(decided)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"schedule": "0 7 * *"}, 422, "invalid-schedule"),
        ({"time_zone": "Mars/Olympus"}, 422, "invalid-input"),
        ({"job": {"kind": "service", "command": ["serve"]}}, 422, "invalid-schedule"),
        ({"job": {"command": ["x"], "environment": "nothing"}}, 422, "unknown-environment"),
        ({"overlap": "both"}, 422, "invalid-input"),
        ({"every": "day"}, 422, "unknown-field"),
        ({"job": {"command": ["x"], "gpus": "4000GiB"}}, 422, "unschedulable"),
    ],
)
async def test_bad_input_is_refused(api: Api, change: dict[str, Any], status: int, code: str) -> None:
    async with api.client("ann") as ann:
        refused = await ann.post("/cron-jobs", json={**NIGHTLY, **change})
        assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("api")) as address:
        yield address


@pytest.fixture
def commonage(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    return commonage_at(url, tmp_path, default_token="ann")


def read(done: Result) -> Any:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_run_with_a_schedule_creates_a_cron_job_and_shows_its_next_times(commonage: Run) -> None:
    run = ("run", "--schedule", "0 7 * * 1-5", "--timezone", "Europe/Berlin", "--name", "report", "--no-files",
           "--starting-deadline", "10m", "--overlap", "replace", "--", "true")  # fmt: skip
    created = commonage(*run)
    assert created.exit_code == 0, created.output
    assert created.stdout.count("07:00 Europe/Berlin (") == 5, "the time zone of this machine is another one"
    (listed,) = read(commonage("cron-job", "ls", "--json"))
    assert (listed["name"], listed["starting_deadline_s"], listed["overlap"]) == ("report", 600, "replace")
    shown = commonage("cron-job", "show", "report").stdout
    assert "0 7 * * 1-5 in Europe/Berlin" in shown and "No runs yet." in shown
    assert "suspended" in commonage("cron-job", "suspend", "report").stdout
    assert "suspended" in commonage("cron-job", "ls").stdout
    (triggered,) = commonage("cron-job", "trigger", "report").stdout.split()
    assert triggered in commonage("cron-job", "show", "report").stdout
    assert commonage("cron-job", "resume", listed["id"]).exit_code == 0
    assert "already" in commonage(*run).output
    assert "Its runs stay" in commonage("cron-job", "rm", "report").stdout
    assert commonage("cron-job", "rm", "report").exit_code == 2


def test_options_of_a_schedule_need_one(commonage: Run) -> None:
    refused = commonage("run", "--overlap", "allow", "--no-files", "--", "true")
    assert refused.exit_code == 2
    assert "Give --schedule" in refused.output


def test_an_entry_of_a_job_file_with_a_schedule_is_a_cron_job(commonage: Run, tmp_path: Path) -> None:
    file = tmp_path / "jobs.commonage.yml"
    file.write_text(
        "- name: once\n  command: 'true'\n  files: false\n"
        "- name: hourly\n  command: 'true'\n  files: false\n  schedule: '@hourly'\n  starting_deadline: 5m\n"
    )
    assert commonage("submit", "--dry-run", str(file)).stdout.count(":00 UTC") == 5
    once, hourly = read(commonage("submit", "--json", str(file)))
    assert (once["name"], hourly["schedule"], hourly["time_zone"]) == ("once", "@hourly", "UTC")
    assert hourly["starting_deadline_s"] == 300
    assert commonage("cron-job", "rm", "hourly").exit_code == 0
    file.write_text("name: x\ncommand: 'true'\noverlap: allow\n")
    refused = commonage("submit", str(file))
    assert (refused.exit_code, "line 3" in refused.output, "Add a schedule" in refused.output) == (2, True, True)
    file.write_text("name: x\ncommand: 'true'\nschedule: '@daily'\noverlap: both\n")
    assert "line 4" in commonage("submit", str(file)).output
