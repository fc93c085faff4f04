"""Open: where a running session or service is opened, and with which apps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.portal import ADMIN, USER, Portal
from tests.unit.portal.conftest import Person

from commonage.control.access import access_of
from commonage.control.settings import ControlSettings
from commonage.domain.principals import Principal, Scope
from commonage.domain.workloads import Kind, State
from commonage.portal.auth import Visitor
from commonage.portal.labels import link_to, may_enter, may_visit
from commonage.testing import factories

pytestmark = pytest.mark.anyio
SERVICE: dict[str, Any] = {"kind": Kind.SERVICE, "environment": "base", "command": ("serve", "{port}")}


async def test_open_service_leads_to_its_route(ann: Person, root: Person, submit: Callable[..., Any]) -> None:
    service = await submit(name="web", **SERVICE)
    page = (await ann.get(f"workloads/{service.id}")).text
    link = re.search(r'<a class="button primary" href="([^"]+)"[^>]*>.*?Open service', page)
    assert link is not None
    assert link[1] == f"/service/{service.id}/"
    assert f"<code>{service.attempt.url}</code>" in page
    assert f'href="/service/{service.id}/"' in (await ann.get("workloads")).text
    assert "Open service" not in (await root.get(f"workloads/{service.id}")).text


@pytest.mark.parametrize(
    ("origin", "link"),
    [("", "/service/{id}/"), ("https://*.hub.example.org", "https://service--{id}.hub.example.org/")],
)
def test_each_service_has_an_origin_of_its_own_where_sessions_have(origin: str, link: str) -> None:
    service = factories.workload(State.RUNNING, kind=Kind.SERVICE, owner="ann")
    settings = ControlSettings(session_origin=origin)
    assert link_to(service, Visitor(Principal("ann", USER), ""), settings) == link.format(id=service.id)
    assert link_to(service, Visitor(Principal("root", USER), ""), settings) is None


async def test_a_session_of_a_class_is_offered_to_those_whom_its_student_lets_in(
    portal: Portal, root: Person, submit: Callable[..., Any]
) -> None:
    control = portal.control
    tenant = {"kind": "Tenant", "name": "course", "members": [{"user": "bob", "role": "teacher"}]}
    await control.resources.put(Principal("root", ADMIN), tenant, -1, kind="Tenant", name="course")
    session: dict[str, Any] = {"kind": Kind.SESSION, "command": (), "tenant": "course"}
    plain = await submit(name="mine", **session)
    of_class = await submit(name="ml", class_meeting="ml@1", **session)
    settings = replace(control.settings, session_origin="https://*.hub.example.org")
    bob = Visitor(Principal("bob", ADMIN - {Scope.ADMIN}), "")
    for workload, offered in ((plain, True), (of_class, False)):
        assert may_visit(workload, bob, access_of(bob.principal, settings), control.meetings) is offered
        assert may_enter(workload, access_of(bob.principal, settings), control.meetings) is offered
        page = (await root.get(f"workloads/{workload.id}")).text
        assert "May be opened by" in page
        assert "Reset packages" in page
        assert ("bob (teacher)" in page) is offered
