"""Runs exec commands in attempts on this node, requested by the control plane over the link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from commonage.agent.containers.containers import LABEL
from commonage.agent.containers.docker import DockerDaemon
from commonage.engines.containers.exec.execs import DaemonExecs
from commonage.link.connection import Connection, MessageHandlers
from commonage.link.execs import (
    ExecData,
    ExecEnd,
    ExecOver,
    ExecRequest,
    ExecSender,
    ExecSize,
    ExecStarted,
    ExecTaken,
    content_of,
)
from commonage.ports.agents import OnProgress
from commonage.ports.execs import ExecStream, NotRunning

_LOOKS, _LOOK_S = 25, 0.2


class Execs:
    """The commands of this node."""

    _peer: Connection

    def __init__(self, daemon: DockerDaemon) -> None:
        self._daemon = daemon
        self._execs = DaemonExecs(daemon.url)
        self._lines: dict[str, _Line] = {}

    def speak_to(self, peer: Connection) -> None:
        """Use this link from now on. Before the first link nothing is asked."""
        self._peer = peer

    def hears(self) -> MessageHandlers:
        """The messages that the control plane sends about them."""
        return {
            "exec-data": (
                ExecData,
                lambda said: self._tell(said.id, lambda line: line.agent_reports(content_of(said))),
            ),
            "exec-taken": (ExecTaken, lambda said: self._tell(said.id, lambda line: line.outlet.taken(said.count))),
            "exec-size": (ExecSize, lambda said: self._tell(said.id, lambda line: line.has_size(said))),
            "exec-over": (ExecOver, lambda said: self._tell(said.id, lambda line: line.over.set())),
        }

    def _tell(self, exec_id: str, what: Callable[[_Line], None]) -> None:
        line = self._lines.get(exec_id)
        if line is not None:
            what(line)

    async def answer(self, request: ExecRequest, _told: OnProgress) -> ExecEnd:
        """Run the command to its end. Cancelling it means that the client is gone: the command is then ended."""
        peer = self._peer
        line = self._lines[request.id] = _Line(peer, request.id)
        try:
            stream = await self._execs.begin(
                await self._container_of(request.attempt_id), request.attempt_id, request.command, request.terminal
            )
            try:
                peer.say("exec-started", ExecStarted(request.id))
                return ExecEnd(await line.run(stream))
            finally:
                await asyncio.shield(stream.close())
        except NotRunning:
            return ExecEnd(0, absent=True)
        finally:
            del self._lines[request.id]

    async def _container_of(self, attempt_id: str) -> str:
        """The container of the attempt, found by the attempt's label: only Commonage's containers have it.

        A program may start, and say so, before the daemon lists its container as running.
        """
        for _ in range(_LOOKS):
            found = await asyncio.to_thread(self._daemon.containers, f"{LABEL}={attempt_id}", ended_too=True)
            running = [one for one in found if one["State"] == "running"]
            if running:
                return str(running[0]["Id"])
            if not any(one["State"] == "created" for one in found):
                break
            await asyncio.sleep(_LOOK_S)
        raise NotRunning(f"{attempt_id[:100]} does not run here")

    async def end_left_over(self) -> None:
        """End the commands of an earlier process of this agent. Raises EngineFailure."""
        running = await asyncio.to_thread(self._daemon.containers, LABEL)
        await self._execs.end_left_over([str(one["Id"]) for one in running])

    async def close(self) -> None:
        """End all commands."""
        await self._execs.close()


class _Line:
    """The input and output of one command."""

    def __init__(self, peer: Connection, exec_id: str) -> None:
        self._peer, self._id = peer, exec_id
        self._inputs: asyncio.Queue[bytes | ExecSize] = asyncio.Queue()  # bounded by the window
        self.outlet = ExecSender(peer, exec_id)
        self.over = asyncio.Event()

    def agent_reports(self, data: bytes) -> None:
        """Queue input; empty data is the end of the input."""
        self._inputs.put_nowait(data)

    def has_size(self, size: ExecSize) -> None:
        """Queue a new terminal size, in order with the input."""
        self._inputs.put_nowait(size)

    async def run(self, stream: ExecStream) -> int:
        """Run until the command ends or is stopped. Raises EngineFailure."""
        speaking = asyncio.create_task(self._speak(stream))
        feeding = asyncio.create_task(self._feed(stream))
        over = asyncio.create_task(self.over.wait())
        try:
            await asyncio.wait({speaking, over}, return_when=asyncio.FIRST_COMPLETED)
            if not speaking.done():
                await stream.close()
            else:
                speaking.result()
            return await stream.exit_code()
        finally:
            self.outlet.close()
            for task in (speaking, feeding, over):
                task.cancel()
            await asyncio.gather(speaking, feeding, over, return_exceptions=True)

    async def _speak(self, stream: ExecStream) -> None:
        while (said := await stream.read()) is not None:
            await self.outlet.say(*said)

    async def _feed(self, stream: ExecStream) -> None:
        while True:
            one = await self._inputs.get()
            if isinstance(one, ExecSize):
                await stream.resize(one.columns, one.rows)
            elif one:
                await stream.write(one)
                self._peer.say("exec-taken", ExecTaken(self._id, len(one)))
            else:
                await stream.close_stdin()
