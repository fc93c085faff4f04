"""Machines: drained and resumed by admins only."""

from __future__ import annotations

import pytest
from tests.fakes.portal import Portal
from tests.unit.portal.conftest import Person

pytestmark = pytest.mark.anyio


async def test_only_admins_are_offered_and_allowed_to_drain(portal: Portal, ann: Person, root: Person) -> None:
    assert "/drain" not in (await ann.get("nodes")).text
    assert (await ann.post("nodes/gpu-1/drain", {"drain": "1"})).status_code == 403
    assert "/drain" in (await root.get("nodes")).text
    assert (await root.post("nodes/gpu-1/drain", {"drain": "1"})).status_code == 303
    page = (await root.get("nodes")).text
    assert "drained by root" in page
    assert "Resume" in page
    answer = await root.post("nodes/gpu-1/drain", {"drain": "0"}, HX_Request="true")
    assert answer.status_code == 204
    assert "drained by" not in (await root.get("nodes")).text


async def test_a_machine_that_is_not_there_is_told(root: Person) -> None:
    answer = await root.post("nodes/nowhere/drain", {"drain": "1"})
    assert answer.status_code == 404
    assert "gpu-1" in answer.text
