"""The link of a class: it leads into the session once the hub does, and to a page of the portal until then."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.fakes.portal import ADMIN, Portal
from tests.unit.portal.conftest import Person

from commonage.domain.principals import Principal
from commonage.domain.workloads import State
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
ROOT = Principal("root", ADMIN)


async def make_class(portal: Portal) -> None:
    now = datetime.fromtimestamp(portal.clock.now(), UTC)
    times = {"starts": f"{now:%Y-%m-%d %H:%M}", "ends": f"{now + timedelta(hours=3):%Y-%m-%d %H:%M}"}
    document = {"tenant": "commons", "users": ["ann"], "cpus": "1", "memory": "1GiB", "times": [times]}
    await portal.control.classes.put(ROOT, "ml101", {**document, "time_zone": "UTC"}, 0)


async def until_ann_has_a_session(portal: Portal, clock: FakeClock, state: State) -> None:
    for _ in range(400):
        await clock.advance(0.5)
        await asyncio.sleep(0)
        session = portal.control.classes.seats.session("ml101", "ann")
        if session is not None and session.state is state:
            return
    raise AssertionError(f"no session is {state}: {portal.control.classes.one(ROOT, 'ml101').seats}")


async def test_the_link_waits_until_the_hub_lets_in(portal: Portal, clock: FakeClock, ann: Person) -> None:
    portal.identity.not_open.add(("ann", "ml101"))
    await make_class(portal)
    await until_ann_has_a_session(portal, clock, State.RUNNING)
    waiting = await ann.get("classes/ml101/session")
    assert waiting.status_code == 200
    assert "JupyterLab is starting" in waiting.text
    assert 'content="2; url=/services/commonage/classes/ml101/session"' in waiting.text
    portal.identity.not_open.clear()
    portal.identity.away = True
    assert (await ann.get("classes/ml101/session")).status_code == 200, "the hub will answer again"
    portal.identity.away = False
    led = await ann.get("classes/ml101/session")
    assert (led.status_code, led.headers["location"]) == (303, "/user/ann/ml101/")
