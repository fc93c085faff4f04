"""A trace leads from the request to the running workload, over all processes of an installation and its site."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import MappingProxyType

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.acceptance.served import Served, served
from tests.acceptance.test_visits import join
from tests.fakes.waiting import wait_until

from commonage.server.processes.ports import free_port
from commonage.wire.hub import API_PATH
from commonage.wire.workloads import SubmitIn

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Span:
    component: str
    name: str
    trace: str
    id: str
    parent: str
    began_ns: int
    ended_ns: int
    attributes: MappingProxyType[str, str]


class Collector:
    """Receives spans by OTLP over HTTP, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        received = self._received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                received(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def _received(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {one.key: one.value.string_value for one in resource.resource.attributes}
            for one in (span for scope in resource.scope_spans for span in scope.spans):
                known = MappingProxyType({key.key.partition(".")[2]: key.value.string_value for key in one.attributes})
                ids = one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex()
                times = one.start_time_unix_nano, one.end_time_unix_nano
                self.spans.append(Span(about["service.name"], one.name, *ids, *times, known))

    def trace_of(self, workload: str) -> list[Span]:
        """All spans of the trace that has spans of this workload."""
        traces = {one.trace for one in self.spans if one.attributes.get("workload") == workload}
        return [one for one in self.spans if one.trace in traces]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tracing")
    traced = {"COMMONAGE_TRACING_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    address = {
        "COMMONAGE_SITE_ADDRESS": "127.0.0.1",
        "COMMONAGE_SITES_BIND": "127.0.0.1",
        "COMMONAGE_SITES_PORT": str(free_port()),
        "COMMONAGE_JOINING_BIND": "127.0.0.1",
        "COMMONAGE_JOINING_PORT": str(free_port()),
    }
    with pytest.MonkeyPatch.context() as patch, served(folder, variables={**traced, **address}) as running:
        for name, value in traced.items():
            patch.setitem(os.environ, name, value)  # of the site's agent
        agent = join(running, folder / "clinic", running.token("admin", "--admin"))
        try:
            yield running
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(60)


def awaited(collector: Collector, workload: str, *names: str, within_s: float = 60) -> dict[str, Span]:
    """The spans of the workload's trace by component and name, once these are there. They lead to one root."""

    def found() -> list[Span] | None:
        spans = collector.trace_of(workload)
        return spans if set(names) <= {f"{one.component} {one.name}" for one in spans} and connected(spans) else None

    spans = wait_until(found, f"the spans {names}", within_s=within_s)
    assert len({one.trace for one in spans}) == 1
    return {f"{one.component} {one.name}": one for one in spans}


def connected(spans: list[Span]) -> bool:
    ids = {one.id for one in spans}
    roots = [one for one in spans if not one.parent]
    return len(roots) == 1 and all(one.parent in ids for one in spans if one.parent)


STARTS = ("workload.queue", "scheduler.pass", "engine.start", "workload.start")
OF_START = ("commonage-control POST", *(f"commonage-control {name}" for name in STARTS))


@pytest.mark.parametrize("site", ["local", "clinic"])
def test_one_trace_from_the_submission_of_a_job_to_running(
    installation: Served, collector: Collector, site: str
) -> None:
    alice = installation.client("alice")
    asked = {"kind": "job", "command": ["true"], "on": {"site": site}}
    job = alice.submit(SubmitIn.model_validate(asked)).workload
    at_site = ["commonage-site-agent site.engine.start"] if site == "clinic" else []
    spans = awaited(collector, job.id, *OF_START, *at_site, "commonage-control workload.run")
    request, queue, start = (spans[f"commonage-control {one}"] for one in ("POST", "workload.queue", "workload.start"))
    assert request.attributes["path"] == f"{API_PATH}/workloads"
    assert queue.parent == start.parent == request.id
    assert queue.ended_ns == start.began_ns
    assert start.attributes["site"] == site
    for name in at_site:
        assert spans[name].parent == spans["commonage-control engine.start"].id


def test_one_trace_from_the_click_to_a_session_that_answers(installation: Served, collector: Collector) -> None:
    alice = installation.client("alice")
    asked = {"kind": "session", "name": "traced", "environment": "notebook", "cpus": 0.2, "memory_mib": 1024}
    session = alice.submit(SubmitIn.model_validate(asked)).workload
    spans = awaited(collector, session.id, *OF_START, "commonage-hub hub.spawn", within_s=400)
    answers, runs = spans["commonage-hub hub.spawn"], spans["commonage-control workload.start"]
    assert answers.ended_ns >= runs.ended_ns
    roots = [one for one in collector.trace_of(session.id) if not one.parent]
    assert [one.component for one in roots] == ["commonage-control"]  # the click; the hub's request to it is below
