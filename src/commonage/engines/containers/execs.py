"""Commands in containers, by Docker's API. Standard library only: for engines and for node agents.

Docker has no call that ends such a command. So each carries a mark, and a second command ends it: a shell that finds
all processes in the container that carry the mark, or share a session with one that did, and ends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.docker_api import GONE, DaemonRefused, ExecApi
from commonage.engines.rundir.programs import KILLED, MARK, NAME, SHELL, new_mark, not_running
from commonage.engines.rundir.tasks import make_or_end
from commonage.ports.execs import ERR, OUT, Terminal

_log = logging.getLogger(__name__)
_CHUNK_BYTES = 64 * 1024
_POLL_S = 0.05
_MAX_WAITING = 256 * 1024
_STALLED_S = 1.0
_SILENT_S = 4.0

# Before API 1.42 no size can be passed at creation, and a later resize is too late for programs that ask at once.
_BEGIN = (
    """
[ "$2" = 0 ] || stty rows "$2" cols "$3" 2>/dev/null
shift 3
# As entry.sh does.
[ ! -d /run/commonage/python ] || export PYTHONPATH="/run/commonage/python${PYTHONPATH:+:$PYTHONPATH}"
"""
    + SHELL
)
_MARK_AT = 3  # of the arguments of /bin/sh: -c, the script, its name, the mark


class DaemonExecs:
    """Our commands in containers of the daemon at `url` (unix:///…, or tcp://…)."""

    def __init__(self, url: str) -> None:
        self._api = ExecApi(url)
        self._live: set[DaemonExec] = set()

    async def begin(
        self, container: str, attempt_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> DaemonExec:
        """Start one in this container. Raises NotRunning, EngineFailure."""
        return await make_or_end(self._begin(container, attempt_id, command, terminal))

    async def _begin(
        self, container: str, attempt_id: str, command: Sequence[str], terminal: Terminal | None
    ) -> DaemonExec:
        mark = new_mark()
        size = (str(terminal.rows), str(terminal.columns)) if terminal is not None else ("0", "0")
        variables = {MARK: mark} | ({"TERM": terminal.kind} if terminal is not None else {})
        arguments = ["/bin/sh", "-c", _BEGIN, NAME, mark, *size, *command]
        try:
            made = await self._api.create(container, arguments, variables, stdin=True, terminal=terminal is not None)
            reader, writer = await self._api.start(made, terminal=terminal is not None)
        except DaemonRefused as error:
            if error.http_status in GONE:
                raise not_running(attempt_id) from error
            raise
        in_container = _InContainer(container, made, mark, has_terminal=terminal is not None)
        begun = DaemonExec(self._api, in_container, (reader, writer), self._live.discard)
        self._live.add(begun)
        if terminal is not None:
            await begun.resize(terminal.columns, terminal.rows)
        return begun

    async def end_left_over(self, containers: Collection[str]) -> None:
        """End commands in these containers that an earlier server process left, and that have no listener."""
        for container in containers:
            try:
                await self._end_left_over(container)
            except EngineFailure as error:
                _log.warning("what commands were left in the container %s is not known: %s", container[:40], error)

    async def _end_left_over(self, container: str) -> None:
        known = {one.id for one in self._live}
        _, found = await self._api.ask("GET", f"/containers/{container}/json")
        for one in (found or {}).get("ExecIDs") or ():
            if one in known:
                continue
            _, context = await self._api.ask("GET", f"/exec/{one}/json")
            arguments = ((context or {}).get("ProcessConfig") or {}).get("arguments") or []
            if context and context.get("Running") and len(arguments) > _MARK_AT and arguments[_MARK_AT - 1] == NAME:
                await self._api.end(container, str(arguments[_MARK_AT]))

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in list(self._live)))


@dataclass(frozen=True, slots=True)
class _InContainer:
    container: str
    id: str
    mark: str
    has_terminal: bool


class DaemonExec:
    """Implements `ports.execs.ExecStream`. `on_end` is called when nothing of it is left."""

    def __init__(
        self,
        api: ExecApi,
        command: _InContainer,
        stream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        on_end: Callable[[DaemonExec], None],
    ) -> None:
        self.id, self._container, self._mark = command.id, command.container, command.mark
        self._has_terminal = command.has_terminal
        self._api = api
        self._reader, self._writer = stream
        self._on_end = on_end
        self._stream, self._left = OUT, 0
        self._code: int | None = None
        self._said: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._is_read = False
        self._waiting = 0
        self._taken = asyncio.Event()
        self._taking = asyncio.create_task(self._take())
        self._ending: asyncio.Task[None] | None = None

    # --- the port -------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        if self._writer.is_closing():
            return
        with suppress(OSError, RuntimeError):  # the command ended, or the daemon is gone: `read` reports it
            self._writer.write(data)
            await self._writer.drain()

    async def close_stdin(self) -> None:
        if not self._has_terminal and not self._writer.is_closing():
            with suppress(OSError):
                self._writer.write_eof()

    async def resize(self, columns: int, rows: int) -> None:
        if self._has_terminal and self._ending is None:
            with suppress(EngineFailure):
                await self._api.ask("POST", f"/exec/{self.id}/resize?h={rows}&w={columns}")

    async def read(self) -> tuple[int, bytes] | None:
        said = None if self._is_read else await self._said.get()
        if said is None:
            self._is_read = True
            return None
        self._waiting -= len(said[1])
        self._taken.set()
        return said

    async def exit_code(self) -> int:
        """The daemon's exit code; 137 if its container is gone, and all processes with it."""
        while self._code is None:
            status, found = await self._api.ask("GET", f"/exec/{self.id}/json")
            if status >= 400 or found is None:
                self._code = KILLED
            elif not found["Running"]:
                code = found.get("ExitCode")
                self._code = KILLED if code is None else int(code)
            else:
                await asyncio.sleep(_POLL_S)
        return self._code

    # --- output -------------------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        """Receive its output, no faster than it is read; after its end receive all.

        Until then the daemon notices no other end in this container, not even the workload's.
        """
        has_ended = False
        while (said := await self._next()) is not None:
            self._said.put_nowait(said)
            self._waiting += len(said[1])
            while self._waiting > _MAX_WAITING and not has_ended:
                self._taken.clear()
                try:
                    async with asyncio.timeout(_STALLED_S):
                        await self._taken.wait()
                except TimeoutError:
                    has_ended = await self._has_ended()
        self._said.put_nowait(None)

    async def _has_ended(self) -> bool:
        try:
            async with asyncio.timeout(_SILENT_S):
                status, found = await self._api.ask("GET", f"/exec/{self.id}/json")
        except EngineFailure:
            return False
        except TimeoutError:
            return await self._is_held()
        return status >= 400 or found is None or not found["Running"]

    async def _is_held(self) -> bool:
        """Docker 26 hides the end of a command until all its output was received, but reports everything else."""
        try:
            await self._api.ask("GET", f"/containers/{self._container}/json")
        except EngineFailure:
            return False
        return True

    async def _next(self) -> tuple[int, bytes] | None:
        """Without a terminal each part has a header with its stream and its length."""
        try:
            if self._has_terminal:
                data = await self._reader.read(_CHUNK_BYTES)
                return (OUT, data) if data else None
            while self._left == 0:
                head = await self._reader.readexactly(8)
                self._stream, self._left = ERR if head[0] == ERR else OUT, int.from_bytes(head[4:], "big")
            data = await self._reader.read(min(self._left, _CHUNK_BYTES))
        except (OSError, EOFError):
            return None
        self._left -= len(data)
        return (self._stream, data) if data else None

    # --- its end --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self.end()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        # This comes first: see `_take`.
        self._taking.cancel()
        while not self._said.empty():
            self._said.get_nowait()
        self._said.put_nowait(None)
        self._writer.close()
        try:
            await self._api.end(self._container, self._mark)
        except EngineFailure as error:
            _log.warning("a command in the container %s may continue until that ends: %s", self._container[:12], error)
        finally:
            with suppress(OSError):
                await self._writer.wait_closed()
            self._on_end(self)
