"""Containers as processes of this machine, with their output and end. Used by the kubelet's double.

Nothing is isolated. Each process carries a mark in its variables, by which all of a container are found and ended.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from commonage.testing.fakes.kubernetes.store import now

MARK = "COMMONAGE_DOUBLE_CONTAINER"
_LINE_MAX = 16 * 1024
_GUARD = 2 << 30
"""Address space above the memory limit: stops a program that exceeds the limit faster than it is checked."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def marked(mark: str) -> Iterator[int]:
    """The processes that carry this mark."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes():
                    yield int(entry.name)


async def kill_marked(mark: str) -> None:
    """Kill them, and return when they are gone."""
    while found := list(marked(mark)):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.005)


@dataclass
class Log:
    """Lines with their time. `is_over`: no more will come."""

    lines: list[tuple[str, bytes]] = field(default_factory=list)
    is_over: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, line: bytes) -> None:
        at = datetime.now(UTC)
        self.lines.append((f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond:06}{len(self.lines) % 1000:03}Z", line + b"\n"))
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, query: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """As the API's parameters say: `sinceTime` (to the second), `tailLines`, `timestamps`, `follow`."""
        since = query.get("sinceTime", "")[:19]
        at = next((at for at, (stamp, _) in enumerate(self.lines) if stamp[:19] >= since), len(self.lines))
        if "tailLines" in query:
            at = max(at, len(self.lines) - int(query["tailLines"]))
        while True:
            while at < len(self.lines):
                stamp, line = self.lines[at]
                at += 1
                yield (f"{stamp} ".encode() if query.get("timestamps") == "true" else b"") + line
            if self.is_over or query.get("follow") != "true":
                return
            await self._changed.wait()


@dataclass
class Container:
    """One run of a container. `state` is as in the Pod's status."""

    name: str
    mark: str
    memory_limit: int = 0
    """In bytes; 0: none."""
    log: Log = field(default_factory=Log)
    state: dict[str, Any] = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    has_image: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path("/")
    """Variables and folder of further commands in it."""
    _process: asyncio.subprocess.Process | None = None
    _reading: asyncio.Task[None] | None = None
    _is_over_limit: bool = False

    @property
    def is_running(self) -> bool:
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    def wait_for(self, reason: str, message: str) -> None:
        self.state = {"waiting": {"reason": reason, "message": message}}

    async def start(self, words: Sequence[str], variables: Mapping[str, str], folder: Path) -> None:
        self.variables, self.folder = {**variables, MARK: self.mark}, folder
        reader, writer = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *words,
                env=self.variables,
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
            )
        except OSError as error:
            os.close(reader)
            self.log.end()
            told = f'exec: "{words[0]}": {error.strerror}'
            self.state = {"terminated": {"exitCode": 128, "reason": "StartError", "message": told, "finishedAt": now()}}
            return
        finally:
            os.close(writer)
        if self.memory_limit:
            guard = self.memory_limit + _GUARD
            with suppress(ProcessLookupError):
                resource.prlimit(self._process.pid, resource.RLIMIT_AS, (guard, guard))
        self.state = {"running": {"startedAt": now()}}
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, descriptor: int) -> None:
        stream = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), file)
            rest = b""
            try:
                while chunk := await stream.read(65536):
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        self._add(line)
                if rest:
                    self._add(rest)
            finally:
                transport.close()

    def _add(self, line: bytes) -> None:
        for at in range(0, max(1, len(line)), _LINE_MAX):
            self.log.add(line[at : at + _LINE_MAX])

    def signal(self, number: int) -> None:
        """Signal its first process only, as runtimes do."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def ended(self) -> None:
        """Return when it has ended and none of its processes is left."""
        if self._process is None:
            return
        code = await self._process.wait()
        await kill_marked(self.mark)
        if self._reading is not None:
            await self._reading
        self.log.end()
        code = 128 - code if code < 0 else code
        reason = "OOMKilled" if self._is_over_limit else "Error" if code else "Completed"
        started = self.state["running"]["startedAt"]
        told = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now()}
        self.state = {"terminated": told}

    def kill_if_over_limit(self) -> None:
        """As the kernel does; of its first process alone."""
        if self._process is None or not self.is_running or not self.memory_limit:
            return
        if _memory_of(self._process.pid) > self.memory_limit:
            self.kill_for_memory()

    def kill_for_memory(self) -> None:
        self._is_over_limit = True
        self.signal(signal.SIGKILL)

    def use(self) -> dict[str, Any]:
        """CPU time and memory, as the kubelet's summary has them."""
        pids = list(marked(self.mark))
        cpu_ns = sum(_cpu_ticks_of(pid) for pid in pids) * 1_000_000_000 // _TICKS
        memory = sum(_memory_of(pid) for pid in pids)
        return {
            "name": self.name,
            "cpu": {"time": now(), "usageCoreNanoSeconds": cpu_ns},
            "memory": {"time": now(), "workingSetBytes": memory},
        }


def _memory_of(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    return 0


def _cpu_ticks_of(pid: int) -> int:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0
