"""This machine's Docker daemon, by the standard library alone: a few calls of its API, for threads as they block.

What the engines use is a client for asyncio that agents' machines do not have.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from commonage.domain.errors import EngineFailure, InvalidInput
from commonage.link.peer import words_of

Json = Any
_TIMEOUT_S = 10.0
_CONTAINER_GONE = (404, 409)


class DaemonGone(EngineFailure):
    """Nobody listens at its socket."""

    retryable = True


class DaemonSilent(EngineFailure):
    """Somebody listens, and does not answer in time."""

    retryable = True


class DaemonRefused(EngineFailure):
    """It answered, and refuses. `http_status` and `said` are its own."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__("its Docker daemon refuses it", retryable=status >= 500, native=f"Docker: {message[:400]}")
        self.http_status, self.said = status, message


class DockerDaemon:
    """One daemon at `url` (unix:///…)."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "unix" or not parts.path:
            raise InvalidInput(f"docker is {url!r}; an agent talks to the daemon of its own machine, unix:///…")
        self.url = url
        self._socket = parts.path

    # --- calls ----------------------------------------------------------------------------------------------------

    def ping(self, within_s: float) -> None:
        """Raises DaemonGone, DaemonSilent."""
        self._ask("GET", "/_ping", within_s=within_s)

    def info(self) -> Mapping[str, Any]:
        """What it says of itself."""
        found: Mapping[str, Any] = self._json("GET", "/info")
        return found

    def containers(self, label: str, *, ended_too: bool = False) -> Sequence[Mapping[str, Any]]:
        """Those with this label, as it lists them."""
        words = {"all": int(ended_too), "filters": json.dumps({"label": [label]})}
        found: Sequence[Mapping[str, Any]] = self._json("GET", f"/containers/json?{urlencode(words)}")
        return found

    def inspect(self, container: str) -> Mapping[str, Any] | None:
        """All of a container; None if there is none."""
        try:
            found: Mapping[str, Any] = self._json("GET", f"/containers/{container}/json")
        except DaemonRefused as error:
            if error.http_status == 404:
                return None
            raise
        return found

    def remove(self, container: str) -> None:
        """End it by force and remove it. One that is gone, or going, is no error."""
        try:
            self._ask("DELETE", f"/containers/{container}?force=1&v=1")
        except DaemonRefused as error:
            if error.http_status not in _CONTAINER_GONE:
                raise

    def hold(self, container: str, *, shares: int = 0, memory: int = 0) -> None:
        """Give it this weight of crowded cores (1024 is one core's), and with this `memory` (bytes) no swap beside it.

        What is 0 stays as it is. One that is gone is no error.
        """
        held = {"CpuShares": shares} if shares else {}
        if memory:
            held |= {"Memory": memory, "MemorySwap": memory}  # the second is both together
        try:
            self._ask("POST", f"/containers/{container}/update", held)
        except DaemonRefused as error:
            if error.http_status not in _CONTAINER_GONE:
                raise

    def holds_volume_sizes(self) -> bool:
        """True if volumes can be held to a size: their files lie on XFS with project quotas. Found out by trying."""
        name = f"commonage-probe-{secrets.token_hex(4)}"
        try:
            self._ask("POST", "/volumes/create", {"Name": name, "DriverOpts": {"size": str(1024 * 1024)}})
        except DaemonRefused:
            return False
        self._ask("DELETE", f"/volumes/{name}")
        return True

    def has_image(self, name: str) -> bool:
        """True if it is here."""
        try:
            self._ask("GET", f"/images/{quote(name)}/json")
        except DaemonRefused as error:
            if error.http_status == 404:
                return False
            raise
        return True

    def pull(self, name: str, credentials: str, silence_s: float) -> Iterator[Mapping[str, Any]]:
        """Fetch an image; what comes are its progress messages. Raises DaemonRefused for one that says an error."""
        headers = {"X-Registry-Auth": credentials} if credentials else {}
        repository, tag = split_image(name)
        words = {"fromImage": repository, "tag": tag}
        with closing(_Connection(self._socket, silence_s)) as connection:
            answer = self._send(connection, "POST", f"/images/create?{urlencode(words)}", None, headers)
            for line in _lines(answer, self.url):
                message = json.loads(line)
                if "error" in message:
                    raise DaemonRefused(str(message["error"]), 500)
                yield message

    def join_swarm(self, manager: str, token: str, address: str, within_s: float) -> None:
        """Become a member of the Swarm that this manager (HOST:PORT) is of, reached at `address`. Raises EngineFailure.

        Not by its program: what stands in a command line is read by everybody on the machine.
        """
        ask = {
            "RemoteAddrs": [manager],
            "JoinToken": token,
            "AdvertiseAddr": address,
            "ListenAddr": f"{address}:2377",
        }
        self._ask("POST", "/swarm/join", ask, within_s=within_s)

    # --- HTTP -----------------------------------------------------------------------------------------------------

    def _json(self, method: str, path: str) -> Json:
        return json.loads(self._ask(method, path))

    def _ask(self, method: str, path: str, body: Json = None, *, within_s: float = _TIMEOUT_S) -> bytes:
        with closing(_Connection(self._socket, within_s)) as connection:
            answer = self._send(connection, method, path, body, {})
            try:
                return answer.read()
            except (OSError, HTTPException) as error:
                raise self._away(error) from error

    def _send(
        self, connection: _Connection, method: str, path: str, body: Json, headers: Mapping[str, str]
    ) -> HTTPResponse:
        content = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, content, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            if answer.status >= 400:
                raise DaemonRefused(_message(answer.read()), answer.status)
        except (OSError, HTTPException) as error:
            raise self._away(error) from error
        return answer

    def _away(self, error: OSError | HTTPException) -> EngineFailure:
        if isinstance(error, TimeoutError):
            return DaemonSilent(f"the Docker daemon at {self.url} does not answer in time")
        return DaemonGone(f"there is no Docker daemon at {self.url}: {words_of(error)}")


class _Connection(HTTPConnection):
    """HTTP over a socket of this machine."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _lines(answer: HTTPResponse, url: str) -> Iterator[bytes]:
    try:
        yield from (line for line in answer if line.strip())
    except TimeoutError as error:
        raise DaemonSilent(f"the Docker daemon at {url} says nothing of the image any more") from error
    except (OSError, HTTPException) as error:
        raise DaemonGone(f"the Docker daemon at {url} went away: {words_of(error)}") from error


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace") or "no reason given"


def split_image(name: str) -> tuple[str, str]:
    """`host:5000/lab/torch:2.9` as repository and tag; by digest the digest is the tag; without either `latest`."""
    repository, at, digest = name.partition("@")
    if at:
        return repository, digest
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "latest")
