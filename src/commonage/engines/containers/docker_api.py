"""The few calls of Docker's API that commands in containers need, and the choice of its version.

Standard library only, because agents use it too; called by `execs`. Every call names its version: without one a daemon
assumes its newest, and it drops fields of a description that the version does not know, limits and capabilities among
them. The filter before the Docker socket has the same list.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from commonage.domain.errors import EngineFailure
from commonage.engines.rundir.programs import MARK, NAME

STREAMS = ".streams.sock"
"""A filter that does not pass streams on has another socket for them: `docker.streams.sock` next to `docker.sock`."""
_CHUNK_BYTES = 64 * 1024
_HEAD_BYTES = 64 * 1024
_ANSWERS_WITHIN_S = 10.0
_ENDS_WITHIN_S = 15.0
GONE = (404, 409)
"""The daemon's status codes if the container does not exist, or does not run."""

END_MARKED = """
mark=$1 sessions=' '
look() {
  found=
  for place in /proc/[0-9]*; do
    [ "${place#/proc/}" != "$$" ] || continue
    read -r stat <"$place/stat" || continue
    set -- ${stat##*) }
    case $1 in Z | X) continue ;; esac
    session=$4
    case $sessions in
      *" $session "*)
        found="$found ${place#/proc/}"
        continue
        ;;
    esac
    while IFS= read -r line || [ -n "$line" ]; do
      case $line in
        *"$mark"*)
          sessions="$sessions$session " found="$found ${place#/proc/}"
          break
          ;;
      esac
    done <"$place/environ"
  done
}
exec 2>/dev/null
look
[ -n "$found" ] || exit 0
kill -HUP $found
for _ in 1 2 3 4 5 6 7 8 9 10; do
  sleep 0.1 || sleep 1
  look
  [ -n "$found" ] || exit 0
done
for _ in 1 2 3 4 5 6 7 8 9 10; do
  kill -KILL $found
  sleep 0.02 || :
  look
  [ -n "$found" ] || exit 0
done
exit 1
"""


class DaemonRefused(EngineFailure):
    """The daemon answered with a refusal. `http_status` is the response's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(
            "the Docker daemon refuses the command", retryable=status >= 500, native=f"Docker: {message[:300]}"
        )
        self.http_status = status


class ExecApi:
    def __init__(self, url: str) -> None:
        self._url = url
        self._parts = urlsplit(url)
        self._version = ""

    async def create(
        self, container: str, arguments: Sequence[str], variables: Mapping[str, str], *, stdin: bool, terminal: bool
    ) -> str:
        """Create an exec; return its id. User, folder, variables and privileges are the container's own."""
        body = {
            "AttachStdin": stdin,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": terminal,
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "Cmd": list(arguments),
        }
        status, found = await self.ask("POST", f"/containers/{container}/exec", body)
        if status >= 400 or found is None:
            raise DaemonRefused(status, str((found or {}).get("message", "no reason given")))
        return str(found["Id"])

    async def start(self, made: str, *, terminal: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start it; return the connection that carries its input and output."""
        path = f"/{await self._versioned()}/exec/{made}/start"
        reader, writer = await self._open(STREAMS)
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                # HTTP/1.0, so that the daemon does not read a second request from the command's input.
                writer.write(_request("POST", path, "1.0", (), {"Detach": False, "Tty": terminal}))
                head = await reader.readuntil(b"\r\n\r\n")
                status = _status_of(head)
                if status not in (101, 200):
                    raise DaemonRefused(status, (await reader.read(_HEAD_BYTES)).decode(errors="replace"))
        except BaseException as error:
            writer.close()
            if isinstance(error, OSError | EOFError | ValueError | asyncio.LimitOverrunError):
                raise self._silent(error) from error
            raise
        return reader, writer

    async def end(self, container: str, mark: str) -> None:
        """End all processes with this mark. A container that does not run is no error. Raises EngineFailure."""
        arguments = ["/bin/sh", "-c", END_MARKED, NAME, f"{MARK}={mark}"]
        try:
            async with asyncio.timeout(_ENDS_WITHIN_S):
                made = await self.create(container, arguments, {}, stdin=False, terminal=False)
                reader, writer = await self.start(made, terminal=False)
                with closing(writer):
                    while await reader.read(_CHUNK_BYTES):
                        continue
        except DaemonRefused as error:
            if error.http_status not in GONE:
                raise
        except OSError as error:  # includes TimeoutError
            raise self._silent(error) from error

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """Return status and JSON, None without JSON. Raises EngineFailure if the daemon does not answer."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                status, content = await self._answer(method, f"/{await self._versioned()}{path}", body)
                return status, json.loads(content) if content.strip().startswith(b"{") else None
        except (OSError, EOFError, ValueError, HTTPException) as error:
            raise self._silent(error) from error

    async def _versioned(self) -> str:
        """The API version to speak with this daemon. Each daemon is asked once."""
        if not self._version:
            self._version = await common_version(self._ping, self._url)
        return self._version

    async def _ping(self, path: str) -> tuple[int, str]:
        status, content = await self._answer("GET", path, None)
        return status, content.decode(errors="replace")

    async def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        reader, writer = await self._open()
        try:
            writer.write(_request(method, path, "1.1", ("Connection: close",), body))
            answer = HTTPResponse(_Answered(await reader.read()), method=method)  # type: ignore[arg-type]  # it only calls makefile
        finally:
            writer.close()
        answer.begin()
        return answer.status, answer.read()

    async def _open(self, suffix: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            if self._parts.scheme == "unix":
                path = Path(self._parts.path)
                if suffix and (beside := path.with_suffix(suffix)).exists():
                    path = beside
                return await asyncio.open_unix_connection(path, limit=_HEAD_BYTES)
            return await asyncio.open_connection(self._parts.hostname, self._parts.port, limit=_HEAD_BYTES)
        except OSError as error:
            raise self._silent(error) from error

    def _silent(self, error: BaseException) -> EngineFailure:
        why = str(error) or type(error).__name__
        return EngineFailure("the Docker daemon does not answer", retryable=True, native=f"at {self._url}: {why}")


class _Answered:
    """A recorded response that replaces the socket which the standard library's HTTP reader takes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def makefile(self, _: str) -> IO[bytes]:
        return BytesIO(self._answer)


def _request(method: str, path: str, version: str, headers: Sequence[str], body: Mapping[str, Any] | None) -> bytes:
    """A filter requires exactly this form for a stream."""
    content = b"" if body is None else json.dumps(body).encode()
    context = ["Host: docker", "Content-Type: application/json", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([f"{method} {path} HTTP/{version}", *context, "", ""]).encode() + content


def _status_of(head: bytes) -> int:
    """Raises ValueError for an invalid response."""
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError(f"it answered {head[:60]!r}")
    return int(words[1])


API_VERSIONS = ("1.50", "1.41")
"""Best first. 1.50 (Docker 28.2) reports which GPUs the daemon found by CDI; 1.41 (Docker 20.10) is the oldest that
knows all fields that isolate a service.
"""
_OK, _NOT_SPOKEN = 200, 400


class NoCommonVersion(EngineFailure):
    """The daemon speaks none of our versions: it is too old, or has dropped them."""

    retryable = False


async def common_version(ask: Callable[[str], Awaitable[tuple[int, str]]], url: str) -> str:
    """Return the best version (`v1.41`) that the daemon at `url` speaks. Raises NoCommonVersion, EngineFailure.

    `ask` returns the status of a GET of this path, and the message that came with it.
    """
    message = ""
    for version in API_VERSIONS:
        status, message = await ask(f"/v{version}/_ping")
        if status == _OK:
            return f"v{version}"
        if status != _NOT_SPOKEN:
            raise EngineFailure(f"the Docker daemon at {url} answers {status}: {message[:200]}", retryable=True)
    raise NoCommonVersion(
        f"the Docker daemon at {url} speaks none of the API versions {' and '.join(API_VERSIONS)}: {message[:200]}. "
        "Upgrade Docker there to 20.10 or later"
    )
