"""Usage on the workload's page, suggestions on the launch form, and unattributed processes on the GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.portal import Portal
from tests.unit.portal.conftest import Person

from commonage.domain.statuses import ProcessOwner
from commonage.ports.devices import ProcessMemory
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.clock import FakeClock

pytestmark = pytest.mark.anyio
Submit = Callable[..., Any]
GPU = "A100:12GiB"


async def used(portal: Portal, clock: FakeClock, submit: Submit, mib: int, *, ends: bool = True) -> Any:
    """A job of Ann that used this amount of VRAM of an A100."""
    one = await submit("ann", gpus=GPU, command=("python", "train.py"))
    portal.devices.overruns[f"{one.id}-1"] = mib
    for _ in range(3):
        await clock.advance(5)
        await portal.control.sampling.tick()
    if ends:
        portal.engine.end(f"{one.id}-1")
        await clock.advance(1)
    return one


async def test_usage_report_of_ended_workload(portal: Portal, ann: Person, submit: Submit, clock: FakeClock) -> None:
    one = await used(portal, clock, submit, 5000)
    page = (await ann.get(f"workloads/{one.id}")).text
    assert "<strong>5.5 GiB</strong>" in page
    assert "peak, of 12 GiB" in page
    assert "Wh, its share of the GPU" in page
    assert "Measured every few seconds." in page


async def test_usage_report_of_running_workload_is_provisional(
    portal: Portal, ann: Person, submit: Submit, clock: FakeClock
) -> None:
    one = await used(portal, clock, submit, 15_000, ends=False)
    page = (await ann.get(f"workloads/{one.id}")).text
    assert "Measured every few seconds; the workload has not ended yet." in page
    assert "Above its share" in page
    assert "than its share of 12 GiB" in page, "the warning stands among the events"


async def test_workload_that_ended_before_the_first_measurement(portal: Portal, ann: Person, submit: Submit) -> None:
    portal.engine.behave(Behaviour(), name="quick")
    one = await submit(name="quick", ended=True)
    assert "No measurements: the workload ended before the first one" in (await ann.get(f"workloads/{one.id}")).text


@pytest.mark.parametrize(
    ("gpus", "offered", "said"),
    [
        ("A100:12GiB", "A100:5.5GiB", "Last time it used at most 5000 MiB of VRAM"),
        ("4GiB", "5.5GiB", "4 GiB may be too little, 5.5 GiB will do"),
        ("", "5.5GiB", "will do"),
    ],
)
async def test_form_suggests_sufficient_request(
    portal: Portal, ann: Person, submit: Submit, clock: FakeClock, gpus: str, offered: str, said: str
) -> None:
    await used(portal, clock, submit, 5000)
    fields = {"kind": "job", "command": "python train.py", "gpus": gpus, "environment": ""}
    verdict = (await ann.post("launch/dry-run", fields)).text
    assert said in verdict
    assert "simulated, so it means nothing" in verdict
    assert f'data-set="gpus" data-value="{offered}">Request 5.5 GiB' in verdict
    page = (await ann.get(f"launch?kind=job&command=python+train.py&gpus={gpus}")).text
    assert "5.5GiB" in page
    other = (await ann.post("launch/dry-run", {**fields, "command": "python test.py"})).text
    assert "suggestion" not in other


async def test_unattributed_process_is_shown_on_its_gpu(portal: Portal, ann: Person, clock: FakeClock) -> None:
    device_row = portal.devices.inventory()[2]
    portal.devices.unattributed_processes[device_row.uuid] = (ProcessMemory(99, 2048),)
    portal.engine.owned[99] = ProcessOwner(99, None, "<blender>", 0.0)
    for _ in range(3):
        await clock.advance(5)
        await portal.control.sampling.tick()
    for path in ("nodes", ""):
        page = (await ann.get(path)).text
        assert page.count("&lt;blender&gt; (process 99)") == 1, path
        assert "2 GiB of VRAM" in page, path
