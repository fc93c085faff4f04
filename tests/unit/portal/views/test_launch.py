"""The launch page: its options, the preview, and that typed values are kept."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.portal import Portal
from tests.unit.portal.conftest import Person

from commonage.control.queries.launch import Volumes
from commonage.control.resources.resources import Documents
from commonage.control.settings import ControlSettings
from commonage.domain.principals import Principal, Scope
from commonage.domain.statuses import Capabilities
from commonage.domain.volumes import Volume, VolumeKind
from commonage.domain.workloads import Kind
from commonage.ports.store import Filter
from commonage.testing.fakes.clock import FakeClock
from commonage.wire.hub import PORTAL_PATH

from tests.fakes.portal import USER  # isort: skip

pytestmark = pytest.mark.anyio
ANN = Principal("ann", USER)


async def test_gpu_choices_show_whether_they_are_free(ann: Person, submit: Callable[..., Any]) -> None:
    await submit("bob", gpus="A100:80GiB")
    await submit("bob", gpus="RTX 4090:20GiB")
    await submit("bob", gpus="RTX 4090:20GiB")
    page = (await ann.get("launch")).text
    assert "4 GiB of VRAM" in page
    assert 'class="choice is-busy" data-set="gpus" data-value="16GiB"' in page
    assert 'class="choice" data-set="gpus" data-value="4GiB"' in page


async def test_volume_shows_nodes_that_enforce_its_size(
    portal: Portal, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Capabilities("swarm", mounts=True, bounded_on=("gpu-1",), unbounded_on=("worker3",))
    results = Volume("results", kind=VolumeKind.DOCKER, writable=True, size_mib=8)
    node_pool: Any = SimpleNamespace(capabilities=lambda _access: [engine])
    found = Volumes(node_pool, ControlSettings(volumes=(results,)), portal.control.homes)
    monkeypatch.setattr(portal.control, "volumes", found)
    assert "Its size is enforced on gpu-1, not on worker3.</span></label>" in (await ann.get("launch")).text


async def test_a_job_runs_near_a_volume_that_is_at_some_sites(
    portal: Portal, ann: Person, submit: Callable[..., Any]
) -> None:
    assert 'name="near"' not in (await ann.get("launch")).text  # all volumes are everywhere
    root = Principal("root", frozenset(Scope))
    scans = {"kind": "Volume", "name": "scans", "title": "Scans", "source": "/srv/scans", "sites": ["local"]}
    await portal.control.resources.apply(root, Documents([scans]))
    assert '<option value="scans">Scans</option>' in (await ann.get("launch")).text
    form = {"kind": "job", "command": "true", "near": "scans", "key": "k"}
    sent = await ann.post("launch", form)
    workload_id = sent.headers["location"].rpartition("/")[2]
    assert "<dt>Near the volume</dt><dd>scans</dd>" in (await ann.get(f"workloads/{workload_id}")).text
    assert '<option value="scans" selected>' in (await ann.get(f"launch?again={workload_id}")).text
    refused = await ann.post("launch", {**form, "near": "nothing", "key": "l"})
    assert "there is no volume &#39;nothing&#39; for members of commons" in refused.text


async def test_a_job_is_sent_once_however_often_the_button_is_pressed(portal: Portal, ann: Person) -> None:
    fields = {"kind": "job", "command": "python x.py", "name": "twice", "key": "portal-1"}
    first, second = await ann.post("launch", fields), await ann.post("launch", fields)
    assert first.status_code == second.status_code == 303
    assert first.headers["location"] == second.headers["location"]
    found = await portal.control.queries.workloads(ANN, Filter(text="twice"), limit=10)
    assert len(found.items) == 1
    assert found.items[0].spec.command == ("python", "x.py")


async def test_a_session_goes_through_the_hub(portal: Portal, ann: Person, clock: FakeClock) -> None:
    posting = asyncio.create_task(ann.post("launch", {"kind": "session", "gpus": "8GiB", "key": "portal-2"}))
    while not posting.done():
        await clock.advance(0.1)
    answer = posting.result()
    assert answer.status_code == 303
    workload_id = answer.headers["location"].removeprefix(f"{PORTAL_PATH}workloads/")
    made = await portal.control.queries.workload(ANN, workload_id)
    assert made.spec.kind is Kind.SESSION
    assert made.spec.request.gpu is not None


async def test_invalid_form_keeps_entered_values(ann: Person) -> None:
    fields = {"kind": "job", "command": "echo '</textarea>", "cpus": "none", "memory": "4GiB", "name": "kept"}
    answer = await ann.post("launch", fields)
    assert answer.status_code == 422
    assert "cpus &#39;none&#39; is not a number of cores" in answer.text
    assert 'aria-invalid="true"' in answer.text
    assert "echo &#39;&lt;/textarea&gt;" in answer.text
    assert 'value="kept"' in answer.text
    assert 'value="4GiB"' in answer.text


async def test_refused_submission_keeps_entered_values(ann: Person) -> None:
    answer = await ann.post("launch", {"kind": "job", "command": "x", "gpus": "900GiB", "name": "kept"})
    assert answer.status_code == 409
    assert "900 GiB" in answer.text
    assert 'value="kept"' in answer.text
    answer = await ann.post("launch", {"kind": "job", "command": "x", "environment": "absent"})
    assert answer.status_code == 422
    assert "not found" in answer.text
    answer = await ann.post("launch", {"kind": "job", "command": "x", "name": "n" * 300})
    assert answer.status_code == 422
    assert "300 characters" in answer.text


async def test_dry_run_shows_verdict(ann: Person, submit: Callable[..., Any]) -> None:
    def verdict(text: str) -> str:
        return text.partition('hx-target="#verdict"')[2]

    answer = await ann.post("launch/dry-run", {"kind": "job", "gpus": "4GiB"}, HX_Request="true")
    assert "Starts now" in verdict(answer.text)
    await submit("bob", gpus="A100:80GiB", time_limit_s=3600)
    answer = await ann.post("launch/dry-run", {"kind": "job", "gpus": "40GiB"}, HX_Request="true")
    assert "Waits in the queue" in verdict(answer.text)
    assert "40 GiB" in verdict(answer.text)
    assert "Starts now with" in verdict(answer.text)
    answer = await ann.post("launch/dry-run", {"kind": "job", "gpus": "900GiB"}, HX_Request="true")
    assert "Cannot start" in verdict(answer.text)
    answer = await ann.post("launch/dry-run", {"kind": "job", "time": "soon"}, HX_Request="true")
    assert "Incomplete" in verdict(answer.text)
    assert "is not a duration" in answer.text.partition('hx-target="#error-time"')[2].partition("</hx-partial>")[0]


async def test_dry_run_creates_nothing(portal: Portal, ann: Person) -> None:
    await ann.post("launch/dry-run", {"kind": "job", "command": "x", "key": "portal-3"})
    assert not (await portal.control.queries.workloads(ANN, Filter(), limit=1)).items


async def test_run_again_of_anothers_work_is_an_empty_form(ann: Person, submit: Callable[..., Any]) -> None:
    theirs = await submit("bob", name="secret-plan")
    page = await ann.get(f"launch?again={theirs.id}")
    assert page.status_code == 200
    assert "secret-plan" not in page.text
    mine = await submit("ann", name="mine", gpus="8GiB")
    page = await ann.get(f"launch?again={mine.id}&gpus=4GiB")
    assert 'value="mine"' in page.text
    assert 'name="gpus" value="4GiB"' in page.text


async def test_a_profile_fills_the_form_with_one_click(portal: Portal, ann: Person) -> None:
    assert "data-fill" not in (await ann.get("launch")).text
    profile = {
        "kind": "Profile", "name": "deep", "title": "Deep <learning>", "cpus": 4, "memory": "16GiB", "gpus": "A100:1",
        "labels": {"zone": "basement"},
    }  # fmt: skip
    await portal.control.resources.apply(Principal("root", frozenset(Scope)), Documents([profile]))
    page = (await ann.get("launch")).text
    assert "<span>Deep &lt;learning&gt;</span>" in page
    found = re.search(r'data-fill="([^"]*)"', page)
    assert found is not None
    assert json.loads(html.unescape(found[1])) == {
        "environment": "", "cpus": "4", "memory": "16 GiB", "gpus": "A100:1", "on": "zone=basement",
    }  # fmt: skip
