"""A workload's page: why it waits, its log and measurements on one stream, stopping it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.portal import Portal
from tests.unit.portal.conftest import Person

from commonage.ports.metrics import Sample
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.clock import FakeClock
from commonage.testing.fakes.engine import FakeEngine

pytestmark = pytest.mark.anyio
Submit = Callable[..., Any]


def events(text: str) -> list[tuple[str, str, str]]:
    """(event, id, data) of each message of a stream."""
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition(": ") for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            fields = {name: value for name, _, value in lines}
            data = "\n".join(value for name, _, value in lines if name == "data")
            found.append((fields.get("event", ""), fields.get("id", ""), data))
    return found


async def test_waiting_workload_shows_reason_and_fitting_request(ann: Person, submit: Submit) -> None:
    holder = await submit("ann", name="holder", gpus="A100:60GiB", time_limit_s=3600)
    await submit("bob", name="theirs", gpus="A100:12GiB")
    waiting = await submit("ann", name="waits", gpus="40GiB")
    page = (await ann.get(f"workloads/{waiting.id}")).text
    assert "40 GiB" in page
    assert "1 in the queue" in page
    assert f'workloads/{holder.id}">holder</a>' in page
    assert "Starts now with" in page
    assert "at the latest" in page
    assert ">theirs<" not in page


async def test_waiting_workload_shows_every_site(portal: Portal, ann: Person, submit: Submit, clock: FakeClock) -> None:
    portal.control.engines.add(FakeEngine("east", [factories.node("cpu-1").report], clock))
    await clock.advance(6)
    await submit("ann", name="holder", gpus="A100:60GiB", time_limit_s=3600)
    waiting = await submit("ann", name="waits", gpus="40GiB")
    page = (await ann.get(f"workloads/{waiting.id}")).text
    table = page.partition("<caption>Sites</caption>")[2].partition("</table>")[0]
    assert "<td>east</td><td>Node east/cpu-1 has no healthy GPU.</td>" in table
    assert "<td>local</td><td>Not enough GPU memory" in table
    assert 'data-form="left"' in table  # when the time limit of the holder leaves room


async def test_workload_of_another_user_is_not_found(ann: Person, root: Person, submit: Submit) -> None:
    theirs = await submit("bob", name="secret-plan")
    for path in ("", "/live", "/log"):
        assert (await ann.get(f"workloads/{theirs.id}{path}")).status_code == 404
    assert (await ann.post(f"workloads/{theirs.id}/stop")).status_code == 404
    assert (await root.get(f"workloads/{theirs.id}")).status_code == 200


async def test_stop_redirects_form_and_notifies_htmx(ann: Person, submit: Submit) -> None:
    one, other = await submit(name="one"), await submit(name="zwölf")
    answer = await ann.post(f"workloads/{one.id}/stop")
    assert answer.status_code == 303
    assert answer.headers["location"].endswith(one.id)
    answer = await ann.post(f"workloads/{other.id}/stop", HX_Request="true")
    assert answer.status_code == 204
    assert json.loads(answer.headers["hx-trigger"])["notice"]["text"] == "Stopping zwölf"


async def test_stop_of_ended_workload_is_a_conflict(portal: Portal, ann: Person, submit: Submit) -> None:
    portal.engine.behave(Behaviour(), name="quick")
    one = await submit(name="quick", ended=True)
    assert (await ann.post(f"workloads/{one.id}/stop")).status_code == 409
    answer = await ann.post(f"workloads/{one.id}/stop", HX_Request="true")
    assert answer.status_code == 409
    assert "already ended" in json.loads(answer.headers["hx-trigger"])["notice"]["text"]
    assert answer.headers["hx-reswap"] == "none"


async def test_stream_of_ended_workload_sends_everything_and_ends(portal: Portal, ann: Person, submit: Submit) -> None:
    portal.engine.behave(Behaviour(prints=("first", "\x1b[31msecond\x1b[0m", "<b>third</b>"), exit_code=2), name="x")
    one = await submit(name="x", ended=True)
    at = one.attempt.allocation.at
    await portal.metrics.write([Sample("memory_mib", f"attempt:{one.attempt.id}", at, 64.0)])
    found = events((await ann.get(f"workloads/{one.id}/live")).text)
    assert [name for name, _, _ in found] == ["", "series", "log-begin", "log", "end"]
    assert 'hx-target="#head"' in found[0][2]
    assert json.loads(found[1][2]) == {"metrics": {"memory_mib": [[at], [64.0]]}, "vram_mib": 0}
    assert json.loads(found[3][2]) == ["first", "second", "<b>third</b>"]


async def test_resumed_stream_repeats_no_line(portal: Portal, ann: Person, submit: Submit) -> None:
    portal.engine.behave(Behaviour(prints=("first", "second")), name="x")
    one = await submit(name="x", ended=True)
    path = f"workloads/{one.id}/live"
    marks = [id_ for name, id_, _ in events((await ann.get(path)).text) if name == "log"]
    found = events((await ann.get(path, Last_Event_ID=marks[0])).text)
    assert "log" not in [name for name, _, _ in found]
    found = events((await ann.get(path, Last_Event_ID="1:6")).text)
    assert [json.loads(data) for name, _, data in found if name == "log"] == [["second"]]
    for odd in ("nonsense", "1:-5", "9" * 50, "1:" + "9" * 50):
        assert (await ann.get(path, Last_Event_ID=odd)).status_code == 200


async def test_the_plain_log_is_untouched(portal: Portal, ann: Person, submit: Submit) -> None:
    portal.engine.behave(Behaviour(prints=("\x1b[31mred\x1b[0m", "10%\r20%")), name="x")
    one = await submit(name="x", ended=True)
    answer = await ann.get(f"workloads/{one.id}/log")
    assert answer.text == "\x1b[31mred\x1b[0m\n10%\r20%\n"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "content-security-policy" in answer.headers


async def test_earlier_attempts_are_shown(portal: Portal, ann: Person, submit: Submit, clock: FakeClock) -> None:
    from commonage.domain.workloads import RetryPolicy

    portal.engine.behave(Behaviour(prints=("again",), exit_code=0), name="x")
    portal.engine.behave(Behaviour(prints=("bad",), exit_code=1), name="x", times=1)
    one = await submit(name="x", retry=RetryPolicy(1, 5.0), ended=True)
    assert "bad" in (await ann.get(f"workloads/{one.id}/log?attempt=1")).text
    assert "again" in (await ann.get(f"workloads/{one.id}/log")).text
    assert "again" in (await ann.get(f"workloads/{one.id}/live?attempt=2")).text
    assert (await ann.get(f"workloads/{one.id}?attempt=1")).status_code == 200
    assert (await ann.get(f"workloads/{one.id}?attempt=7")).status_code == 404


async def test_the_share_is_shown_with_its_isolation(ann: Person, submit: Submit) -> None:
    one = await submit(gpus="6GiB", time_limit_s=600)
    page = (await ann.get(f"workloads/{one.id}")).text
    assert "6 GiB of GPU 0" in page
    assert "cooperative" in page
    assert "nothing stops a program that takes more" in page
    assert "Time limit 10 min" in page
