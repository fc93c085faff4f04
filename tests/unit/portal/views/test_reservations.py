"""The page of reservations, and tenants on the page of usage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.fakes.portal import USER, Portal
from tests.unit.portal.conftest import Person
from tests.unit.portal.test_pages import AWKWARD, assert_whole

from commonage.control.settings import ControlSettings
from commonage.control.workloads.submission import Submission
from commonage.domain.principals import Principal
from commonage.domain.requests import parse_gpus
from commonage.domain.tenants import Bounds, Quota, Rules, Tenant
from commonage.domain.workloads import Kind
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
RULES = Rules(
    (
        Tenant("course", "Deep learning", quota=Quota(Bounds(gpu_milli=500), Bounds(gpu_milli=2000))),
        Tenant("optics", quota=Quota(Bounds(gpu_milli=1000), per_user=Bounds(running=1))),
    )
)
CLASS = {
    "tenant": "course", "title": "class", "starts_at": "2023-11-21T14:00", "ends_at": "2023-11-21T16:00",
    "time_zone": "Europe/Berlin", "count": "5", "gpus": "4GiB", "cpus": "1", "memory": "512MiB", "every": "",
}  # fmt: skip


@pytest.fixture
async def portal(clock: FakeClock) -> AsyncIterator[Portal]:
    async with Portal(clock, ControlSettings(rules=RULES)).running() as running:
        running.identity.groups["ann"] = ("course",)
        await clock.advance(6)
        yield running


async def test_admin_reserves_and_cancels(portal: Portal, root: Person, ann: Person) -> None:
    assert "No reservations" in (await root.get("reservations")).text
    answer = await root.post("reservations", CLASS)
    assert answer.status_code == 303
    for person in (root, ann):
        page = await person.get("reservations")
        assert_whole(page.text)
        assert "5 \N{MULTIPLICATION SIGN} 1 CPU, 512 MiB of memory, 4 GiB of VRAM" in page.text
        assert 'datetime="2023-11-21T13:00:00Z"' in page.text
    assert "/remove" not in (await ann.get("reservations")).text
    (one,) = portal.control.reservations.rules.reservations
    assert (await root.post(f"reservations/{one.id}/remove")).status_code == 303
    assert portal.control.reservations.rules.reservations == ()
    assert (await root.post(f"reservations/{one.id}/remove")).status_code == 404


async def test_invalid_form_keeps_entered_values(root: Person, ann: Person) -> None:
    for change, status, words in (
        ({"gpus": "6XiB"}, 422, "gpus &#39;6XiB&#39;"),
        ({"starts_at": ""}, 422, "starts_at"),
        ({"count": "many"}, 422, "Count must be a number"),
        ({"time_zone": "Berlin"}, 422, "is not known here"),
        ({"every": "week"}, 422, "needs a last day"),
        ({"count": "5000"}, 409, "All nodes together have room for"),
        ({"title": AWKWARD, "ends_at": "2023-11-20T16:00"}, 422, "before it begins"),
    ):
        answer = await root.post("reservations", {**CLASS, **change})
        assert answer.status_code == status, change
        assert words in answer.text
        assert 'value="2023-11-21T14:00"' in answer.text or "starts_at" in change
        assert_whole(answer.text)
    assert (await ann.post("reservations", CLASS)).status_code == 403


async def test_shortfall_is_shown_after_reserving(root: Person, submit: Callable[..., Any]) -> None:
    for _ in range(3):
        await submit("bob", gpus="1")
    answer = await root.post("reservations", CLASS)
    assert answer.status_code == 200
    assert "Reserved. The nodes cannot keep all of it at the moment" in answer.text


async def test_usage_page_shows_quota_borrowed_and_lent(
    portal: Portal, root: Person, ann: Person, clock: FakeClock
) -> None:
    person = Principal("ann", USER, ("course",))
    await portal.control.workloads.submit(person, Submission(Kind.JOB, ("true",), gpu=parse_gpus("1")))
    await clock.advance(2)
    page = (await root.get("usage")).text
    assert_whole(page)
    assert "1 of 0.5" in page
    assert "0.5 borrowed" in page
    assert "0.5 lent" in page
    hers = (await ann.get("usage")).text
    assert "Deep learning" in hers
    assert "optics" not in hers


async def test_launch_form_and_usage_page_show_what_quotas_leave(portal: Portal, ann: Person) -> None:
    portal.identity.groups["ann"] = ("optics",)
    fields = {"kind": "job", "command": "x", "tenant": "optics"}
    before = (await ann.post("launch/dry-run", fields)).text
    assert "uses 0 of 1 running workloads: 1 left." in before
    assert "uses 0 of 1 GPUs: 1 left" in (await ann.get("launch?tenant=optics")).text
    await ann.post("launch", {**fields, "key": "portal-quota"})
    await portal.clock.advance(5)
    after = (await ann.post("launch/dry-run", fields)).text
    assert '<li class="error">User ann in tenant optics uses 1 of 1 running workloads: 0 left.</li>' in after
    assert "Quota exceeded: user ann in tenant optics" in after
    for page in ("usage", ""):
        assert "uses 1 of 1 running workloads: 0 left." in (await ann.get(page)).text
