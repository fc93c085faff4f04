"""Streams that the control plane opens: the log of an attempt, a command in it, a connection to its address."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

from commonage.domain.errors import EngineFailure, NotFound
from commonage.link.sites.messages.engine import AttemptId, ExecCommand, LogLines, LogRequest, TerminalSize
from commonage.link.sites.transport.packets import Packets, PacketType, connect, decode, encode
from commonage.link.sites.transport.streams import Stream
from commonage.ports.engine import Engine
from commonage.ports.execs import ExecStream
from commonage.site_agent.statuses import StatusTracker

_BATCH_LINES, _BATCH_BYTES = 500, 256 * 1024


class EngineStreams:
    def __init__(self, engine: Engine, statuses: StatusTracker) -> None:
        self._engine, self._statuses = engine, statuses

    async def logs(self, request: LogRequest, stream: Stream) -> None:
        """Send the lines in batches; a batch is not held back while the log has nothing more."""
        packets = Packets(stream)
        stream.accept()
        lines = self._engine.logs(
            request.attempt_id, offset=request.offset, tail=request.tail, follow=request.follow
        ).__aiter__()
        following = asyncio.ensure_future(anext(lines, None))
        try:
            while (line := await following) is not None:
                batch, size = [(line.text, line.offset)], len(line.text)
                following = asyncio.ensure_future(anext(lines, None))
                await asyncio.sleep(0)
                while following.done() and len(batch) < _BATCH_LINES and size < _BATCH_BYTES:
                    if (line := following.result()) is None:
                        break
                    batch.append((line.text, line.offset))
                    size += len(line.text)
                    following = asyncio.ensure_future(anext(lines, None))
                    await asyncio.sleep(0)
                await packets.send(PacketType.LINES, encode(LogLines(tuple(batch))))
        except NotFound:
            await packets.send(PacketType.ABSENT)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def exec(self, wanted: ExecCommand, stream: Stream) -> None:
        command = await self._engine.exec(wanted.attempt_id, wanted.command, wanted.terminal)
        packets = Packets(stream)
        stream.accept()
        feeding = asyncio.create_task(self._input(packets, command))
        try:
            while (output := await command.read()) is not None:
                await packets.send(PacketType(output[0]), output[1])
            await packets.send(PacketType.EXIT_CODE, b"%d" % await command.exit_code())
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await command.close()

    async def _input(self, packets: Packets, command: ExecStream) -> None:
        while (packet := await packets.read()) is not None:
            match packet:
                case PacketType.STDIN, data:
                    await command.write(data)
                case PacketType.END_OF_INPUT, _:
                    await command.close_stdin()
                case PacketType.RESIZE, payload:
                    size = decode(TerminalSize, payload)
                    await command.resize(size.columns, size.rows)
                case PacketType.CLOSE, _:
                    await command.close()
                case kind, _:
                    raise EngineFailure(f"a command was sent a packet of type {kind.name}")

    async def connect(self, attempt: AttemptId) -> socket.socket:
        """Only to the address that the engine reported for this attempt."""
        status = self._statuses.get(attempt.attempt_id)
        if status is None or status.url is None:
            raise EngineFailure(f"{attempt.attempt_id[:100]} serves at no address", retryable=True)
        address = urlsplit(status.url)
        try:
            return await connect(address.hostname or "", address.port or 0)
        except OSError as error:
            raise EngineFailure(
                f"{attempt.attempt_id} does not answer at its port yet: {error}", retryable=True
            ) from error
