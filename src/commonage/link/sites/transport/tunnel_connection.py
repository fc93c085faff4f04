"""A TLS connection that carries one TCP connection, and nothing else: what a tunnel uses in addition to the site link.

Both sides send pieces: a length (4 bytes), then that number of bytes. The first piece of each is JSON: what is opened,
and the answer. Two lengths have no bytes: END, after the last piece, and DELIVERED, once all up to the other side's END
was passed on. A connection that ends before both sides sent DELIVERED has failed, and both TCP connections are reset:
so a program never takes the first half of something for all of it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import cast

from commonage.domain.codec import Json, Unreadable
from commonage.domain.errors import CommonageError, EngineFailure
from commonage.link.exchange import ConnectionLost, encode_json, error_text, parse_json
from commonage.link.sites.transport.packets import reset

_LENGTH = struct.Struct(">I")
PIECE_BYTES = 256 * 1024
END, DELIVERED = 0, 0xFFFF_FFFF
_HIGH_WATER_BYTES = 256 * 1024
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_UNANSWERED_MS = 30_000


class Buffers:
    """Receive buffers that all connections share: none uses them after its callback has returned."""

    def __init__(self) -> None:
        self.received = memoryview(bytearray(PIECE_BYTES))
        self.sent = memoryview(bytearray(_LENGTH.size + PIECE_BYTES))


class TunnelConnection(asyncio.BufferedProtocol):
    """Takes over an open TLS connection. Keeps at most about 512 KiB in each direction for a slow reader.

    `end` is done when both directions have ended, or fails with ConnectionLost.
    """

    def __init__(self, writer: asyncio.StreamWriter, buffers: Buffers) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # whose destruction would close the connection
        self._transport = cast(asyncio.Transport, writer.transport)
        self._buffers = buffers
        self._before = self._transport.get_protocol()
        self._socket: socket.socket | None = None
        self._prefix, self._left = bytearray(), 0  # of the piece that is being received
        self._first = bytearray()
        self._head: asyncio.Future[Json] = self._loop.create_future()
        self._pending = bytearray()  # received, and not passed on yet
        self._ended_here = self._ended_there = False
        self._delivered_here = self._delivered_there = False
        self._writable_there = True
        self.end: asyncio.Future[None] = self._loop.create_future()
        self._transport.set_protocol(self)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        if self._transport.is_closing():
            self.abort("it was closed before it was used")
        else:
            self._bound_silence()

    def _bound_silence(self) -> None:
        """The link notices a dead line first; this is for one that lost this connection alone."""
        connection = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (*_KEEPALIVE, (socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    # --- for its user ---------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.end.done()

    def send_head(self, head: Json) -> None:
        """Raises EngineFailure for a head that is too large."""
        payload = encode_json(head)
        if len(payload) > PIECE_BYTES:
            raise EngineFailure(f"the parameters of a tunnel have more than {PIECE_BYTES} bytes")
        self._transport.write(_LENGTH.pack(len(payload)) + payload)

    async def head(self) -> Json:
        """The first piece of the other side. Raises ConnectionLost."""
        return await self._head

    async def carry(self, connection: socket.socket) -> None:
        """Pass bytes both ways until both sides have ended. Closes the socket, which does not block.

        Raises ConnectionLost; then the socket was reset.
        """
        if self.end.done():
            reset(connection)
            self.end.result()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        if self._writable_there:
            self._loop.add_reader(connection, self._on_readable)
        self._pass_on()
        try:
            await asyncio.shield(self.end)
        finally:
            self.abort("its user does not need it any more")

    def close(self) -> None:
        """End it after what was sent; nothing is carried by it any more."""
        self._settle(ConnectionLost("it was closed"))
        self._transport.close()

    def abort(self, reason: str) -> None:
        """No effect after the end."""
        if not self.end.done():
            self._settle(ConnectionLost(f"a tunnel has failed: {reason}"))
            self._transport.abort()

    def _settle(self, failure: CommonageError | None) -> None:
        if self.end.done():
            return
        if failure is None:
            self.end.set_result(None)
        else:
            self.end.set_exception(failure)
            self.end.exception()  # marked as retrieved: there may be no waiter
        if not self._head.done():
            self._head.set_exception(failure or ConnectionLost("it ended before its first piece"))
            self._head.exception()
        self._pending.clear()
        if (connection := self._socket) is not None:
            self._loop.remove_reader(connection)
            self._loop.remove_writer(connection)
            if failure is None:
                connection.close()
            else:
                reset(connection)

    # --- from the TCP connection to the other side ------------------------------------------------------------------

    def _on_readable(self) -> None:
        assert self._socket is not None
        piece = self._buffers.sent
        try:
            count = self._socket.recv_into(piece[_LENGTH.size :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.abort(error_text(error))
            return
        _LENGTH.pack_into(piece, 0, count)  # END for 0
        if not count:
            self._ended_here = True
            self._loop.remove_reader(self._socket)
        self._transport.write(piece[: _LENGTH.size + count])  # encrypted at once: the buffer is free again

    def pause_writing(self) -> None:
        self._writable_there = False
        if self._socket is not None and not self._ended_here and not self.end.done():
            self._loop.remove_reader(self._socket)

    def resume_writing(self) -> None:
        self._writable_there = True
        if self._socket is not None and not self._ended_here and not self.end.done():
            self._loop.add_reader(self._socket, self._on_readable)

    # --- from the other side to the TCP connection ------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffers.received

    def buffer_updated(self, nbytes: int) -> None:
        data = self._buffers.received[:nbytes]
        try:
            while data and not self.end.done():
                data = data[self._take(data) :]
        except (OSError, ValueError, RecursionError, Unreadable) as error:
            self.abort(error_text(error))

    def _take(self, data: memoryview) -> int:
        """How many of these bytes were used. Raises Unreadable, ValueError and OSError."""
        if self._left:
            part = data[: self._left]
            self._left -= len(part)
            self._on_bytes(part)
            return len(part)
        count = min(_LENGTH.size - len(self._prefix), len(data))
        self._prefix += data[:count]
        if len(self._prefix) == _LENGTH.size:
            (length,) = _LENGTH.unpack(self._prefix)
            self._prefix.clear()
            self._on_length(length)
        return count

    def _on_length(self, length: int) -> None:
        if length == DELIVERED and self._ended_here:
            self._delivered_there = True
            self._finish_if_over()
        elif self._ended_there or length > PIECE_BYTES or not (length or self._head.done()):
            raise Unreadable(f"the other side sent a piece of {length} bytes out of order")
        elif length == END:
            self._ended_there = True
            self._pass_on()
        else:
            self._left = length

    def _on_bytes(self, part: memoryview) -> None:
        if not self._head.done():
            self._first += part
            if not self._left:
                self._head.set_result(parse_json(bytes(self._first)))
            return
        sent = 0
        if self._socket is not None and not self._pending:
            with suppress(BlockingIOError, InterruptedError):
                sent = self._socket.send(part)
        if sent < len(part):
            if not self._pending:
                self._transport.pause_reading()
                if self._socket is not None:
                    self._loop.add_writer(self._socket, self._on_writable)
            self._pending += part[sent:]

    def _on_writable(self) -> None:
        assert self._socket is not None
        try:
            with suppress(BlockingIOError, InterruptedError):
                del self._pending[: self._socket.send(self._pending)]
            if not self._pending:
                self._loop.remove_writer(self._socket)
                self._transport.resume_reading()
                self._pass_on()
        except OSError as error:
            self.abort(error_text(error))

    def _pass_on(self) -> None:
        """Pass on what arrived before the socket was known, and the end of the other side."""
        if self._socket is None or self.end.done():
            return
        if self._pending:
            self._loop.add_writer(self._socket, self._on_writable)
        elif self._ended_there and not self._delivered_here:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError as error:  # the program has closed it
                self.abort(error_text(error))
                return
            self._delivered_here = True
            self._transport.write(_LENGTH.pack(DELIVERED))
            self._finish_if_over()

    def _finish_if_over(self) -> None:
        if self._delivered_here and self._delivered_there:
            self._settle(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._before.connection_lost(exc)
        self.abort("the connection was closed" if exc is None else error_text(exc))
