"""Client for this node's Docker daemon, on the standard library alone: a few blocking API calls, for threads.

The engines use an asyncio client that is not installed on the nodes of agents.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from commonage.domain.errors import EngineFailure, InvalidInput
from commonage.link.exchange import error_text

Json = Any
_TIMEOUT_S = 10.0
_CONTAINER_GONE = (404, 409)


class DaemonGone(EngineFailure):
    retryable = True


class DaemonSilent(EngineFailure):
    """The daemon accepts the connection, and does not answer in time."""

    retryable = True


class DaemonRefused(EngineFailure):
    """The daemon refused the request. `http_status` and `daemon_message` are from its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(
            "the Docker daemon refused the request", retryable=status >= 500, native=f"Docker: {message[:400]}"
        )
        self.http_status, self.daemon_message = status, message


class DockerDaemon:
    """One daemon at `url` (unix:///…)."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "unix" or not parts.path:
            raise InvalidInput(f"docker is {url!r}: an agent uses the daemon of its own node; set it to unix:///PATH")
        self.url = url
        self._socket = parts.path

    # --- calls ----------------------------------------------------------------------------------------------------

    def ping(self, timeout_s: float) -> None:
        """Raises DaemonGone, DaemonSilent."""
        self._request("GET", "/_ping", timeout_s=timeout_s)

    def info(self) -> Mapping[str, Any]:
        return dict(self._json("/info"))

    def containers(self, label: str, *, ended_too: bool = False) -> Sequence[Mapping[str, Any]]:
        query = {"all": int(ended_too), "filters": json.dumps({"label": [label]})}
        return list(self._json(f"/containers/json?{urlencode(query)}"))

    def inspect(self, container: str) -> Mapping[str, Any] | None:
        """The full description of a container; None if it does not exist."""
        description = None
        with _allowing(404):
            description = dict(self._json(f"/containers/{container}/json"))
        return description

    def remove(self, container: str) -> None:
        """Kill and remove a container. No error if it is gone, or being removed."""
        with _allowing(*_CONTAINER_GONE):
            self._request("DELETE", f"/containers/{container}?force=1&v=1")

    def set_limits(self, container: str, *, shares: int = 0, memory: int = 0) -> None:
        """Set the container's CPU weight (1024 is one core's) and its `memory` (bytes) without swap.

        A value of 0 changes nothing. No error if the container is gone.
        """
        limits = {"CpuShares": shares} if shares else {}
        if memory:
            limits |= {"Memory": memory, "MemorySwap": memory}  # MemorySwap is the sum of memory and swap
        with _allowing(*_CONTAINER_GONE):
            self._request("POST", f"/containers/{container}/update", limits)

    def supports_volume_sizes(self) -> bool:
        """True if volumes can have a size limit: their files are on XFS with project quotas.

        Tests it by creating one.
        """
        name = f"commonage-probe-{secrets.token_hex(4)}"
        try:
            self._request("POST", "/volumes/create", {"Name": name, "DriverOpts": {"size": str(1024 * 1024)}})
        except DaemonRefused:
            return False
        self._request("DELETE", f"/volumes/{name}")
        return True

    def has_image(self, name: str) -> bool:
        present = False
        with _allowing(404):
            self._request("GET", f"/images/{quote(name)}/json")
            present = True
        return present

    def pull(self, name: str, credentials: str, silence_s: float) -> Iterator[Mapping[str, Any]]:
        """Pull an image; yields the daemon's progress messages. Raises DaemonRefused if one of them is an error."""
        headers = {"X-Registry-Auth": credentials} if credentials else {}
        repository, tag = split_image(name)
        query = {"fromImage": repository, "tag": tag}
        with self._connected(silence_s) as connection:
            answer = _answer(connection, "POST", f"/images/create?{urlencode(query)}", None, headers)
            for line in filter(bytes.strip, answer):
                message = json.loads(line)
                if "error" in message:
                    raise DaemonRefused(str(message["error"]), 500)
                yield message

    def join_swarm(self, manager: str, token: str, address: str, timeout_s: float) -> None:
        """Join the Swarm of this manager (HOST:PORT), reachable at `address`. Raises EngineFailure.

        It does not use the docker program: every user of the node can read a command line, and the token is a secret.
        """
        body = {
            "RemoteAddrs": [manager],
            "JoinToken": token,
            "AdvertiseAddr": address,
            "ListenAddr": f"{address}:2377",
        }
        self._request("POST", "/swarm/join", body, timeout_s=timeout_s)

    # --- HTTP -----------------------------------------------------------------------------------------------------

    def _json(self, path: str) -> Json:
        return json.loads(self._request("GET", path))

    def _request(self, method: str, path: str, body: Json = None, *, timeout_s: float = _TIMEOUT_S) -> bytes:
        with self._connected(timeout_s) as connection:
            return _answer(connection, method, path, body).read()

    @contextmanager
    def _connected(self, timeout_s: float) -> Iterator[HTTPConnection]:
        """A connection to the daemon. Its errors become DaemonSilent, DaemonGone."""
        with closing(_Connection(self._socket, timeout_s)) as connection:
            try:
                yield connection
            except TimeoutError as error:
                raise DaemonSilent(f"the Docker daemon at {self.url} does not answer in time") from error
            except (OSError, HTTPException) as error:
                raise DaemonGone(f"no Docker daemon answers at {self.url}: {error_text(error)}") from error


def _answer(
    connection: HTTPConnection, method: str, path: str, body: Json, headers: Mapping[str, str] | None = None
) -> HTTPResponse:
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {"Content-Type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    if answer.status >= 400:
        raise DaemonRefused(_message(answer.read()), answer.status)
    return answer


@contextmanager
def _allowing(*statuses: int) -> Iterator[None]:
    """Ignore a refusal with one of these status codes."""
    try:
        yield
    except DaemonRefused as error:
        if error.http_status not in statuses:
            raise


class _Connection(HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace") or "no reason given"


def split_image(name: str) -> tuple[str, str]:
    """Split `host:5000/lab/torch:2.9` into repository and tag. The tag is the digest if there is one, else `latest`."""
    repository, at, digest = name.partition("@")
    if at:
        return repository, digest
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "latest")
