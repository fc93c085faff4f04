"""Runs exec commands in attempts on this node, requested by the control plane over the link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from commonage.agent.containers.containers import LABEL
from commonage.agent.containers.docker import DockerDaemon
from commonage.engines.containers.execs import DaemonExecs
from commonage.link.connection import Connection
from commonage.link.exchange import MessageHandlers
from commonage.link.execs import (
    ExecCancel,
    ExecConsumed,
    ExecData,
    ExecEnd,
    ExecReceiver,
    ExecRequest,
    ExecResize,
    ExecSender,
    ExecStarted,
)
from commonage.ports.agents import OnProgress
from commonage.ports.execs import ExecStream, NotRunning

_START_POLLS, _START_POLL_S = 25, 0.2


class Execs:
    _connection: Connection

    def __init__(self, daemon: DockerDaemon) -> None:
        self._daemon = daemon
        self._execs = DaemonExecs(daemon.url)
        self._running: dict[str, _Command] = {}

    def set_connection(self, connection: Connection) -> None:
        """Use this link from now on. No request arrives before the first link."""
        self._connection = connection

    def message_handlers(self) -> MessageHandlers:
        return {
            "exec-data": (ExecData, lambda sent: self._deliver(sent.id, lambda one: one.on_input(sent))),
            "exec-consumed": (
                ExecConsumed,
                lambda sent: self._deliver(sent.id, lambda one: one.sender.consumed(sent.count)),
            ),
            "exec-resize": (ExecResize, lambda sent: self._deliver(sent.id, lambda one: one.on_resize(sent))),
            "exec-cancel": (ExecCancel, lambda sent: self._deliver(sent.id, lambda one: one.cancelled.set())),
        }

    def _deliver(self, exec_id: str, deliver: Callable[[_Command], None]) -> None:
        command = self._running.get(exec_id)
        if command is not None:
            deliver(command)

    async def run(self, request: ExecRequest, _: OnProgress) -> ExecEnd:
        """Run the command to its end. Cancelling it means that the client is gone: the command is then ended."""
        connection = self._connection
        command = self._running[request.id] = _Command(connection, request.id)
        try:
            stream = await self._execs.begin(
                await self._container_of(request.attempt_id), request.attempt_id, request.command, request.terminal
            )
            try:
                connection.send("exec-started", ExecStarted(request.id))
                return ExecEnd(await command.run(stream))
            finally:
                await asyncio.shield(stream.close())
        except NotRunning:
            return ExecEnd(0, absent=True)
        finally:
            del self._running[request.id]

    async def _container_of(self, attempt_id: str) -> str:
        """The container of the attempt, found by the attempt's label: only Commonage's containers have it.

        A program may start, and report it, before the daemon lists its container as running.
        """
        for _ in range(_START_POLLS):
            containers = await asyncio.to_thread(self._daemon.containers, f"{LABEL}={attempt_id}", ended_too=True)
            running = [one for one in containers if one["State"] == "running"]
            if running:
                return str(running[0]["Id"])
            if not any(one["State"] == "created" for one in containers):
                break
            await asyncio.sleep(_START_POLL_S)
        raise NotRunning(f"{attempt_id[:100]} does not run on this node")

    async def end_left_over(self) -> None:
        """End the commands of an earlier process of this agent. Raises EngineFailure."""
        running = await asyncio.to_thread(self._daemon.containers, LABEL)
        await self._execs.end_left_over([str(one["Id"]) for one in running])

    async def close(self) -> None:
        await self._execs.close()


class _Command:
    """The input and output of one command. `cancelled` is set when the client is gone."""

    def __init__(self, connection: Connection, exec_id: str) -> None:
        self._inputs: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: the terminal got `_new_size`
        self._new_size: ExecResize | None = None
        self._receiver = ExecReceiver(connection, exec_id)
        self.sender = ExecSender(connection, exec_id)
        self.cancelled = asyncio.Event()

    def on_input(self, message: ExecData) -> None:
        """Queue input within the window; empty data is the end of the input. Raises Unreadable, ValueError."""
        self._inputs.put_nowait(self._receiver.received(message))

    def on_resize(self, size: ExecResize) -> None:
        """Only the newest size waits for a program that reads no input."""
        if self._new_size is None:
            self._inputs.put_nowait(None)
        self._new_size = size

    async def run(self, stream: ExecStream) -> int:
        """Run until the command ends or is cancelled. Raises EngineFailure."""
        output = asyncio.create_task(self._send_output(stream))
        inputs = asyncio.create_task(self._write_input(stream))
        cancelled = asyncio.create_task(self.cancelled.wait())
        try:
            await asyncio.wait({output, cancelled}, return_when=asyncio.FIRST_COMPLETED)
            if not output.done():
                await stream.close()
            else:
                output.result()
            return await stream.exit_code()
        finally:
            self.sender.close()
            for task in (output, inputs, cancelled):
                task.cancel()
            await asyncio.gather(output, inputs, cancelled, return_exceptions=True)

    async def _send_output(self, stream: ExecStream) -> None:
        while (output := await stream.read()) is not None:
            await self.sender.send(*output)

    async def _write_input(self, stream: ExecStream) -> None:
        while True:
            sent = await self._inputs.get()
            if sent is None:
                size, self._new_size = self._new_size, None
                if size is not None:
                    await stream.resize(size.columns, size.rows)
            elif sent:
                await stream.write(sent)
                self._receiver.consumed(len(sent))
            else:
                await stream.close_stdin()
