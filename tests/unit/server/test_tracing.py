"""Traces: what they cost when they are off, and the spans of a workload."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from commonage import tracing
from commonage.control.workloads.traces import WorkloadTraces
from commonage.domain.workloads import State, Workload
from commonage.testing.factories import workload

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorder:
    """Spans of the past as (name, parent, began, ended)."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, float, float]] = []

    def begin(self, name: str, parent: str, began_s: float | None, attributes: dict[str, Any]) -> Any:
        spans = self.spans

        class Span:
            def end(self, end_time: int) -> None:
                spans.append((name, parent, began_s or 0.0, end_time / tracing.NS_PER_S))

        return Span()

    def current(self) -> str:
        return ""

    def active(self, span: Any) -> AbstractContextManager[None]:
        return nullcontext()


def moved(before: Workload, state: State, at: float) -> Workload:
    return replace(before, state=state, since=at)


def test_the_server_imports_no_sdk_while_traces_are_off() -> None:
    program = "import commonage.server.main, sys; print([one for one in sys.modules if 'opentelemetry.sdk' in one])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert not tracing.is_on()
    with tracing.span("anything", begins=True):
        assert tracing.headers() == {}


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(tracing.TracingMissing, match=r"commonage\[tracing\]"):
        tracing.configure("http://127.0.0.1:1", "control")
    assert not tracing.is_on()


def test_each_state_that_a_workload_leaves_is_a_span_below_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, traces = Recorder(), WorkloadTraces()
    monkeypatch.setattr(tracing, "_tracer", recorder)
    plain = workload()
    queued = moved(replace(plain, spec=replace(plain.spec, traceparent=PARENT)), State.QUEUED, 10.0)
    for one in (queued, replace(queued, version=2), moved(queued, State.STARTING, 12.0)):
        traces.changed(one)
    restarted = WorkloadTraces()  # it hears first of the state that the store has
    for one in (
        moved(queued, State.STARTING, 12.0),
        moved(queued, State.RUNNING, 15.0),
        moved(queued, State.LOST, 99.0),
    ):
        restarted.changed(one)
    for one in (moved(plain, State.QUEUED, 10.0), moved(plain, State.RUNNING, 11.0)):
        traces.changed(one)  # not traced
    assert recorder.spans == [
        ("workload.queue", PARENT, 10.0, 12.0),
        ("workload.start", PARENT, 12.0, 15.0),
        ("workload.run", PARENT, 15.0, 99.0),
    ]
