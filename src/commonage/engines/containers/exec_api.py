"""The few calls of Docker's API that commands in containers take, by the standard library alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from commonage.domain.errors import EngineFailure
from commonage.engines.common.execs import MARK, NAME

STREAMS = ".streams.sock"
"""A filter that passes no streams on has another socket for them: `docker.streams.sock` beside its `docker.sock`."""
_CHUNK_BYTES = 64 * 1024
_HEAD_BYTES = 64 * 1024
_ANSWERS_WITHIN_S = 10.0
_ENDS_WITHIN_S = 15.0
GONE = (404, 409)
"""What the daemon answers where the container is not there, or does not run."""

_END = """
mark=$1 sessions=' '
look() {
  found=
  for place in /proc/[0-9]*; do
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


class Refused(EngineFailure):
    """The daemon answered, and refuses. `http_status` is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"Docker: {message[:300]}", retryable=status >= 500)
        self.http_status = status


class ExecApi:
    """The few calls that it takes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._parts = urlsplit(url)

    async def create(
        self, container: str, arguments: Sequence[str], variables: Mapping[str, str], *, stdin: bool, terminal: bool
    ) -> str:
        """Its id. User, folder and variables are the container's own, and nothing can be added to what it may."""
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
            raise Refused(status, str((found or {}).get("message", "no reason given")))
        return str(found["Id"])

    async def start(self, made: str, *, terminal: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The connection that is its input and output."""
        reader, writer = await self._open(STREAMS)
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                writer.write(_request("POST", f"/exec/{made}/start", {"Detach": False, "Tty": terminal}))
                head = await reader.readuntil(b"\r\n\r\n")
                status = _status_of(head)
                if status not in (101, 200):
                    raise Refused(status, (await reader.read(_HEAD_BYTES)).decode(errors="replace"))
        except BaseException as error:
            writer.close()
            if isinstance(error, OSError | EOFError | ValueError | asyncio.LimitOverrunError):
                raise self._silent(error) from error
            raise
        return reader, writer

    async def end(self, container: str, mark: str) -> None:
        """End all that carries this mark there. A container that does not run is no error. Raises EngineFailure."""
        arguments = ["/bin/sh", "-c", _END, NAME, f"{MARK}={mark}"]
        try:
            async with asyncio.timeout(_ENDS_WITHIN_S):
                made = await self.create(container, arguments, {}, stdin=False, terminal=False)
                reader, writer = await self.start(made, terminal=False)
                with closing(writer):
                    while await reader.read(_CHUNK_BYTES):
                        continue
        except Refused as error:
            if error.http_status not in GONE:
                raise
        except OSError as error:  # TimeoutError is one
            raise self._silent(error) from error

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """Status and JSON, None where there is none. Raises EngineFailure where nobody answers."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                reader, writer = await self._open()
                try:
                    writer.write(_request(method, path, body))
                    answer = await reader.read()
                finally:
                    writer.close()
                head, _, content = answer.partition(b"\r\n\r\n")
                return _status_of(head), json.loads(content) if content.strip().startswith(b"{") else None
        except (OSError, EOFError, ValueError) as error:
            raise self._silent(error) from error

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
        return EngineFailure(f"the Docker daemon does not answer at {self._url}: {why}", retryable=True)


def _request(method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
    """As of old (HTTP/1.0): the connection ends with the answer, or is the stream. A filter wants it to the letter."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def _status_of(head: bytes) -> int:
    """Raises ValueError for what is no answer."""
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError(f"it answered {head[:60]!r}")
    return int(words[1])
