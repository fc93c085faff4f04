"""Idle sessions in the portal: their owner is warned on the front page, keeps one by a click, or releases its GPU."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.fakes.portal import USER, Portal
from tests.unit.portal.conftest import Person

from commonage.control.settings import ControlSettings
from commonage.domain.idle import Activity, IdleAction, IdleRule
from commonage.domain.principals import Principal
from commonage.domain.workloads import Kind, StopCause
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def portal(clock: FakeClock) -> AsyncIterator[Portal]:
    rule = IdleRule(3600, 600, IdleAction.RELEASE_GPU, 0)
    async with Portal(clock, ControlSettings(idle=rule)).running() as running:
        await clock.advance(6)
        yield running


async def test_who_is_warned_keeps_the_session_or_releases_its_gpu(
    portal: Portal, clock: FakeClock, ann: Person, submit: Callable[..., Any]
) -> None:
    session = await submit(kind=Kind.SESSION, name="lab", environment="notebook", gpus="6GiB")
    page = f"workloads/{session.id}"
    assert "unknown" in (await ann.get(page)).text
    await portal.control.extensions.report(Principal("ann", USER), session.id, 1, 3100, Activity(0, 0))
    await clock.advance(5)
    for where in ("", page):
        shown = (await ann.get(where)).text
        assert "Nothing has happened in it for 51 min" in shown
        assert "It gives its GPU back and starts again without one in" in shown
        assert 'aria-label="Keep lab for two more hours"' in shown
        assert 'aria-label="Release the GPU of lab"' in shown
    kept = await ann.post(f"{page}/extend", hx_request="true")
    assert "lab is kept for 2 h" in kept.headers["HX-Trigger"]
    assert "Keep lab for two more hours" not in (await ann.get("")).text, "the banner is gone"
    released = await ann.post(f"{page}/release-gpu", hx_request="true")
    assert "lab starts again without its GPU" in released.headers["HX-Trigger"]
    stop = portal.control.live_state.get(session.id)
    assert stop is None or (stop.stop is not None and stop.stop.cause is StopCause.GPU_RELEASE)
