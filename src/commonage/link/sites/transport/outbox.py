"""Sends the frames of one site link: control frames first, then one chunk of each waiting stream in turn."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable

from commonage.link.exchange import MAX_UNSENT_BYTES, ConnectionLost

_BUFFER_BYTES = 256 * 1024
"""Of chunks, this much waits in front of the next control frame: more makes control frames late on a slow line."""


class Overflow(ConnectionLost):
    """The other side does not read control frames."""


class Outbox:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._control: deque[bytes] = deque()
        self._control_bytes = 0
        self._chunks: deque[tuple[deque[bytes], Callable[[bytes], None], asyncio.Future[None]]] = deque()
        self._wake = asyncio.Event()
        self._closed: ConnectionLost | None = None
        _bound_buffers(writer)

    def control(self, frame: bytes) -> None:
        """Queue a frame that needs no credit. Raises Overflow."""
        if self._closed is not None:
            return
        if self._control_bytes + len(frame) > MAX_UNSENT_BYTES:
            raise Overflow(f"{self._control_bytes} bytes wait to be sent: the other side does not read them")
        self._control.append(frame)
        self._control_bytes += len(frame)
        self._wake.set()

    async def chunks(self, frames: Iterable[bytes], on_sent: Callable[[bytes], None]) -> None:
        """Send frames of a stream, each in its turn. `on_sent` is called with each that was handed to the connection.

        If cancelled before that, the rest is not sent. Raises ConnectionLost.
        """
        if self._closed is not None:
            raise self._closed
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._chunks.append((deque(frames), on_sent, taken))
        self._wake.set()
        await taken

    async def run(self) -> None:
        """Send until cancelled. Raises OSError if the connection is broken."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._control or self._chunks:
                while self._control:
                    frame = self._control.popleft()
                    self._control_bytes -= len(frame)
                    self._writer.write(frame)
                if self._chunks:
                    frames, on_sent, taken = self._chunks.popleft()
                    if not taken.done():
                        frame = frames.popleft()
                        self._writer.write(frame)
                        on_sent(frame)
                        if frames:
                            self._chunks.append((frames, on_sent, taken))
                        else:
                            taken.set_result(None)
                await self._writer.drain()

    def flush(self) -> None:
        """Pass the waiting control frames to the connection at once, before it is closed."""
        while self._control:
            self._writer.write(self._control.popleft())

    def close(self, reason: ConnectionLost) -> None:
        self._closed = reason
        self._control.clear()
        for *_, taken in self._chunks:
            if not taken.done():
                taken.set_exception(reason)
        self._chunks.clear()


def _bound_buffers(writer: asyncio.StreamWriter) -> None:
    """Keep little data in the buffers of this process and of the kernel, where no frame can overtake another."""
    writer.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _BUFFER_BYTES)
