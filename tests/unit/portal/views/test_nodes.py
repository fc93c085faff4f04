"""Nodes: drained and resumed by admins only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from tests.fakes.portal import ADMIN, Portal
from tests.unit.portal.conftest import Person

from commonage import messages
from commonage.domain.nodes import Isolation
from commonage.domain.principals import Principal
from commonage.domain.reasons.attempts import NodeLost
from commonage.domain.reasons.devices import FatalXid, PersistenceModeOff, Remedy, RootRequired
from commonage.domain.reasons.nodes import DrainedBy, EngineNotAnswering, NeedsRepair
from commonage.domain.workloads import Kind
from commonage.ports.devices import DeviceSample
from commonage.testing.factories import image
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio


async def test_only_admins_are_offered_and_allowed_to_drain(portal: Portal, ann: Person, root: Person) -> None:
    assert "/drain" not in (await ann.get("nodes")).text
    assert (await ann.post("nodes/gpu-1/drain", {"drain": "1"})).status_code == 403
    assert "/drain" in (await root.get("nodes")).text
    assert (await root.post("nodes/gpu-1/drain", {"drain": "1"})).status_code == 303
    page = (await root.get("nodes")).text
    assert messages.text(DrainedBy(by="root")) in page
    assert "Resume" in page
    answer = await root.post("nodes/gpu-1/drain", {"drain": "0"}, HX_Request="true")
    assert answer.status_code == 204
    assert "drained by" not in (await root.get("nodes")).text


async def test_a_node_that_is_not_there_is_told(root: Person) -> None:
    answer = await root.post("nodes/nowhere/drain", {"drain": "1"})
    assert answer.status_code == 404
    assert "gpu-1" in answer.text


async def test_all_of_a_device_is_shown_and_an_admin_says_that_it_was_reset(
    portal: Portal, ann: Person, root: Person
) -> None:
    report = next(one for one in await portal.engine.nodes() if one.name == "gpu-2")
    (device_row,) = report.devices
    broken = replace(
        device_row,
        simulated=False,
        faults=(FatalXid(number=95, index=0, remedy=Remedy.RESET),),
        notices=(PersistenceModeOff(index=0),),
        driver="615.10",
        cuda="13.4",
        pci="0000:3b:00.0",
        peers=((device_row.uuid, 4),),
        unavailable=((Isolation.DRIVER_LIMIT, RootRequired()),),
    )
    portal.engine.add_node(replace(report, devices=(broken,)))
    measured = DeviceSample(
        device_row.uuid, 1024, 0.5, power_w=250, power_limit_w=400, sm_clock_mhz=1410, throttle=("temperature",), xid=95
    )
    portal.control.node_views.note_measured({device_row.uuid: measured})
    await portal.control.nodes.refresh()
    page = (await ann.get("nodes")).text
    for words in (
        "had Xid 95", "Persistence mode is off", "615.10", "13.4", "0000:3b:00.0", "4 to GPU 0", "250 of 400 W",
        "1410 MHz", "temperature", "driver-limit is not available. Only root may set it.",
    ):  # fmt: skip
        assert words in page
    assert "nodes/gpu-2/resume" not in page
    assert "nodes/gpu-2/resume" in (await root.get("nodes")).text
    answer = await root.post("nodes/gpu-2/resume", {"gpu": device_row.uuid}, HX_Request="true")
    assert "still faulty. It had Xid 95" in unquote(answer.headers["HX-Trigger"])
    portal.engine.add_node(report)
    answer = await root.post("nodes/gpu-2/resume", {"gpu": device_row.uuid}, HX_Request="true")
    assert "schedulable again" in answer.headers["HX-Trigger"]
    assert (await ann.post("nodes/gpu-2/resume", {"gpu": device_row.uuid})).status_code == 403


async def test_who_runs_on_a_drained_node_is_told_to_leave(
    portal: Portal, root: Person, submit: Callable[..., Any]
) -> None:
    one = await submit("ann", "1", labels=(("node", "gpu-2"),), requeue=False)
    await root.post("nodes/gpu-2/drain", {"drain": "1"})
    page = (await root.get("nodes")).text
    assert "Drain deadline: in" in page
    assert "nodes/gpu-2/remove" not in page, "it is not empty"
    answer = await root.post("nodes/gpu-2/drain", {"drain": "1", "by": "2h"}, HX_Request="true")
    assert "notified of the deadline" in unquote(answer.headers["HX-Trigger"])
    assert "remaining workloads are evicted" in (await root.get("nodes")).text
    assert "must be empty, in 2 h" in (await root.get(f"workloads/{one.id}")).text
    wrong = await root.post("nodes/gpu-2/drain", {"drain": "1", "by": "soon"})
    assert wrong.status_code == 422
    assert "is no time" in wrong.text


async def test_an_empty_node_is_removed_by_admins_only(portal: Portal, ann: Person, root: Person) -> None:
    assert (await root.post("nodes/gpu-2/remove")).status_code == 409
    await root.post("nodes/gpu-2/drain", {"drain": "1"})
    assert "nodes/gpu-2/remove" in (await root.get("nodes")).text
    assert (await ann.post("nodes/gpu-2/remove", {"force": "1"})).status_code == 403
    answer = await root.post("nodes/gpu-2/remove", {"force": "0"}, HX_Request="true")
    assert "gpu-2 is removed" in unquote(answer.headers["HX-Trigger"])
    assert "Node gpu-2" not in (await root.get("nodes")).text


async def test_people_are_told_of_sessions_that_their_node_has_ended(
    portal: Portal, ann: Person, clock: FakeClock, submit: Callable[..., Any]
) -> None:
    one = await submit("ann", kind=Kind.SESSION, command=(), name="lab", key="mine")
    assert "Your session" not in (await ann.get("")).text
    portal.engine.end(f"{one.id}-1", None, NodeLost(node="gpu-1"))
    await clock.advance(2)
    page = (await ann.get("")).text
    assert "Your session lab ended. Node gpu-1 was lost" in page
    assert f"launch?again={one.id}" in page
    other = await submit("ann", kind=Kind.SESSION, command=(), name="lab", key=f"again-1-{one.id}", requeue=True)
    page = (await ann.get("")).text
    assert "Your session lab was started again. Node gpu-1 was lost" in page
    assert f"workloads/{other.id}" in page
    assert "<dt>If the node is lost</dt><dd>requeue" in (await ann.get(f"workloads/{other.id}")).text
    assert 'value="yes" selected' in (await ann.get(f"launch?again={other.id}")).text


async def test_what_holds_for_a_whole_site_is_said_once(portal: Portal, ann: Person) -> None:
    assert len(portal.control.node_views.all()) > 1
    (capabilities,) = portal.control.node_views.capabilities()
    portal.engine.capabilities = lambda: replace(capabilities, notes=("gpu-2 has no agent",))  # type: ignore[method-assign]  # as an engine's change with its nodes
    page = (await ann.get("nodes")).text
    assert page.count("gpu-2 has no agent") == 1
    assert page.index("Environments") > page.index("gpu-2 has no agent") > page.rindex("Node gpu-")


async def test_one_that_nobody_drained_is_not_called_so(portal: Portal, ann: Person, root: Person) -> None:
    report = next(one for one in await portal.engine.nodes() if one.name == "gpu-2")
    portal.engine.add_node(replace(report, faults=(EngineNotAnswering(error="Docker does not answer"),)))
    await portal.control.nodes.refresh()
    page = (await root.get("nodes")).text
    assert "Faulty" in page and "Docker does not answer" in page and "Draining" not in page
    await root.post("nodes/gpu-2/drain", {"drain": "1"})
    assert "Draining" in (await ann.get("nodes")).text


async def test_where_nothing_is_on_offer_the_page_says_what_to_do(
    portal: Portal, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal.control.environments, "views", lambda who=None: [])
    assert "no image is available. An admin can set <code>docker_image</code>" in (await ann.get("nodes")).text


async def test_a_long_name_is_said_once_and_its_line_may_break(portal: Portal, ann: Person) -> None:
    await portal.control.images.add(Principal("root", ADMIN), image("public/tools", None), "registry.test:5000")
    page = (await ann.get("nodes")).text
    assert page.count("public/tools") == 1
    assert 'class="feed wraps"' in page


async def test_only_admins_read_what_a_daemon_says(
    portal: Portal, ann: Person, root: Person, submit: Callable[..., Any], clock: FakeClock
) -> None:
    running = await submit(name="train")
    waiting = await submit(name="later", cpus_milli=32_000)
    text = "the Docker daemon does not answer (at unix:///x: refused. Is it running (systemctl status docker))"
    for report in await portal.engine.nodes():
        portal.engine.add_node(replace(report, faults=(EngineNotAnswering(error=text),)))
    await clock.advance(10)
    for path in ("", "nodes", "workloads", f"workloads/{running.id}", f"workloads/{waiting.id}"):
        page = (await ann.get(path)).text
        assert "systemctl" not in page, path
    assert (
        "is faulty, and an admin has to repair it. If the node is lost, it queues again."
        in (await ann.get(f"workloads/{running.id}")).text
    )
    assert messages.text(NeedsRepair()) in (await ann.get("nodes")).text
    assert "systemctl status docker" in (await root.get("nodes")).text
