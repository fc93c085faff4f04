"""The tests' small image with something that answers as a session does: a sliver of Jupyter's API, over the home.

Jupyter itself makes an image of 800 MB, which costs each daemon half a minute.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from tests.contract.harness.dockerd import IMAGE, NO_RULES, Dockerd, minimal_image, new_folder

_PROGRAM = b"""#!/usr/bin/python3
import json, os, pathlib, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

asked = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
contents = asked.path + "api/contents/"
home = pathlib.Path(os.environ["HOME"])

class Session(BaseHTTPRequestHandler):
    def said(self, status, text=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    @property
    def file(self):
        return home / urllib.parse.unquote(self.path.removeprefix(contents).partition("?")[0])

    def do_GET(self):
        if not self.path.startswith(contents):
            about = {"user": os.environ["JUPYTERHUB_USER"], "workload": os.environ["COMMONAGE_WORKLOAD_ID"]}
            return self.said(200, json.dumps(about).encode())
        if self.file == home:
            return self.said(200, json.dumps({"content": [{"name": one} for one in os.listdir(home)]}).encode())
        self.said(200, self.file.read_bytes()) if self.file.is_file() else self.said(404)

    def do_PUT(self):
        self.file.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
        self.said(201)

    def do_DELETE(self):
        self.file.unlink()
        self.said(204)

ThreadingHTTPServer(("0.0.0.0", asked.port), Session).serve_forever()
"""


def session_image() -> bytes:
    buffer = BytesIO(minimal_image())
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        info = tarfile.TarInfo("usr/bin/jupyterhub-singleuser")
        info.mode, info.size = 0o755, len(_PROGRAM)
        archive.addfile(info, BytesIO(_PROGRAM))
    return buffer.getvalue()


@contextmanager
def session_daemon() -> Iterator[dict[str, str]]:
    """A Docker daemon that has the image; yields the settings of a server that uses both."""
    daemon = Dockerd(new_folder(), NO_RULES)
    try:
        daemon.start()
        repository, _, tag = IMAGE.partition(":")
        daemon.ask("POST", f"/images/create?fromSrc=-&repo={repository}&tag={tag}", content=session_image())
        yield {"COMMONAGE_DOCKER_URL": daemon.url, "COMMONAGE_DOCKER_IMAGE": IMAGE}
    finally:
        daemon.remove()
