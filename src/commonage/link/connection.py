"""The link of a node agent: each frame is one line of JSON. The same on both sides; requests are in `exchange`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from commonage.domain.codec import Json, Unreadable
from commonage.link.exchange import (
    MAX_FRAME_BYTES,
    MAX_UNSENT_BYTES,
    ConnectionLost,
    Exchange,
    MessageHandlers,
    RequestHandler,
    decode_json,
    encode_json,
    error_text,
)
from commonage.link.messages import SILENCE_S, RequestType

_CLOSE_TIMEOUT_S = 1.0

FRAME_ERRORS = (OSError, EOFError, ValueError, RecursionError, Unreadable)
"""The errors that reading a frame may raise."""


def encode_frame(frame: Json) -> bytes:
    return encode_json(frame) + b"\n"


async def read_frame(reader: asyncio.StreamReader, timeout_s: float) -> Mapping[str, Any]:
    """The next frame. Raises TimeoutError, and the errors in FRAME_ERRORS."""
    return decode_json(await _read_line(reader, timeout_s))


async def _read_line(reader: asyncio.StreamReader, timeout_s: float) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        raise EOFError("the other side closed the connection") from error
    except asyncio.LimitOverrunError as error:
        raise ValueError(f"the frame is larger than {MAX_FRAME_BYTES} bytes") from error


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Close the connection; by force if the other side does not cooperate."""
    if not writer.is_closing():  # after a second close asyncio of Python 3.11.2 cannot abort any more
        writer.close()
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await writer.wait_closed()
    except OSError:  # includes TimeoutError
        return
    finally:
        writer.transport.abort()


class Connection(Exchange):
    """One end of a link. The reader was created with the limit MAX_FRAME_BYTES."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        request_handlers: Mapping[RequestType[Any, Any], RequestHandler],
        message_handlers: MessageHandlers,
    ) -> None:
        super().__init__(name, request_handlers, message_handlers)
        self._reader, self._writer = reader, writer

    def _transmit(self, frame: bytes) -> None:
        self._writer.write(frame + b"\n")
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.close(f"{self.name} does not read the data that is sent to it")

    def _disconnect(self) -> None:
        self._writer.close()

    async def run(self, silence_s: float = SILENCE_S) -> None:
        try:
            while self._close_reason is None:
                line = await _read_line(self._reader, silence_s)
                if self._close_reason is None:
                    await self._dispatch(line)
        except TimeoutError:
            self.close(f"{self.name} sent nothing for {silence_s:.0f} s")
        except FRAME_ERRORS as error:
            self.close(f"the link to {self.name} is broken: {error_text(error)}")
        finally:
            self.close(f"the link to {self.name} was closed")
        raise ConnectionLost(self._close_reason or "")
