"""The client in sessions (files/injected/jupyter/commonage_jobs.py), against a server that breaks its streams."""

import importlib.util
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from commonage.files.injected import JUPYTER

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
SESSION = {
    "environment": "notebook",
    "tenant": "lab",
    "site": "clinic",
    "volumes": ["data:rw"],
    "request": {
        "cpus_milli": 500, "memory_mib": 1024, "gpus": "8192MiB", "one_numa": False, "on": {"zone": "a"},
    },
}  # fmt: skip


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("commonage_jobs", JUPYTER / "commonage_jobs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


jobs = _load()


class _Api(BaseHTTPRequestHandler):
    asked: list[tuple[str, str, dict[str, str], bytes]] = []  # noqa: RUF012 - emptied for each test
    answers: dict[str, list[tuple[int, bytes]]] = {}  # noqa: RUF012 - likewise

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.command, self.path, dict(self.headers), body))
        status, text = self.answers[self.path].pop(0)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = _answer

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Api]]:
    _Api.asked, _Api.answers = [], {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("COMMONAGE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("COMMONAGE_TOKEN", "of-ada")
    monkeypatch.setenv("COMMONAGE_WORKLOAD_ID", "session1")
    monkeypatch.setattr(jobs, "_PAUSE_S", 0.0)
    yield _Api
    server.shutdown()
    server.server_close()


def test_a_job_is_sent_with_its_files_by_the_sessions_own_token(api: type[_Api]) -> None:
    api.answers = {
        "/bundles": [(201, b'{"digest": "d"}')],
        "/workloads": [(201, b'{"workload": {"id": "job1"}}')],
    }
    assert jobs.Platform().submit({"a.ipynb": b"{}"}, {"command": ["a.ipynb"]})["id"] == "job1"
    (_, _, _, archive), (_, _, headers, body) = api.asked
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        assert packed.getnames() == ["a.ipynb"]
    assert headers["Authorization"] == "Bearer of-ada"
    sent = json.loads(body)
    assert (sent["kind"], sent["bundle"], sent["command"]) == ("job", "d", ["a.ipynb"])


def test_a_refusal_is_told_in_the_platforms_words(api: type[_Api]) -> None:
    api.answers = {"/workloads/session1": [(403, b'{"detail": "Not yours."}')]}
    with pytest.raises(jobs.Refused, match=r"Not yours\."):
        jobs.Platform().session()


def test_a_broken_log_is_read_on_from_where_it_broke(api: type[_Api]) -> None:
    line = 'id: {}\nevent: line\ndata: {{"text": "{}"}}\n\n'
    end = "event: end\ndata: {}\n\n"
    api.answers = {
        "/workloads/j/logs?follow=true&attempt=1": [
            (200, (": still here\n\n" + line.format(4, "one")).encode()),
            (200, b""),
            (200, (line.format(8, "two") + end).encode()),
        ]
    }
    assert list(jobs.Platform().lines("j", 1)) == ["one", "two"]
    assert [headers.get("Last-Event-Id") for _, _, headers, _ in api.asked] == [None, "4", "4"]


def test_outside_of_a_session_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMMONAGE_URL", "COMMONAGE_TOKEN", "COMMONAGE_WORKLOAD_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(jobs.Refused, match="in a session of Commonage only"):
        jobs.Platform()


def test_the_request_of_a_session_keeps_the_job_at_its_site() -> None:
    made = jobs.request_of(SESSION)
    assert made["on"] == {"zone": "a", "site": "clinic"}
    assert (made["cpus"], made["memory_mib"], made["gpus"]) == ("500m", 1024, "8192MiB")


def test_a_folder_is_named_below_the_home_or_by_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jobs.folder_of(str(tmp_path / "work")) == "work"
    assert jobs.folder_of(str(tmp_path)) == "."
    assert jobs.folder_of("/volumes/data") == "/volumes/data"
