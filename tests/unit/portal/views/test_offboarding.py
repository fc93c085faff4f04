"""The page "Users and tenants": a plan is shown before anything changes, and confirmed with its version."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from tests.fakes.portal import Portal
from tests.unit.portal.conftest import Person
from tests.unit.portal.test_pages import assert_whole

from commonage.control.resources.resources import Documents
from commonage.domain.principals import Principal, Scope
from commonage.ports.identity import Account
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
ROOT = Principal("root", frozenset(Scope))
REMOVE = {"subject": "user", "change": "remove", "name": "ann", "workloads": "stop", "data": "archive"}


@pytest.fixture
async def portal(clock: FakeClock) -> AsyncIterator[Portal]:
    async with Portal(clock).running() as running:
        running.identity.users |= {name: Account(name, tokens=1) for name in ("ann", "bob", "root")}
        await clock.advance(6)
        yield running


def version_in(text: str) -> str:
    found = re.search(r'name="version" value="([0-9a-f]+)"', text)
    assert found is not None
    return found[1]


async def test_admin_plans_confirms_and_follows_a_removal(portal: Portal, root: Person, clock: FakeClock) -> None:
    await portal.control.resources.apply(ROOT, Documents([{"kind": "Tenant", "name": "optics"}]))
    listed = await root.get("people")
    assert_whole(listed.text)
    assert "offboard?subject=user&amp;name=ann&amp;change=remove" in listed.text
    assert "subject=user&amp;name=root" not in listed.text
    assert "offboard?subject=tenant&amp;name=optics&amp;change=rename" in listed.text
    form = await root.get("offboard?subject=user&name=ann&change=remove")
    assert_whole(form.text)
    planned = await root.post("offboard/plan", REMOVE)
    assert_whole(planned.text)
    assert "Revoke 1 API token at JupyterHub." in planned.text
    assert portal.control.names.all() == []
    begun = await root.post("offboard", {**REMOVE, "version": version_in(planned.text)})
    assert begun.status_code == 303
    await clock.advance(5)
    assert "ann" not in portal.identity.users
    path = begun.headers["location"].partition("/services/commonage/")[2]
    shown = await root.get(path)
    assert_whole(shown.text)
    assert "Release the name" in shown.text
    assert (await root.post(f"{path}/release")).status_code == 303
    assert "released the name" in (await root.get(path)).text
    assert_whole((await root.get("people")).text)


async def test_a_plan_that_changed_is_shown_again(portal: Portal, root: Person) -> None:
    planned = await root.post("offboard/plan", REMOVE)
    portal.identity.users["ann"] = Account("ann", tokens=3)
    refused = await root.post("offboard", {**REMOVE, "version": version_in(planned.text)})
    assert refused.status_code == 409
    assert "has changed since you saw it" in refused.text
    assert "Revoke 3 API tokens" in refused.text
    assert version_in(refused.text) != version_in(planned.text)
    assert portal.control.names.all() == []


async def test_forms_name_the_wrong_field_and_obstacles_have_no_button(root: Person) -> None:
    rename = {**REMOVE, "change": "rename"}
    assert 'id="error-to"' in (await root.post("offboard/plan", rename)).text
    assert 'id="error-to"' in (await root.post("offboard/plan", {**rename, "to": "No Name"})).text
    assert 'id="error-data"' in (await root.post("offboard/plan", {**REMOVE, "data": "burn"})).text
    assert 'id="error-heir"' in (await root.post("offboard/plan", {**REMOVE, "data": "hand-over"})).text
    taken = await root.post("offboard/plan", {**rename, "to": "bob"})
    assert "Choose another name." in taken.text
    assert 'name="version"' not in taken.text
    missing = await root.post("offboard/plan", {**REMOVE, "name": "nobody"})
    assert missing.status_code == 404


async def test_pages_are_for_operators_and_admins(ann: Person) -> None:
    for path in ("people", "offboard?subject=user&name=bob&change=remove", "offboard/o1"):
        assert (await ann.get(path)).status_code == 403
    for path in ("offboard/plan", "offboard", "offboard/o1/release"):
        assert (await ann.post(path, REMOVE)).status_code == 403
