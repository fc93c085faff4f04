"""The program that copies objects of an S3 bucket, against a server that behaves like one, and AWS's own examples."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from commonage.sdk import s3_import

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}
PAGE = 2
TIMEOUT_S = 120


class S3(ThreadingHTTPServer):
    """The bucket `lab`. `breaks`: how many answers end in the middle."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.breaks = 0
        self.ranges: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: S3

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        _, bucket, *rest = unquote(parts.path).split("/")
        if "AKIAIOSFODNN7EXAMPLE/" not in self.headers.get("authorization", ""):
            self.send_error(403)
        elif bucket != "lab":
            self.send_error(404)
        elif not rest:
            self._list({name: values[0] for name, values in parse_qs(parts.query).items()})
        else:
            self._object(self.server.objects["/".join(rest)])

    def _list(self, query: dict[str, str]) -> None:
        names = sorted(name for name in self.server.objects if name.startswith(query["prefix"]))
        start = int(query.get("continuation-token", "0"))
        more = f"<NextContinuationToken>{start + PAGE}</NextContinuationToken>" if start + PAGE < len(names) else ""
        listed = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.server.objects[name])}</Size></Contents>"
            for name in names[start : start + PAGE]
        )
        self._send(f'<R xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{listed}{more}</R>'.encode(), 200)

    def _object(self, content: bytes) -> None:
        asked = self.headers.get("range", "")
        self.server.ranges.append(asked)
        content = content[int(asked[6:-1]) :] if asked else content
        if self.server.breaks and content:
            self.server.breaks -= 1
            self._send(content, 200, content[: len(content) // 2])
            self.close_connection = True
            return
        self._send(content, 206 if asked else 200)

    def _send(self, content: bytes, status: int, sent: bytes | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if sent is None else sent)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests look at what is copied."""


@pytest.fixture
def s3() -> Iterator[S3]:
    with S3() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def copied(s3: S3, folder: Path, source: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3.server_port}", "HOME": str(folder)}
    text = Path(s3_import.__file__).read_text()
    return subprocess.run(
        [sys.executable, "-c", text, source, "HOME", "in"], env={**environment, **variables},
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip


def test_objects_of_several_pages_are_copied(s3: S3, tmp_path: Path) -> None:
    s3.objects = {f"train/{name}": name.encode() for name in ("a", "deep/ä b+c&d", "empty", "z")} | {"train/": b""}
    s3.objects["train/empty"] = b""
    done = copied(s3, tmp_path, "s3://lab/train")
    assert done.returncode == 0, done.stderr
    assert "4 copied, 0 skipped because they exist" in done.stdout
    assert (tmp_path / "in" / "deep" / "ä b+c&d").read_text() == "deep/ä b+c&d"
    assert (tmp_path / "in" / "empty").read_bytes() == b""
    s3.objects["train/z"] = b"longer"
    again = copied(s3, tmp_path, "s3://lab/train")
    assert "1 copied, 3 skipped because they exist" in again.stdout
    assert (tmp_path / "in" / "z").read_bytes() == b"longer"


def test_broken_object_goes_on_where_it_broke(s3: S3, tmp_path: Path) -> None:
    s3.objects, s3.breaks = {"big": bytes(range(256)) * 100}, 1
    done = copied(s3, tmp_path, "s3://lab/big")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "in" / "big").read_bytes() == s3.objects["big"]
    assert s3.ranges == ["", "bytes=12800-"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("s3://other/x", "HTTP 404"),
        ("s3://lab/none", "there is nothing"),
        ("s3://lab/bad", "a name that a file cannot have"),
    ],
)
def test_reasons_of_failures_are_printed(s3: S3, tmp_path: Path, source: str, says: str) -> None:
    s3.objects = {"bad/../../x": b"x"}
    done = copied(s3, tmp_path, source)
    assert done.returncode == 1 and says in done.stderr
    assert not (tmp_path.parent / "x").exists()


def test_wrong_keys_are_named(s3: S3, tmp_path: Path) -> None:
    done = copied(s3, tmp_path, "s3://lab/x", AWS_ACCESS_KEY_ID="another")
    assert done.returncode == 1 and "HTTP 403, the keys" in done.stderr


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signs_like_the_examples_of_aws(monkeypatch: pytest.MonkeyPatch, query: str, signature: str) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://examplebucket.s3.amazonaws.com")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    moment = time.strptime("20130524T000000Z", "%Y%m%dT%H%M%SZ")
    monkeypatch.setattr(s3_import.time, "gmtime", lambda: moment)
    signed = s3_import.Bucket("ignored").signature("/", query)
    assert signed["authorization"].endswith(f"Signature={signature}")
