"""Open: where a running session or service is opened, and what is said of an address that the browser cannot reach."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.portal import USER, Portal
from tests.unit.portal.conftest import Person

from commonage.control.settings import ControlSettings
from commonage.domain.principals import Principal
from commonage.domain.workloads import Kind, State
from commonage.portal.auth import Visitor
from commonage.portal.labels import link_to, ssh_forward
from commonage.testing import factories

pytestmark = pytest.mark.anyio
SERVICE: dict[str, Any] = {"kind": Kind.SERVICE, "environment": "base", "command": ("serve", "{port}")}


async def test_open_service_leads_to_its_own_address(portal: Portal, ann: Person, submit: Callable[..., Any]) -> None:
    service = await submit(name="web", **SERVICE)
    assert service.attempt.url is not None
    page = (await ann.get(f"workloads/{service.id}")).text
    link = re.search(r'<a class="button primary" href="([^"]+)"[^>]*>.*?Open service', page)
    assert link is not None
    assert link[1] == service.attempt.url
    assert f"<code>{service.attempt.url}</code>" in page
    assert f'href="{service.attempt.url}"' in (await ann.get("workloads")).text


async def test_browser_elsewhere_gets_ssh_command(portal: Portal, ann: Person, submit: Callable[..., Any]) -> None:
    service = await submit(name="web", **SERVICE)
    elsewhere = Person(portal, "192.0.2.7")
    await elsewhere.sign_in("ann")
    page = (await elsewhere.get(f"workloads/{service.id}")).text
    assert "Open service" not in page
    assert f"<code>{service.attempt.url}</code>" in page
    assert "Your browser cannot reach this address" in page
    assert f"ssh {ssh_forward(service.attempt.url)} SERVER" in page
    assert "/user/ann" not in page


async def test_an_admin_on_the_servers_computer_is_not_told_to_forward_a_port(
    root: Person, ann: Person, submit: Callable[..., Any]
) -> None:
    service = await submit(name="web", **SERVICE)
    page = (await root.get(f"workloads/{service.id}")).text
    assert "Open service" not in page
    assert f"<code>{service.attempt.url}</code>" in page
    assert "Your browser cannot reach this address" not in page


@pytest.mark.parametrize(
    ("browser", "address", "is_link"),
    [
        ("127.0.0.1", "http://127.0.0.1:20001", True),
        ("::1", "http://10.213.0.2:8888", True),
        ("10.20.3.4", "http://gpu-2:20001", True),
        ("10.20.3.4", "http://10.20.0.9:20001", True),
        ("10.20.3.4", "http://127.0.0.1:20001", False),
        ("192.0.2.7", "http://10.20.0.9:20001", False),
        ("", "http://127.0.0.1:20001", False),
        ("127.0.0.1", None, False),
    ],
)
def test_a_service_is_a_link_for_browsers_that_reach_it(browser: str, address: str | None, is_link: bool) -> None:
    running = factories.workload(State.RUNNING, kind=Kind.SERVICE, owner="ann")
    assert running.attempt is not None
    service = replace(running, attempt=replace(running.attempt, url=address))
    settings = ControlSettings(port_source_ranges=("10.20.0.0/16",))
    link = link_to(service, Visitor(Principal("ann", USER), "", browser), settings)
    assert link == (address if is_link else None)
    assert link_to(service, Visitor(Principal("root", USER), "", browser), settings) is None


def test_the_port_is_forwarded_to_the_same_port() -> None:
    assert ssh_forward("http://10.20.0.9:20001") == "-L 20001:10.20.0.9:20001"
