"""Commands in containers of Pods, by Kubernetes' remote command protocol (v5, or v4 before Kubernetes 1.30).

The API has no call that ends such a command. So each carries a mark, and a second command ends it, as with Docker.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import aiohttp

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.docker_api import END_MARKED
from commonage.engines.kubernetes.channels.connection import ChannelRefused, Connections, Container, Socket
from commonage.engines.rundir.programs import KILLED, MARK, NAME, SHELL, new_mark, not_running
from commonage.engines.rundir.tasks import make_or_end
from commonage.ports.execs import ERR, OUT, Terminal

_log = logging.getLogger(__name__)
V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
STDIN, STATUS, RESIZE, CLOSE = b"\x00", 3, b"\x04", b"\xff"
"""Channels. OUT and ERR have the numbers of the port. CLOSE is v5's: the byte after it names the closed channel."""
_CHUNK_BYTES = 64 * 1024
_MAX_WAITING = 256 * 1024
_ENDS_WITHIN_S = 15.0
_GONE = (400, 404, 409)

_BEGIN: Final = f"""
mark=$1 end=$5
[ "$2" = 0 ] || stty rows "$2" cols "$3" 2>/dev/null
[ -z "$4" ] || export TERM="$4"
shift 5
trap : INT QUIT
(
  export {MARK}="$mark"
  # As the Pod's first program does.
  [ ! -d /run/commonage/python ] || export PYTHONPATH="/run/commonage/python${{PYTHONPATH:+:$PYTHONPATH}}"
{SHELL}
)
code=$?
exec /bin/sh -c "$end" "$0" "{MARK}=$mark" "$code"
"""
_END: Final = f"""
trap "exit $2" EXIT
{END_MARKED}
"""
"""Ends processes that the command left behind: the kubelet keeps the stream open while one holds the output.

It needs a shell of its own, because after a signal `read` in busybox's shell may never return.
"""


class PodExecs:
    """Our commands in Pods of one cluster."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._live: set[PodExec] = set()

    async def begin(
        self, container: Container, attempt_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> PodExec:
        """Start one in this container. Raises NotRunning, EngineFailure."""
        return await make_or_end(self._begin(container, attempt_id, command, terminal))

    async def _begin(
        self, container: Container, attempt_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> PodExec:
        if not await self._connections.runs(container):
            raise not_running(attempt_id)
        mark = new_mark()
        size = (str(terminal.rows), str(terminal.columns), terminal.kind) if terminal is not None else ("0", "0", "")
        arguments = ["/bin/sh", "-c", _BEGIN, NAME, mark, *size, _END, *command]
        try:
            opened = await start(self._connections, container, arguments, has_terminal=terminal is not None)
        except ChannelRefused as error:
            if error.http_status in _GONE:
                raise not_running(attempt_id) from error
            raise
        has_terminal = terminal is not None
        begun = PodExec(self._connections, container, opened, mark, self._live.discard, has_terminal=has_terminal)
        self._live.add(begun)
        if terminal is not None:
            await begun.resize(terminal.columns, terminal.rows)
        return begun

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in list(self._live)))


async def start(
    connections: Connections, container: Container, arguments: Sequence[str], *, has_terminal: bool, stdin: bool = True
) -> Socket:
    """Start a program in the container; return its streams. Raises EngineFailure."""
    query = [("container", container.name), ("stdout", "true"), *(("command", one) for one in arguments)]
    # With a terminal all output is on stdout, and the API refuses a stderr.
    query.append(("tty", "true") if has_terminal else ("stderr", "true"))
    if stdin:
        query.append(("stdin", "true"))
    return await connections.connect(f"{container.path}/exec", query, (V5, V4), "a command in a Pod")


class PodExec:
    """Implements `ports.execs.ExecStream`. `on_end` is called when nothing of it is left."""

    def __init__(
        self,
        connections: Connections,
        container: Container,
        opened: Socket,
        mark: str,
        on_end: Callable[[PodExec], None],
        *,
        has_terminal: bool,
    ) -> None:
        self._connections, self._container, self._socket, self._mark = connections, container, opened, mark
        self._on_end, self._has_terminal = on_end, has_terminal
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._said: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._is_read = False
        self._waiting = 0
        self._taken = asyncio.Event()
        self._taking = asyncio.create_task(self._take())
        self._ending: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        for at in range(0, len(data), _CHUNK_BYTES):
            await self._send(STDIN + data[at : at + _CHUNK_BYTES])

    async def close_stdin(self) -> None:
        if self._has_terminal:
            return
        if self._socket.protocol != V5:
            raise EngineFailure("this cluster cannot close a command's input: that needs Kubernetes 1.30 or newer")
        await self._send(CLOSE + STDIN)

    async def resize(self, columns: int, rows: int) -> None:
        if self._has_terminal:
            await self._send(RESIZE + json.dumps({"Width": columns, "Height": rows}).encode())

    async def read(self) -> tuple[int, bytes] | None:
        said = None if self._is_read else await self._said.get()
        if said is None:
            self._is_read = True
            if self._code.done() and not self._code.cancelled():
                self._code.result()  # raises if the connection was lost
            return None
        self._waiting -= len(said[1])
        self._taken.set()
        return said

    async def exit_code(self) -> int:
        return await asyncio.shield(self._code)

    async def _send(self, message: bytes) -> None:
        """Send it, unless the command ends first: the server may then take no more input."""
        if self._socket.closed or self._code.done():
            return
        sending = asyncio.create_task(self._socket.send_bytes(message))
        try:
            ends: set[asyncio.Future[Any]] = {sending, self._code}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)  # `read` reports a lost connection

    async def _take(self) -> None:
        """Receive its output, no faster than the reader takes it."""
        status: bytes | None = None
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                channel, data = message.data[0], message.data[1:]
                if channel == STATUS:
                    status = data
                    break
                if channel not in (OUT, ERR) or not data:
                    continue
                self._said.put_nowait((channel, data))
                self._waiting += len(data)
                while self._waiting > _MAX_WAITING:
                    self._taken.clear()
                    await self._taken.wait()
            code = await self._code_of(status)
            if not self._code.done():
                self._code.set_result(code)
        except EngineFailure as error:
            self._code.set_exception(error)
            self._code.exception()  # marked as retrieved: the caller may not read it
        finally:
            if not self._code.done():
                self._code.set_result(KILLED)
            self._said.put_nowait(None)

    async def _code_of(self, status: bytes | None) -> int:
        """Its exit code. Without one, the container or the connection ended."""
        code, why = exit_code_in(status)
        if code is None and await self._connections.runs(self._container):
            raise EngineFailure("the connection to the command was lost; start it again", retryable=True, native=why)
        return KILLED if code is None else code

    async def close(self) -> None:
        self.end()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        self._taking.cancel()
        await asyncio.gather(self._taking, return_exceptions=True)
        if not self._code.done():  # cancelled before its first step
            self._code.set_result(KILLED)
        while not self._said.empty():
            self._said.get_nowait()
        self._said.put_nowait(None)
        try:
            await self._end_marked()
        except (EngineFailure, aiohttp.ClientError, OSError) as error:
            _log.warning("a command in the Pod %s may continue until that ends: %s", self._container.pod, error)
        finally:
            with suppress(aiohttp.ClientError, OSError):
                await self._socket.close()
            self._on_end(self)

    async def _end_marked(self) -> None:
        if not await self._connections.runs(self._container):
            return
        arguments = ["/bin/sh", "-c", END_MARKED, NAME, f"{MARK}={self._mark}"]
        async with asyncio.timeout(_ENDS_WITHIN_S):
            ending = await start(self._connections, self._container, arguments, has_terminal=False, stdin=False)
            async with ending:
                async for message in ending:
                    if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == bytes([STATUS]):
                        return


def exit_code_in(status: bytes | None) -> tuple[int | None, str]:
    """The exit code in a message of the status channel (None: it has none), and the cluster's text."""
    if status is None:
        return None, "the stream ended without a status"
    try:
        found = json.loads(status)
        if found["status"] == "Success":
            return 0, ""
        causes = (found.get("details") or {}).get("causes") or ()
        codes = [int(one["message"]) for one in causes if one.get("reason") == "ExitCode"]
        return (codes[0] if codes else None), str(found.get("message", ""))[:300]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, f"not a status: {status[:100]!r}"
