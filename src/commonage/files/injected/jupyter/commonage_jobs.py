"""Jobs from within a session: a small client of the API, by the session's own token. Used by our two other modules.

The standard library only, for Python 3.8: it runs in the environments of users. The token may see and submit its
owner's own work, and ends with the session.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
import urllib.error
import urllib.request
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

ENDED = ("succeeded", "failed", "stopped", "timed_out", "lost")
WAITING = ("held", "queued", "starting")
_TIMEOUT_S = 30.0
_TRIES, _PAUSE_S = 5, 1.0


class Refused(Exception):
    """The platform refused, or does not answer; the text is for the user."""


class Platform:
    """Raises Refused outside of a session."""

    def __init__(self) -> None:
        try:
            self._url = os.environ["COMMONAGE_URL"].rstrip("/")
            self._token = os.environ["COMMONAGE_TOKEN"]
            self._own = os.environ["COMMONAGE_WORKLOAD_ID"]
        except KeyError as error:
            raise Refused(f"{error.args[0]} is not set: this works in a session of Commonage only.") from None
        # Sessions reach the API directly, also where a proxy leads to the internet.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def session(self) -> Any:
        """The session that this runs in."""
        return self._call("GET", f"/workloads/{self._own}")

    def workload(self, workload_id: str) -> Any:
        return self._call("GET", f"/workloads/{workload_id}")

    def stop(self, workload_id: str, reason: str) -> None:
        self._call("POST", f"/workloads/{workload_id}/stop", {"reason": reason})

    def submit(self, files: Mapping[str, bytes], fields: Mapping[str, Any]) -> Any:
        """Submit a job with these files. A retry after a lost response does not create a second one."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        digest = self._call("POST", "/bundles", archive.getvalue())["digest"]
        body = {"kind": "job", "key": f"session-{uuid.uuid4().hex}", "bundle": digest, **fields}
        return self._call("POST", "/workloads", body)["workload"]

    def lines(self, workload_id: str, attempt: int) -> Iterator[str]:
        """The lines of an attempt's log, until it ends. A broken connection is resumed."""
        path = f"/workloads/{workload_id}/logs?follow=true&attempt={attempt}"
        offset, failures = "", 0
        while failures < _TRIES:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": offset} if offset else {})}
            try:
                with self._open("GET", path, None, headers) as stream:
                    for kind, data, position in _events(stream):
                        failures, offset = 0, position or offset
                        if kind == "line":
                            yield json.loads(data)["text"]
                        elif kind == "end":
                            return
            except urllib.error.HTTPError as error:
                if error.code == 404:  # it ended without a log
                    return
                raise _refused(error) from None
            except OSError:
                pass
            failures += 1
            time.sleep(_PAUSE_S)
        raise Refused("the log cannot be read: the platform does not answer")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        kind = "application/gzip" if isinstance(body, bytes) else "application/json"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        for left in reversed(range(_TRIES)):
            try:
                with self._open(method, path, data, {"Content-Type": kind}) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                raise _refused(error) from None
            except OSError as error:
                if not left:
                    raise Refused(f"the platform does not answer: {error}") from None
            time.sleep(_PAUSE_S)
        raise AssertionError("unreachable")

    def _open(self, method: str, path: str, data: Any, headers: Mapping[str, str]) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", **headers}
        request = urllib.request.Request(self._url + path, data, headers, method=method)  # noqa: S310 - COMMONAGE_URL
        return self._opener.open(request, timeout=_TIMEOUT_S)


def _events(stream: Any) -> Iterator[tuple[str, str, str]]:
    """The kind, the data and the id of each event; of a comment, which shows that the server lives, all empty."""
    kind = position = ""
    for raw in stream:
        name, _, value = raw.decode("utf-8", "replace").rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            position = value
        elif name == "data":
            yield kind, value, position
            kind = position = ""
        elif value:
            yield "", "", ""


def _refused(error: urllib.error.HTTPError) -> Refused:
    try:
        return Refused(json.load(error)["detail"])
    except (ValueError, KeyError, OSError):
        return Refused(f"the platform answered {error.code} {error.reason}")


def request_of(session: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job with the session's environment and request, at the site that has its home."""
    asked = session["request"]
    return {
        "environment": session["environment"],
        "tenant": session["tenant"],
        "cpus": f"{asked['cpus_milli']}m",
        "memory_mib": asked["memory_mib"],
        "gpus": asked["gpus"],
        "one_numa": asked["one_numa"],
        "on": {**asked["on"], "site": session["site"]},
        "volumes": session["volumes"],
    }


def folder_of(path: str) -> str:
    """A folder as the job finds it: below the home, which both have, or by its path, as in a volume."""
    home = os.path.realpath(os.path.expanduser("~"))
    path = os.path.realpath(path)
    return os.path.relpath(path, home) if os.path.commonpath([home, path]) == home else path
