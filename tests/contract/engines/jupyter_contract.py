"""A session in a container: a real JupyterLab answers, a kernel computes, and it reports whether it is used.

Hub and control plane are minimal stand-ins.

Inherited for each engine; `rig` and `visitor` are the fixtures to give.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from tests.contract.harness.jupyter_image import AHEAD, NAME

from commonage.domain.images import Environment
from commonage.domain.statuses import Phase
from commonage.domain.workloads import Kind
from commonage.engines.containers.program import CONTAINER_SESSION
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import EngineRig

_ROOT = Path(__file__).parents[3]
_TOKEN = "of-ada"
_PREFIX = "/user/ada/"
# In the session's own container: the hub's address, and how a session reaches it, differ by engine.
_HUB = """
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
ADA = {"name": "ada", "kind": "user", "admin": False, "groups": [], "scopes": ["access:servers!server=ada/"]}
class Hub(BaseHTTPRequestHandler):
    def said(self, status, what):
        text = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_GET(self):
        if self.path.rstrip("/") == "/hub/api":
            return self.said(200, {"version": "6.1.1"})
        known = self.headers.get("Authorization", "").split()[-1:] == [os.environ["JUPYTERHUB_API_TOKEN"]]
        self.said(200, ADA) if known else self.said(403, {"message": "no"})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        if self.path != "/api/workloads/" + os.environ["COMMONAGE_WORKLOAD_ID"] + "/activity":
            return self.said(200, {})
        own = self.headers["Authorization"] == "Bearer " + os.environ["COMMONAGE_TOKEN"]
        message = " ".join(map(str, (own, body["busy"], body["is_measured"])))
        self.said(200, {"notices": [{"code": "Said", "message": message, "offers": []}], "next_s": 1})
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("127.0.0.1", 18081), Hub).serve_forever()
"""
_VARIABLES = {
    "COMMONAGE_URL": "http://127.0.0.1:18081/api",
    "JUPYTERHUB_API_URL": "http://127.0.0.1:18081/hub/api",
    "JUPYTERHUB_ACTIVITY_URL": "http://127.0.0.1:18081/hub/api/users/ada/activity",
    "JUPYTERHUB_BASE_URL": "/",
    "JUPYTERHUB_CLIENT_ID": "jupyterhub-user-ada",
    "JUPYTERHUB_HOST": "",
    "JUPYTERHUB_OAUTH_ACCESS_SCOPES": '["access:servers!server=ada/"]',
    "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{_PREFIX}oauth_callback",
    "JUPYTERHUB_OAUTH_SCOPES": '["access:servers!server=ada/"]',
    "JUPYTERHUB_SERVER_NAME": "",
    "JUPYTERHUB_SERVICE_PREFIX": _PREFIX,
    "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{{port}}{_PREFIX}",
    "JUPYTERHUB_USER": "ada",
}
_CODE = """
import os, sys
print(os.path.realpath(sys.prefix), os.getcwd(), get_ipython().find_cell_magic("commonage") is not None)
sum(number * number for number in range(1000))
"""


def _ran(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, check=False)


@pytest.mark.made_ahead(AHEAD)
class JupyterContract:
    pytestmark: ClassVar = [
        pytest.mark.anyio,
        pytest.mark.allow_hosts(["127.0.0.1", "::1", "localhost", "10.98.0.0/24", "10.213.0.0/16"]),
    ]

    async def test_a_session_is_a_jupyterlab_whose_kernel_computes(self, rig: EngineRig, visitor: list[str]) -> None:
        """`visitor`: the command prefix that runs a program where the session can be reached."""
        request = rig.start_request(
            Behaviour(),
            memory_mib=1024,
            kind=Kind.SESSION,
            name="",
            wants_port=True,
            environment=Environment("jupyter", "JupyterLab", image=NAME),
            command=("/bin/sh", "-c", f"/usr/bin/python3 -c '{_HUB}' & exec \"$@\"", "sh", *CONTAINER_SESSION),
            variables=tuple(_VARIABLES.items()),
            secrets=(("JUPYTERHUB_API_TOKEN", _TOKEN), ("COMMONAGE_TOKEN", "of-the-session")),
        )
        await (await rig.engine()).start(request)
        running = await rig.phase(request.attempt_id, Phase.RUNNING)
        assert running.url is not None
        words = [*visitor, sys.executable, "-m", "tests.contract.harness.jupyter_visit"]
        visit = await asyncio.to_thread(_ran, [*words, f"{running.url}{_PREFIX}", _TOKEN, _CODE])
        assert visit.returncode == 0, (visit.stderr, await rig.lines(request.attempt_id))
        said = json.loads(visit.stdout)
        assert (said["page"], said["is_lab"], said["kernels"]) == (200, True, ["python3"])
        assert said["button"] == 200, "our extension of JupyterLab is there"
        assert said["strangers"] == 403, "no access without a token"
        # It reports with its own token. It cannot know whether a program next to its server, such as this hub, is used.
        assert said["notices"] == ["True False False"]
        assert said["outputs"] == ["/opt/commonage/kernels/python3 /home/ada True\n", "332833500"]
        await (await rig.engine()).stop(request.attempt_id, 10)
        await rig.phase(request.attempt_id, Phase.ENDED)
