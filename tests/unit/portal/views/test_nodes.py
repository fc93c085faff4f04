"""Nodes and images pages: what they show, and what admins and authors may change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from tests.fakes.portal import ADMIN, USER, Portal
from tests.unit.portal.conftest import Person
from tests.unit.portal.test_pages import AWKWARD, assert_whole

from commonage import messages
from commonage.control.settings import ControlSettings
from commonage.control.workloads.submission import Submission
from commonage.domain.images import Image, Kernel, Provenance, SourceFile
from commonage.domain.node_usage import NodeUsage
from commonage.domain.nodes import Isolation
from commonage.domain.principals import Principal
from commonage.domain.reasons.attempts import NodeLost
from commonage.domain.reasons.devices import FatalXid, PersistenceModeOff, Remedy, RootRequired
from commonage.domain.reasons.engines import NodesWithoutAgent
from commonage.domain.reasons.nodes import DrainedBy, EngineNotAnswering, NeedsRepair
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import Kind
from commonage.portal.labels import ISOLATION
from commonage.ports.devices import DeviceSample
from commonage.testing import factories as make
from commonage.testing.factories import image
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio


async def test_only_admins_are_offered_and_allowed_to_drain(portal: Portal, ann: Person, root: Person) -> None:
    assert "/drain" not in (await ann.get("nodes")).text
    assert (await ann.post("nodes/local/gpu-1/drain", {"drain": "1"})).status_code == 403
    assert "/drain" in (await root.get("nodes")).text
    assert (await root.post("nodes/local/gpu-1/drain", {"drain": "1"})).status_code == 303
    page = (await root.get("nodes")).text
    assert messages.text(DrainedBy(by="root")) in page
    assert "Resume" in page
    answer = await root.post("nodes/local/gpu-1/drain", {"drain": "0"}, HX_Request="true")
    assert answer.status_code == 204
    assert "drained by" not in (await root.get("nodes")).text


async def test_unknown_node_is_an_error_that_lists_nodes(root: Person) -> None:
    answer = await root.post("nodes/local/nowhere/drain", {"drain": "1"})
    assert answer.status_code == 404
    assert "gpu-1" in answer.text


async def test_gpu_details_are_shown_and_admin_clears_faults(portal: Portal, ann: Person, root: Person) -> None:
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
        isolation=Isolation.PRELOAD,
        unavailable=((Isolation.DRIVER_LIMIT, RootRequired()),),
    )
    portal.engine.add_node(replace(report, devices=(broken,)))
    measured = DeviceSample(
        device_row.uuid, 1024, 0.5, power_w=250, power_limit_w=400, sm_clock_mhz=1410, throttle=("temperature",), xid=95
    )
    portal.control.node_views.note_measured({make.device_key(device_row.uuid): measured})
    await portal.control.nodes.refresh()
    page = (await ann.get("nodes")).text
    for words in (
        "had Xid 95", "Persistence mode is off", "615.10", "13.4", "0000:3b:00.0", "4 to GPU 0", "250 of 400 W",
        "1410 MHz", "temperature", "driver-limit is not available. Only root may set it.",
    ):  # fmt: skip
        assert words in page
    assert "preload</span> soft" in page
    assert "nodes/local/gpu-2/resume" not in page
    assert "nodes/local/gpu-2/resume" in (await root.get("nodes")).text
    answer = await root.post("nodes/local/gpu-2/resume", {"gpu": device_row.uuid}, HX_Request="true")
    assert "still faulty. It had Xid 95" in unquote(answer.headers["HX-Trigger"])
    portal.engine.add_node(report)
    answer = await root.post("nodes/local/gpu-2/resume", {"gpu": device_row.uuid}, HX_Request="true")
    assert "schedulable again" in answer.headers["HX-Trigger"]
    assert (await ann.post("nodes/local/gpu-2/resume", {"gpu": device_row.uuid})).status_code == 403


def test_the_strength_of_each_level_is_the_first_that_is_said() -> None:
    for level, words in ISOLATION.items():
        assert words.startswith(f"{level.strength.replace('-', ' ')}: ")


async def test_drain_deadline_is_shown_to_owners(portal: Portal, root: Person, submit: Callable[..., Any]) -> None:
    one = await submit("ann", "1", labels=(("node", "gpu-2"),), requeue=False)
    await root.post("nodes/local/gpu-2/drain", {"drain": "1"})
    page = (await root.get("nodes")).text
    assert "Drain deadline: in" in page
    assert "nodes/local/gpu-2/remove" not in page, "it is not empty"
    answer = await root.post("nodes/local/gpu-2/drain", {"drain": "1", "by": "2h"}, HX_Request="true")
    assert "notified of the deadline" in unquote(answer.headers["HX-Trigger"])
    assert "remaining workloads are evicted" in (await root.get("nodes")).text
    assert "must be empty, in 2 h" in (await root.get(f"workloads/{one.id}")).text
    wrong = await root.post("nodes/local/gpu-2/drain", {"drain": "1", "by": "soon"})
    assert wrong.status_code == 422
    assert "is no time" in wrong.text


async def test_an_empty_node_is_removed_by_admins_only(portal: Portal, ann: Person, root: Person) -> None:
    assert (await root.post("nodes/local/gpu-2/remove")).status_code == 409
    await root.post("nodes/local/gpu-2/drain", {"drain": "1"})
    assert "nodes/local/gpu-2/remove" in (await root.get("nodes")).text
    assert (await ann.post("nodes/local/gpu-2/remove", {"force": "1"})).status_code == 403
    answer = await root.post("nodes/local/gpu-2/remove", {"force": "0"}, HX_Request="true")
    assert "gpu-2 is removed" in unquote(answer.headers["HX-Trigger"])
    assert "Node gpu-2" not in (await root.get("nodes")).text


async def test_users_are_notified_of_sessions_ended_by_node_loss(
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


async def test_site_notes_are_shown_once(portal: Portal, ann: Person) -> None:
    assert len(portal.control.node_views.all()) > 1
    (capabilities,) = portal.control.node_views.capabilities()
    portal.engine.capabilities = lambda: replace(capabilities, notes=(NodesWithoutAgent(nodes=("gpu-2",)),))  # type: ignore[method-assign]  # as an engine's change with its nodes
    page = (await ann.get("nodes")).text
    assert page.count("gpu-2 without an agent") == 1
    assert page.rindex("Environments") > page.index("gpu-2 without an agent") > page.rindex("Node gpu-")


async def test_faulty_node_is_not_shown_as_draining(portal: Portal, ann: Person, root: Person) -> None:
    report = next(one for one in await portal.engine.nodes() if one.name == "gpu-2")
    portal.engine.add_node(replace(report, faults=(EngineNotAnswering(error="Docker does not answer"),)))
    await portal.control.nodes.refresh()
    page = (await root.get("nodes")).text
    assert "Faulty" in page and "Docker does not answer" in page and "Draining" not in page
    await root.post("nodes/local/gpu-2/drain", {"drain": "1"})
    assert "Draining" in (await ann.get("nodes")).text


async def test_page_without_environments_says_what_to_do(
    portal: Portal, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal.control.environments, "views", lambda who=None: [])
    assert "no image is available. An admin can set <code>docker_image</code>" in (await ann.get("nodes")).text


async def test_long_name_is_shown_once_and_wraps(portal: Portal, ann: Person) -> None:
    await portal.control.images.add(Principal("root", ADMIN), image("public/tools", None), "registry.test:5000")
    page = (await ann.get("nodes")).text
    assert page.count("public/tools") == 1
    assert 'class="feed wraps"' in page


async def test_only_admins_see_daemon_errors(
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


ROOT = Principal("root", ADMIN)
ANN = Principal("ann", USER, ("lab",))
REGISTRY = "registry.test:5000"


@pytest.fixture
async def portal(clock: FakeClock) -> AsyncIterator[Portal]:
    async with Portal(clock, ControlSettings(rules=Rules((Tenant("lab"),)))).running() as running:
        running.identity.groups["ann"] = ("lab",)
        await clock.advance(6)
        yield running


async def add(portal: Portal, name: str = "lab/torch", who: Principal = ANN, **fields: Any) -> Image:
    return (await portal.control.images.add(who, make.image(name, None, **fields), REGISTRY)).image


async def test_images_page_shows_environments_and_provenance(portal: Portal, ann: Person) -> None:
    assert "No images. Build and push one" in (await ann.get("images")).text
    kernels = (Kernel("torch", "PyTorch", "/opt/k/torch"), Kernel("py310", "Python 3.10", "/opt/k/py310"))
    made = Provenance(
        at=1.5e9, builder="buildah 1.28", base="debian:bookworm", files=(SourceFile("needs.txt", "sha256:12"),),
        commit="c0ffee1", dirty=True,
    )  # fmt: skip
    await add(portal, title="Torch", kernels=kernels, provenance=made, min_vram_mib=4096)
    page = (await ann.get("images")).text
    assert_whole(page)
    for words in (
        "Torch", "4 GiB VRAM or more", "buildah 1.28", "debian:bookworm", "needs.txt", "476 MiB",
        "c0ffee1</code>, with uncommitted changes", "launch?kind=job&amp;environment=lab/torch/py310",
        "launch?kind=session&amp;environment=lab/torch",
    ):  # fmt: skip
        assert words in page
    form = (await ann.get("launch?kind=job&environment=lab/torch/py310")).text
    assert '<option value="lab/torch/py310" data-kinds="job service" selected>Torch: Python 3.10 · lab/torch' in form
    portal.identity.groups["ann"] = ()
    assert "lab/torch" not in (await ann.get("images")).text + (await ann.get("launch")).text


async def test_images_page_shows_pull_progress_by_node(portal: Portal, clock: FakeClock, ann: Person) -> None:
    portal.engine.prepare_s = 60
    await add(portal)
    await clock.advance(2)
    page = (await ann.get("images")).text
    assert page.count("Pulling") == 3
    assert '<progress class="meter" max="1" value="0.5"' in page
    assert '<progress class="meter" max="1" value="0.5"' in (await ann.get("nodes")).text
    await clock.advance(70)
    assert (await ann.get("images")).text.count("Ready") == 3
    portal.engine.prepare_s = 0
    portal.engine.broken_environments["lab/none"] = "no space left on device"
    await add(portal, "lab/none")
    await clock.advance(2)
    assert "no space left on device" in (await ann.get("images")).text


async def test_author_and_admins_remove_and_prepull_image(portal: Portal, ann: Person, root: Person) -> None:
    await add(portal)
    await add(portal, "public/tools", ROOT)
    page = (await ann.get("images")).text
    assert "images/lab/torch/remove" in page
    assert "images/public/tools/remove" not in page
    assert "images/public/tools/remove" in (await root.get("images")).text
    assert (await ann.post("images/public/tools/remove")).status_code == 403
    assert (await ann.post("images/lab/torch/prepull")).status_code == 303
    ask = Submission(Kind.JOB, ("true",), environment="lab/torch")
    await portal.control.workloads.submit(ANN, ask)
    assert (await ann.post("images/lab/torch/remove")).status_code == 303
    assert portal.control.catalogue.image("lab/torch") is None
    assert (await ann.post("images/lab/torch/remove")).status_code == 404


async def test_markup_in_image_fields_is_escaped(portal: Portal, ann: Person) -> None:
    kernels = (Kernel("python3", AWKWARD),)
    await add(portal, title=AWKWARD, description=AWKWARD, kernels=kernels, provenance=Provenance(at=1.0, base=AWKWARD))
    for path in ("images", "launch", "nodes"):
        page = (await ann.get(path)).text
        assert_whole(page)
        assert "<script>alert" not in page


async def test_what_is_used_is_shown_beside_what_is_allocated(portal: Portal, clock: FakeClock, ann: Person) -> None:
    report = next(one for one in await portal.engine.nodes() if one.name == "gpu-1")
    usage = NodeUsage(1.5, 2048, 10_240, 20_480, 1_500_000.0, None, 0.0, 12.0, 61.0, 0.7)
    portal.engine.add_node(replace(report, usage=usage))
    await clock.advance(10)
    page = (await ann.get("nodes")).text
    assert "bar-used" in page
    assert "allocated, 1.5 used" in page
    assert "2 GiB used" in page
    for text in ("disk 10 GiB of 20 GiB used", "read 1.5 MB/s", "network in 0 B/s", "processor 61 °C", "load 0.7"):
        assert text in page
    assert "written" not in page, "what is unknown is left out"
