"""The page "Platform": forms of resources, with versions and errors; managed ones are read-only."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.fakes.portal import Portal
from tests.unit.portal.conftest import Person
from tests.unit.portal.test_pages import assert_whole

from commonage.control.resources.resources import Documents
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.resources import GitCommitRefused
from commonage.domain.resources import GitState
from commonage.resources.editing import document_of, rows_of, texts_of
from commonage.resources.kinds import KINDS
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
ROOT = Principal("root", frozenset(Scope))
LAB = {"kind": "Tenant", "name": "vision/a b"}


@pytest.fixture
async def portal(clock: FakeClock) -> AsyncIterator[Portal]:
    async with Portal(clock).running() as running:
        await clock.advance(6)
        yield running


async def test_admin_creates_changes_and_deletes_a_resource(portal: Portal, root: Person) -> None:
    assert_whole((await root.get("platform/edit?kind=Tenant")).text)
    form = {**LAB, "version": "0", "field-title": "Lab", "field-nominal.gpus": "2.5", "field-sites": ""}
    assert (await root.post("platform/edit", form)).status_code == 303
    page = await root.get("platform")
    assert_whole(page.text)
    assert "vision/a b" in page.text
    shown = await root.get("platform/edit?kind=Tenant&name=vision/a%20b")
    assert_whole(shown.text)
    assert 'value="2.5"' in shown.text
    changed = {**form, "version": "1", "field-environments": "base\nnotebook", "field-title": ""}
    assert (await root.post("platform/edit", changed)).status_code == 303
    (found,) = portal.control.resources.all(ROOT)
    assert found.document == {**LAB, "nominal": {"gpus": 2.5}, "environments": ["base", "notebook"]}
    assert (await root.post("platform/remove", {**LAB, "version": "2"})).status_code == 303
    assert portal.control.resources.all(ROOT) == []


async def test_a_tenant_with_members_is_removed_by_a_plan_only(portal: Portal, root: Person) -> None:
    members = [{"user": "ann", "role": "manager"}, {"group": "optics", "role": "member"}]
    await portal.control.resources.apply(ROOT, Documents([{**LAB, "members": members}]))
    shown = await root.get("platform/edit?kind=Tenant&name=vision/a%20b")
    assert_whole(shown.text)
    assert 'offboard?subject=tenant&amp;change=remove&amp;name=vision/a%20b"' in shown.text
    assert "platform/remove" not in shown.text
    refused = await root.post("platform/remove", {**LAB, "version": "1", "force": "1"})
    assert refused.status_code == 409
    assert "Tenant vision/a b cannot be deleted yet, because it has 2 members. First make a plan" in refused.text
    plan = await root.get("offboard?subject=tenant&change=remove&name=vision/a%20b")
    assert_whole(plan.text)


async def test_invalid_and_stale_forms_keep_entered_values(root: Person) -> None:
    form = {**LAB, "version": "0", "field-title": "Lab", "field-weight": "heavy"}
    invalid = await root.post("platform/edit", form)
    assert invalid.status_code == 422
    assert 'id="error-weight"' in invalid.text
    assert 'value="heavy"' in invalid.text
    await root.post("platform/edit", {**form, "field-weight": "2"})
    stale = await root.post("platform/edit", {**form, "field-weight": "3"})
    assert stale.status_code == 409
    assert "is at version 1" in stale.text


async def test_managed_resource_is_read_only(portal: Portal, root: Person) -> None:
    declared = Documents([{**LAB, "title": "Lab"}], managed_by="git:lab/platform@main")
    await portal.control.resources.apply(ROOT, declared)
    page = await root.get("platform/edit?kind=Tenant&name=vision/a%20b")
    assert_whole(page.text)
    assert "Managed by git:lab/platform@main" in page.text
    assert "Save" not in page.text
    assert (await root.post("platform/edit", {**LAB, "version": "1"})).status_code == 409


async def test_git_sources_show_their_last_error(portal: Portal, root: Person) -> None:
    name, why = "git:lab/platform@main", "lab.commonage.yml, line 4: no such field"
    for state in (GitState.APPLIED, GitState.REFUSED, GitState.REFUSED):
        await portal.control.git_sources.report(ROOT, name, state, commit="ab" * 20, message=why)
    page = await root.get("platform")
    assert_whole(page.text)
    assert f"{name}: refused abababababab" in page.text
    assert why in page.text
    events = [one.reason for one in await portal.store.events()]
    assert sum(isinstance(one, GitCommitRefused) for one in events) == 1  # the same state again is no event


async def test_page_is_for_admins(ann: Person) -> None:
    for path in ("platform", "platform/edit?kind=Tenant"):
        assert (await ann.get(path)).status_code == 403
    assert "platform" not in (await ann.get("")).text
    assert (await ann.post("platform/edit", {**LAB, "version": "0"})).status_code == 403


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_kind_has_a_row_with_a_description(kind: str) -> None:
    assert [row.path for row in rows_of(kind) if not row.description] == []


def test_texts_and_documents_are_inverse() -> None:
    document = {
        "nominal": {"memory": "64GiB"}, "environments": ["a", "b"], "title": "Lab",
    }  # fmt: skip
    assert document_of("Tenant", texts_of("Tenant", document)) == document
    members = {"members": [{"user": "ann", "role": "viewer"}], "per_model": {"A100": {"gpus": "2"}}}
    assert document_of("Tenant", texts_of("Tenant", members)) == members
    variables = {"variables": {"A": "1=2"}, "requirements": ["x[y]==1,<2"]}
    assert document_of("Environment", texts_of("Environment", variables)) == variables
