"""`kubernetes`: what the benchmark derives from what it saw."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kubernetes.cluster import Pods
from benchmarks.kubernetes.kubernetes import FULL, SHORT
from benchmarks.kubernetes.outage import Mix, difference
from benchmarks.kubernetes.queue import queue_figures
from benchmarks.kubernetes.scale import scale_figures
from benchmarks.kubernetes.starts import starts_figures
from commonage.engines.kubernetes.client import Client


def test_starts_are_compared_by_the_difference_of_their_medians() -> None:
    middle, _, longer = starts_figures([1.2, 1.4, 9.0], [1.0, 1.1, 1.2])
    assert (middle.value, middle.baseline) == (1.4, 1.1)
    assert longer.value == pytest.approx(0.3)


def test_queue_is_compared_by_rate() -> None:
    rate, share = queue_figures(500, 250.0, 200.0, 20)
    assert (rate.value, rate.baseline) == (2.0, 2.5)
    assert share.value == pytest.approx(0.8)


def test_added_time_and_cpu_are_for_one_pod() -> None:
    run, added, start, end, cores, rest = scale_figures(100, 8.0, 6.0, 4.0, 3.0, 0.1)
    assert (run.value, run.baseline) == (8.0, 6.0)
    assert (added.value, start.value, end.value) == pytest.approx((20, 40, 30))
    assert (cores.value, rest.value) == (0.5, 0.1)


def _pod(uid: str, phase: str, state: str | None) -> dict[str, Any]:
    statuses = [{"state": {state: {}}}] if state else []
    metadata = {"name": "cm-1", "uid": uid, "annotations": {"commonage.dev/workload": "w1"}}
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": statuses}}


def test_pod_that_ran_unseen_counts_as_started() -> None:
    pods = Pods(Client(), "bench")
    pods.note(_pod("a", "Pending", "waiting"), False)
    assert pods.seen["a"].started_at is None
    pods.note(_pod("a", "Succeeded", "terminated"), False)
    pods.note(_pod("b", "Running", "running"), False)
    pods.note(_pod("b", "Running", "running"), True)
    assert all(one.started_at is not None for one in pods.seen.values())
    assert [one.workload for one in pods.seen.values()] == ["w1", "w1"]
    assert (pods.seen["a"].has_ended, pods.seen["b"].is_gone) == (True, True)
    assert pods.most_live == 1


def test_each_job_of_an_outage_has_a_name_of_its_own() -> None:
    jobs = Mix(FULL.outage, FULL.each).all
    assert len({job.name for job in jobs}) == len(jobs) == 5 * FULL.each
    assert min(job.lines for job in Mix(SHORT.outage, SHORT.each).all) > 0


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        (["line 0", "line 1"], ""),
        (["line 0"], "1 lines instead of 2; the first difference is [] at 1"),
        (["line 0", "line 0", "line 1"], "3 lines instead of 2; the first difference is ['line 0', 'line 1'] at 1"),
        (["line 0", "line 1", "line 1"], "3 lines instead of 2; the first difference is ['line 1'] at 2"),
    ],
)
def test_log_is_compared_line_by_line(printed: list[str], why: str) -> None:
    assert difference(printed, 2) == why


class _EmptyCluster(ThreadingHTTPServer):
    """An API server that accepts all objects and runs nothing: the namespace never gets its service account."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: set[str] = set()
        self.is_asked = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: _EmptyCluster

    def do_GET(self) -> None:
        if self.path.endswith("/serviceaccounts/default"):
            self.server.is_asked.set()
        self._answer(404)

    def do_PATCH(self) -> None:
        self.server.objects.add(self.path.partition("?")[0])
        self._answer(201)

    def do_DELETE(self) -> None:
        self.server.objects.discard(self.path.partition("?")[0])
        self._answer(200)

    def _answer(self, status: int) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"kind": "Status", "message": "an answer"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def empty_cluster() -> Iterator[_EmptyCluster]:
    with _EmptyCluster() as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_objects_are_removed_when_the_benchmark_is_ended(
    empty_cluster: _EmptyCluster, tmp_path: Path, number: signal.Signals
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    named = {"cluster": {"server": f"http://127.0.0.1:{empty_cluster.server_port}"}}
    config = {
        "current-context": "it", "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", **named}], "users": [{"name": "it", "user": {}}],
    }  # fmt: skip
    kubeconfig.write_text(json.dumps(config))
    process = subprocess.Popen(
        # A run of the tests that is in the background ignores SIGINT, and what it starts would do so, too.
        ["env", "--default-signal=INT", sys.executable, "-m", "benchmarks", "kubernetes", "--short"],
        env=os.environ | {"KUBECONFIG": str(kubeconfig)}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        assert empty_cluster.is_asked.wait(60)
        assert len(empty_cluster.objects) == 2
        process.send_signal(number)
        assert process.wait(60) == (143 if number is signal.SIGTERM else 1)
    finally:
        process.kill()
        process.wait()
    assert empty_cluster.objects == set()
