"""Open: where a running session or service is opened, and with which apps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.portal import USER
from tests.unit.portal.conftest import Person

from commonage.control.settings import ControlSettings
from commonage.domain.principals import Principal
from commonage.domain.workloads import Kind, State
from commonage.portal.auth import Visitor
from commonage.portal.labels import link_to
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
