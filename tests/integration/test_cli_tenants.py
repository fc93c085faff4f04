"""Tenants, reservations, gangs and preemptible jobs on the command line, against the whole API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.integration.api_world import Api, served
from tests.integration.command_line import Run, commonage_at

from commonage.cli.reservation import time_zone
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.testing.behaviour import Behaviour

RULES = Rules(
    (
        Tenant("optics", "Lab of Optics", 2.0, Quota(Bounds(gpu_milli=250), Bounds(gpu_milli=500))),
        Tenant("course", quota=Quota(Bounds(gpu_milli=500))),
        Tenant("art", quota=Quota(Bounds(gpu_s_month=36_000), per_user=Bounds(running=3))),
    )
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    def prepare(api: Api) -> None:
        api.identity.groups["ann"] = ("optics",)
        api.identity.groups["bob"] = ("art",)
        api.engine.behave(Behaviour(lasts_s=None), name="stays")

    with served(tmp_path_factory.mktemp("api"), prepare=prepare, rules=RULES) as address:
        yield address


@pytest.fixture
def commonage(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")

    return commonage_at(url, tmp_path, default_token="admin:root")


def read(done: Result) -> Any:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_quota_prints_what_is_left(commonage: Run) -> None:
    printed = commonage("quota", "--tenant", "art", token="bob").stdout
    for words in ("gpu-hours", "10 h", "user bob", "running"):
        assert words in printed
    rows = read(commonage("quota", "--json", token="bob"))
    assert [(one["resource"], one["remains"]) for one in rows] == [("gpu-hours", 36_000), ("running", 3)]
    assert "0 of 3 running workloads" in commonage("explain", "--tenant", "art", token="bob").stdout
    assert "0 of 10 GPU-hours this month" in commonage("tenant", "show", "art", token="bob").stdout
    assert commonage("quota", token="ann").exit_code == 0


def test_tenants_are_listed_with_allocations(commonage: Run) -> None:
    job = ("run", "--detach", "--json", "--no-files", "--name", "stays", "--gpus", "0.5", "--", "x")
    made = read(commonage(*job, token="ann"))
    assert made["tenant"] == "optics"
    listed = commonage("tenant", "ls").stdout
    for words in ("commons", "Lab of Optics", "of 0.25"):
        assert words in listed
    shown = commonage("tenant", "show", "optics", token="ann").stdout
    for words in ("optics: Lab of Optics", "weight 2", "GPUS", "no limit"):
        assert words in shown
    hidden = commonage("tenant", "show", "course", token="ann")
    assert (hidden.exit_code, "Tenants: commons, optics" in hidden.stderr) == (2, True)
    assert [one["name"] for one in read(commonage("tenant", "ls", "--json", token="ann"))] == ["commons", "optics"]
    commonage("stop", made["id"], token="ann")


def test_reservation_is_added_listed_and_removed(commonage: Run) -> None:
    day = datetime.now(UTC).date() + timedelta(days=3)
    add = ("reservation", "add", "--tenant", "course", "--from", f"{day} 14:00", "--until", "16:00", "--count", "2")
    done = commonage(*add, "--gpus", "4GiB", "--cpus", "1", "--mem", "512MiB", "--title", "class")
    assert done.exit_code == 0, done.output
    assert f"{day} 14:00 until 16:00 UTC: 2 times 1 CPU, 512 MiB of memory, 4 GiB of VRAM for course" in done.stdout
    (one,) = read(commonage("reservation", "ls", "--json"))
    listed = commonage("reservation", "ls").stdout
    assert all(words in listed for words in (one["id"], "course", f"{day} 14:00", "16:00", "class", "Time zone: UTC"))
    assert "No reservations." in commonage("reservation", "ls", token="ann").stderr
    assert f"Removed {one['id']}" in commonage("reservation", "rm", one["id"]).stdout
    assert commonage("reservation", "rm", one["id"]).exit_code == 2


def test_reservation_repeats_weekly_in_another_zone(commonage: Run) -> None:
    day = datetime.now(UTC).date() + timedelta(days=3)
    weekly = ("--every", "week", "--last-day", str(day + timedelta(days=7)), "--time-zone", "+05:30", "--json")
    add = ("reservation", "add", "--tenant", "optics", "--from", f"{day} 14:00", "--until", "15:00", "--gpus", "0.25")
    items = read(commonage(*add, *weekly))["items"]
    assert [datetime.fromtimestamp(one["starts_at"], UTC).strftime("%H:%M") for one in items] == ["08:30", "08:30"]
    assert commonage("reservation", "rm", *[one["id"] for one in items]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tenant", "course", "--from", "soon", "--until", "16:00"), "'soon' is no time; write it like"),
        (("--tenant", "physics", "--from", "now", "--until", "2099-01-01"), "there are: commons, optics, course"),
        (("--tenant", "course", "--from", "now", "--until", "now"), "before it begins"),
        (("--tenant", "course", "--from", "now", "--until", "23:59", "--on", "x"), "--on x is not a label"),
        (("--tenant", "course" * 50, "--from", "now", "--until", "23:59"), "tenant: 300 characters"),
    ],
)
def test_invalid_reservation_is_refused(commonage: Run, arguments: tuple[str, ...], words: str) -> None:
    done = commonage("reservation", "add", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_gang_and_preemptible_job(commonage: Run) -> None:
    asked = ("run", "--detach", "--json", "--no-files", "--nodes", "2", "--priority", "low", "--preemptible")
    made = read(commonage(*asked, "--on", "engine=fake", "--", "true"))
    assert (made["gang"], made["array_size"], made["priority"], made["preemptible"]) == (True, 2, -10, True)
    assert made["request"]["on"] == {"engine": "fake"}
    never = commonage("run", "--no-files", "--nodes", "3", "--", "true")
    assert (never.exit_code, "Too few nodes: 3 requested at once, and 2 could run" in never.stderr) == (2, True)
    nowhere = commonage("explain", "--on", "zone=moon")
    assert nowhere.exit_code == 2
    assert "zone=moon" in nowhere.stderr


def test_time_zone_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for set_to, name in (("Europe/Berlin", "Europe/Berlin"), (":/usr/share/zoneinfo/Asia/Tokyo", "Asia/Tokyo")):
        monkeypatch.setenv("TZ", set_to)
        assert time_zone() == name
    monkeypatch.delenv("TZ")
    assert time_zone()
