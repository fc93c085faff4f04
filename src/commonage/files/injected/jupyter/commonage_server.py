"""Extension of a session's Jupyter server: runs a notebook as a job. Called by our extension of JupyterLab.

POST commonage/jobs with the `path` of a notebook submits it; GET commonage/jobs/ID returns its state and its result.
"""

from __future__ import annotations

import asyncio
import glob
import json
import os
from typing import TYPE_CHECKING

from commonage_jobs import ENDED, Platform, Refused, folder_of, request_of  # type: ignore[import-not-found]  # beside this file
from jupyter_server.base.handlers import APIHandler
from tornado import web

if TYPE_CHECKING:
    from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "commonage_server"}]


def _load_jupyter_server_extension(app: Any) -> None:
    base = app.web_app.settings["base_url"].rstrip("/")
    handlers = [(f"{base}/commonage/jobs", Jobs), (f"{base}/commonage/jobs/([0-9a-z]+)", Job)]
    app.web_app.add_handlers(".*$", handlers)


class _Handler(APIHandler):  # type: ignore[misc]  # untyped
    def file_of(self, path: str) -> str:
        """The file of a notebook below the server's folder. Raises HTTPError."""
        root = os.path.realpath(self.settings["server_root_dir"])
        file = os.path.normpath(os.path.join(os.path.expanduser(root), path.strip("/")))
        if os.path.commonpath([root, file]) != root or not os.path.isfile(file) or not file.endswith(".ipynb"):
            raise web.HTTPError(404, reason="There is no such notebook")
        return file

    async def answer(self, call: Any, *words: Any) -> None:
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, call, *words)
        except Refused as error:
            self.set_status(409)
            found = {"message": str(error)}
        except OSError as error:
            self.set_status(409)
            found = {"message": f"The notebook cannot be read: {error.strerror}."}
        self.finish(json.dumps(found))


class Jobs(_Handler):
    @web.authenticated
    async def post(self) -> None:
        body = self.get_json_body() or {}
        await self.answer(submit, self.file_of(str(body.get("path", ""))))


class Job(_Handler):
    @web.authenticated
    async def get(self, workload_id: str) -> None:
        path = self.get_query_argument("path", "")
        await self.answer(state_of, workload_id, path, self.file_of(path))


def submit(file: str) -> dict[str, Any]:
    """Submit the notebook as it is now: later changes do not reach a job that waits."""
    platform = Platform()
    name = os.path.basename(file)
    with open(file, "rb") as notebook:
        content = notebook.read()
    words = [f"./{name}", "--folder", folder_of(os.path.dirname(file))]
    made = platform.submit({name: content}, {**request_of(platform.session()), "name": name[:128], "command": words})
    return {"id": made["id"]}


def state_of(workload_id: str, path: str, file: str) -> dict[str, Any]:
    """`result` is the path of the executed notebook, if there is one."""
    found = Platform().workload(workload_id)
    result = result_of(workload_id, file)
    above = path.rpartition("/")[0]
    return {
        "state": found["state"],
        "ended": found["state"] in ENDED,
        "reason": found["reason"]["message"],
        "result": result and f"{above}/{result}".lstrip("/"),
    }


def result_of(workload_id: str, file: str) -> str | None:
    """The name of the result in the folder of the notebook: the newest one that this job wrote."""
    folder, name = os.path.split(file[: -len(".ipynb")])
    for result in sorted(glob.glob(os.path.join(glob.escape(folder), f"{glob.escape(name)}.result-*")), reverse=True):
        try:
            with open(result, encoding="utf-8") as notebook:
                about = json.load(notebook)["metadata"]["commonage"]
            if about["workload"] == workload_id:
                return os.path.basename(result)
        except (OSError, ValueError, KeyError, TypeError):  # another file of such a name
            continue
    return None
