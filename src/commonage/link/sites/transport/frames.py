"""The binary frames of a site link: a header of 13 bytes (length, type, stream), then the payload."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from enum import IntEnum

from commonage.domain.codec import Unreadable
from commonage.link.exchange import MAX_FRAME_BYTES

CHUNK_BYTES = 64 * 1024
"""A frame of a stream carries at most this much: between two of them the frames of others have their turn."""
MAX_OPEN_BYTES = 1024 * 1024
_HEADER = struct.Struct(">IBQ")
_COUNT = struct.Struct(">I")
_TIME = struct.Struct(">d")


class FrameType(IntEnum):
    CONTROL = 0
    """JSON: a message, a request or an answer (`link.exchange`)."""
    HEARTBEAT = 1
    """The sender's time in unix seconds, a double."""
    OPEN = 2
    """JSON `[TYPE, PARAMS]`: the sender opens this stream."""
    ACCEPT = 3
    DATA = 4
    CREDIT = 5
    """The receiver consumed this many bytes of the stream (four bytes): as many again may be sent."""
    END = 6
    """The sender sends no more data on this stream."""
    ABORT = 7
    """JSON, a failure: the stream has ended in both directions, or was not accepted."""


_MAX_PAYLOAD = {
    FrameType.CONTROL: MAX_FRAME_BYTES,
    FrameType.HEARTBEAT: _TIME.size,
    FrameType.OPEN: MAX_OPEN_BYTES,
    FrameType.ACCEPT: 0,
    FrameType.DATA: CHUNK_BYTES,
    FrameType.CREDIT: _COUNT.size,
    FrameType.END: 0,
    FrameType.ABORT: CHUNK_BYTES,
}
_WITHOUT_STREAM = (FrameType.CONTROL, FrameType.HEARTBEAT)

Frame = tuple[FrameType, int, bytes]
"""Type, stream (0 for frames of the whole link), payload."""


def encode(kind: FrameType, stream: int = 0, payload: bytes | memoryview = b"") -> bytes:
    return b"".join((_HEADER.pack(len(payload), kind, stream), payload))


def payload_bytes(frame: bytes) -> int:
    return len(frame) - _HEADER.size


def encode_count(count: int) -> bytes:
    return _COUNT.pack(count)


def decode_count(payload: bytes) -> int:
    """Raises Unreadable."""
    return int(_unpack(_COUNT, payload))


def encode_time(at: float) -> bytes:
    return _TIME.pack(at)


def decode_time(payload: bytes) -> float:
    """Raises Unreadable."""
    at = float(_unpack(_TIME, payload))
    if not math.isfinite(at):
        raise Unreadable("a heartbeat has no time")
    return at


def _unpack(form: struct.Struct, payload: bytes) -> int | float:
    if len(payload) != form.size:
        raise Unreadable(f"a frame has {len(payload)} bytes instead of {form.size}")
    (value,) = form.unpack(payload)
    return value  # type: ignore[no-any-return]  # `struct` has no types


class FrameDecoder:
    """Cuts received bytes into frames. It keeps at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Raises Unreadable at the first one that is not valid."""
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _HEADER.size:
                length, number, stream = _HEADER.unpack_from(self._buffer, at)
                kind = _checked(length, number, stream)
                end = at + _HEADER.size + length
                if len(self._buffer) < end:
                    break
                payload = bytes(memoryview(self._buffer)[at + _HEADER.size : end])
                at = end
                if kind is not None:
                    yield kind, stream, payload
        finally:
            del self._buffer[:at]


def _checked(length: int, number: int, stream: int) -> FrameType | None:
    """The type of a frame with this header; None for a type of a newer version, which is skipped."""
    try:
        kind = FrameType(number)
    except ValueError:
        kind = None
    limit = CHUNK_BYTES if kind is None else _MAX_PAYLOAD[kind]
    if length > limit:
        raise Unreadable(f"a frame of type {number} has {length} bytes; the limit is {limit}")
    if kind is not None and (stream == 0) != (kind in _WITHOUT_STREAM):
        raise Unreadable(f"a frame of type {kind.name} names the stream {stream}")
    return kind
