"""The benchmark `sessions` against a hub that refuses some sessions and loses others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.report import Figure, show
from benchmarks.sessions.baselines import Hub
from benchmarks.sessions.sessions import _figures, _measure


class _Hub(BaseHTTPRequestHandler):
    """bench0 comes up, bench1 is refused, bench2 is accepted and fails."""

    running: set[str]

    def _answer(self, status: int, body: object = None) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        user = self.path.split("/")[2]
        if not self.path.endswith("/server"):
            return self._answer(201)
        if user == "bench1":
            return self._answer(403, {"message": "no room"})
        if user == "bench0":
            self.running.add(user)
        return self._answer(202)

    def do_GET(self) -> None:
        self._answer(200, [{"name": user, "servers": {"": {"ready": True}}} for user in self.running])

    def do_DELETE(self) -> None:
        self.running.discard(self.path.split("/")[2])
        self._answer(204)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    handler = type("Handler", (_Hub,), {"running": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Hub(f"http://127.0.0.1:{server.server_address[1]}", "token")
    server.shutdown()
    thread.join()
    server.server_close()


def test_failed_sessions_are_counted_and_reported(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    measured = _measure(hub, 3, "baseline")
    assert len(measured.ready) == 1
    assert [why.partition(":")[0] for why in measured.failed] == ["bench1", "bench2"]
    assert any("403" in line and "no room" in line for line in capsys.readouterr().err.splitlines())
    table = {figure.name: figure for figure in _figures(3, [measured, measured], [measured])}
    assert table["3 at once, failed"].value == 4
    assert table["3 at once, failed"].baseline == 2
    assert table["3 at once, last"].value == measured.ready[-1]


def test_figure_without_value_has_no_ratio() -> None:
    text = show("Sessions", [Figure("failed", 2, "", "counted", 0), Figure("last", 3, "s", "timed", 6)], as_json=False)
    assert "| failed | 2 | 0 |  | counted |" in text
    assert "| last | 3 s | 6 s | 0.50 | timed |" in text
