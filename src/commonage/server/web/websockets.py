"""WebSockets: uvicorn's protocol with limits on clients that do not read, send too early or are gone.

`web` passes `WEBSOCKETS` to uvicorn.
"""

from __future__ import annotations

from asyncio import BaseTransport
from typing import Any, ClassVar, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

_MAX_FRAGMENTS = 1024  # of one message; otherwise empty fragments could be collected without limit


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection.

    Pings only keep proxies from closing an idle connection. A late pong ends nothing: a client that is slow, or a pager
    that is paused, may leave pings unread for minutes.
    """

    silence_s: ClassVar[float] = 3600.0
    """Idle timeout in seconds: a connection ends if the client neither sends nor receives data for this time."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Start to measure silence."""
        super().connection_made(transport)
        self._active_at = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Refuse frames before the answer to the handshake, and requests that the parser refuses."""
        if self.handshake_initiated and not self.handshake_complete:
            self.transport.abort()
            return
        self._active_at = self.loop.time()
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # uvicorn leaves the parser's answer unsent, and the connection open.
            answer = b"".join(self.conn.data_to_send()) or self.conn.reject(400, "Invalid request.\n").serialize()
            self.transport.write(answer)
            self.transport.close()

    def resume_writing(self) -> None:
        """The client has taken data."""
        self._active_at = self.loop.time()
        super().resume_writing()

    def handle_cont(self, event: Frame) -> None:
        """Limit the fragments of a message."""
        if self.transport.is_closing():
            return
        if len(self.frames) >= _MAX_FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"a message has at most {_MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()
        else:
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Drop the pong if the client does not read: pongs are written without regard to the size of the buffer."""
        if self.writable.is_set() or self.conn.close_sent is not None:
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def schedule_ping(self) -> None:
        """Ignore the round-trip time: uvicorn subtracts it from the interval, and a slow client would get a storm."""
        self.last_ping_rtt = 0.0
        super().schedule_ping()

    def send_keepalive_ping(self) -> None:
        """Ping a client that reads; drop one that has been silent for too long, with all that it has not taken."""
        if self.loop.time() - self._active_at >= self.silence_s:
            self.transport.abort()
        elif self.close_sent or self.transport.is_closing() or not self.writable.is_set():
            self.schedule_ping()
        else:
            super().send_keepalive_ping()

    async def send(self, message: Any) -> None:
        """Send for the application. Raises ClientDisconnected once either side has closed the connection."""
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)


WEBSOCKETS: Final[dict[str, Any]] = {
    "ws": WebSocketProtocol,
    "ws_max_size": 1024 * 1024,  # bytes of one message
    "ws_per_message_deflate": False,
    "ws_ping_interval": 20.0,  # seconds; proxies close a connection that is idle for a minute
    "ws_ping_timeout": None,  # `silence_s` instead
}
"""uvicorn's settings."""
