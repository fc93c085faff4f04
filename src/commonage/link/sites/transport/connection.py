"""One end of a site link: requests, messages and streams over one connection. The same on both sides."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from commonage.domain.errors import EngineFailure
from commonage.link.connection import FRAME_ERRORS
from commonage.link.exchange import (
    MAX_FRAME_BYTES,
    ConnectionLost,
    Exchange,
    MessageHandlers,
    RequestHandler,
    error_text,
)
from commonage.link.messages import REPORT_EVERY_S, SILENCE_S, RequestType
from commonage.link.sites.transport.frames import Frame, FrameDecoder, FrameType, decode_time, encode, encode_time
from commonage.link.sites.transport.outbox import Outbox, Overflow
from commonage.link.sites.transport.packets import join
from commonage.link.sites.transport.streams import MAX_INCOMING, Stream, StreamHandler, Streams, StreamType
from commonage.link.sites.transport.tunnel_connection import TunnelConnection
from commonage.link.sites.transport.tunnel_pool import DIAL_TUNNEL, Target, TunnelPool

HEARTBEAT_EVERY_S = REPORT_EVERY_S
_READ_BYTES = 96 * 1024  # above 128 KiB, the C library maps and clears fresh memory for each read
_REMEMBERED_HEARTBEATS = 15

Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class Handlers:
    """Handlers of one side: for requests, messages, and at most `max_incoming` streams at once.

    `targets` are the destinations of connections that `SiteConnection.carry` opens.
    """

    requests: Mapping[RequestType[Any, Any], RequestHandler] = field(default_factory=dict)
    messages: MessageHandlers = field(default_factory=dict)
    streams: Mapping[StreamType[Any], StreamHandler] = field(default_factory=dict)
    targets: Mapping[StreamType[Any], Target] = field(default_factory=dict)
    max_incoming: int = MAX_INCOMING


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """One end of a site link. `name` is that of the other side, for errors; `dialed`: this side dialled.

    `protocol` is the version that both sides speak. `clock_offset_s` is what their first messages say of the clocks.
    `tunnels`: the other side dials a connection for each one that this side carries; without, it is a stream.
    """

    site: str
    name: str
    dialed: bool
    protocol: int
    clock_offset_s: float | None = None
    tunnels: bool = False


class SiteConnection(Exchange):
    """One end of the link of `site`. `now` gives unix seconds."""

    ignore_unknown = True

    def __init__(
        self,
        end: LinkEnd,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: Handlers,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(end.name, handlers.requests, handlers.messages)
        self.site, self.protocol = end.site, end.protocol
        self._reader, self._writer, self._now = reader, writer, now
        self._outbox = Outbox(writer)
        served = {**handlers.streams, **{kind: _stream_to(target) for kind, target in handlers.targets.items()}}
        self._streams = Streams(end.name, self._outbox, served, dialed=end.dialed, max_incoming=handlers.max_incoming)
        self._tunnels = TunnelPool(end.name, partial(self.request, DIAL_TUNNEL)) if end.tunnels else None
        first = () if end.clock_offset_s is None else (end.clock_offset_s,)
        self._offsets: deque[float] = deque(first, maxlen=_REMEMBERED_HEARTBEATS)

    # --- for both sides -------------------------------------------------------------------------------------------

    async def open(self, kind: StreamType[Q], params: Q) -> Stream:
        """Open a stream and wait until it is accepted.

        Raises the refusal of the other side as EngineFailure or NotRunning; ConnectionLost, also after a timeout.
        """
        return await self._streams.open(kind, params)

    async def carry(self, kind: StreamType[Q], params: Q, connection: socket.socket) -> None:
        """Carry this TCP connection to the target of the other side until both have ended. Closes it.

        Raises the refusal of the other side as EngineFailure, and ConnectionLost.
        """
        if self._tunnels is not None:
            await self._tunnels.carry(kind, params, connection)
            return
        async with await self.open(kind, params) as stream:
            await join(stream, connection)

    def tunnel_arrived(self, number: int, writer: asyncio.StreamWriter) -> TunnelConnection | None:
        """The site dialled a connection with this number. None if it was not requested."""
        return None if self._tunnels is None else self._tunnels.arrived(number, writer)

    @property
    def clock_offset_s(self) -> float:
        """Add this to a time of the other side to get this side's. 0 while nothing is known.

        A heartbeat on its way makes it larger, never smaller: so the smallest of the last ones is the best.
        """
        return min(self._offsets, default=0.0)

    # --- what the exchange needs ----------------------------------------------------------------------------------

    def _transmit(self, frame: bytes) -> None:
        if len(frame) > MAX_FRAME_BYTES:  # the other side would end the link
            raise EngineFailure(f"a message or request has {len(frame)} bytes; the limit is {MAX_FRAME_BYTES}")
        try:
            self._outbox.control(encode(FrameType.CONTROL, 0, frame))
        except Overflow:
            self.close(f"{self.name} does not read the data that is sent to it")

    def _disconnect(self) -> None:
        reason = ConnectionLost(self._close_reason or "")
        self._outbox.flush()
        self._outbox.close(reason)
        self._streams.close(reason)
        if self._tunnels is not None:
            self._tunnels.close(reason)
        self._writer.close()

    # --- in -------------------------------------------------------------------------------------------------------

    async def run(self, silence_s: float = SILENCE_S) -> None:
        tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._beat())]
        decoder = FrameDecoder()
        try:
            while not self.is_closed:
                async with asyncio.timeout(silence_s):
                    data = await self._reader.read(_READ_BYTES)
                if not data:
                    raise EOFError("the other side closed the connection")
                for frame in decoder.feed(data):
                    if not self.is_closed:
                        await self._on_frame(frame)
                await asyncio.sleep(0)  # a flood of frames must not starve other tasks
        except TimeoutError:
            self.close(f"{self.name} sent nothing for {silence_s:.0f} s")
        except (*FRAME_ERRORS, Overflow) as error:
            self.close(f"the link to {self.name} is broken: {error_text(error)}")
        finally:
            self.close(f"the link to {self.name} was closed")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise ConnectionLost(self._close_reason or "")

    async def _on_frame(self, frame: Frame) -> None:
        kind, stream, payload = frame
        match kind:
            case FrameType.CONTROL:
                await self._dispatch(payload)
            case FrameType.HEARTBEAT:
                self._offsets.append(self._now() - decode_time(payload))
            case _:
                self._streams.on_frame(kind, stream, payload)

    async def _send(self) -> None:
        try:
            await self._outbox.run()
        except OSError as error:
            self.close(f"the link to {self.name} is broken: {error_text(error)}")

    async def _beat(self) -> None:
        while True:
            with suppress(Overflow):  # the link ends at the next message, or by silence
                self._outbox.control(encode(FrameType.HEARTBEAT, 0, encode_time(self._now())))
            await asyncio.sleep(HEARTBEAT_EVERY_S)


def _stream_to(target: Target) -> StreamHandler:
    async def serve(params: Any, stream: Stream) -> None:
        connection = await target(params)
        stream.accept()
        await join(stream, connection)

    return serve
