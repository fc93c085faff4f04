"""A visitor of a session: has JupyterLab start a kernel and run code, by HTTP and WebSocket as a browser does.

A program of its own, `python -m tests.contract.harness.jupyter_visit URL TOKEN CODE`, so that it can run on another
node of the tests. Prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any

import httpx2
from websockets.sync.client import connect

_UP_WITHIN_S = 120
_ANSWER_WITHIN_S = 60


def main() -> None:
    url, token, code = sys.argv[1:]
    with httpx2.Client(base_url=url, headers={"Authorization": f"token {token}"}, timeout=_ANSWER_WITHIN_S) as client:
        _wait(client)
        page, notices = client.get("lab"), _notices(client)
        specs = client.get("api/kernelspecs").raise_for_status().json()
        kernel = client.post("api/kernels", json={"name": specs["default"]}).raise_for_status().json()
        outputs = _run(f"{url.replace('http', 'ws', 1)}api/kernels/{kernel['id']}/channels", token, code)
        said = {
            "page": page.status_code,
            "is_lab": "jupyter-config-data" in page.text and "JupyterLab" in page.text,
            "button": client.get("lab/extensions/commonage/static/run_as_job.js").status_code,
            "strangers": httpx2.get(f"{url}api/kernels", timeout=_ANSWER_WITHIN_S).status_code,
            "kernels": sorted(specs["kernelspecs"]),
            "outputs": outputs,
            "notices": notices,
        }
        client.delete(f"api/kernels/{kernel['id']}").raise_for_status()
    print(json.dumps(said))


def _wait(client: httpx2.Client) -> None:
    deadline = time.monotonic() + _UP_WITHIN_S
    while True:
        try:
            if client.get("api/status").status_code == 200:
                return
        except httpx2.TransportError:
            pass
        assert time.monotonic() < deadline, "it does not answer"
        time.sleep(0.2)


def _notices(client: httpx2.Client) -> list[str]:
    """The control plane's answer to the session's last report."""
    deadline = time.monotonic() + _ANSWER_WITHIN_S
    while True:
        notices = client.get("commonage/notices").raise_for_status().json()["notices"]
        if notices:
            return [one["message"] for one in notices]
        assert time.monotonic() < deadline, "it reports nothing"
        time.sleep(0.2)


def _run(url: str, token: str, code: str) -> list[str]:
    """The texts of what a cell prints, of its result, and of its error, until the kernel is idle again."""
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "visit", "username": ""}
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    outputs = []
    headers = {"Authorization": f"token {token}"}
    # The server opens the channel when it knows the kernel.
    with connect(url, additional_headers=headers, open_timeout=_ANSWER_WITHIN_S) as channel:
        channel.send(json.dumps(message))
        while True:
            said: dict[str, Any] = json.loads(channel.recv(timeout=_ANSWER_WITHIN_S))
            if said["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            kind, what = said["msg_type"], said["content"]
            if kind == "stream":
                outputs.append(what["text"])
            elif kind == "execute_result":
                outputs.append(what["data"]["text/plain"])
            elif kind == "error":
                outputs.append(f"{what['ename']}: {what['evalue']}")
            elif kind == "status" and what["execution_state"] == "idle":
                return outputs


if __name__ == "__main__":
    main()
