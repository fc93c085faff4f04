"""The end of a connection that was closed before, as it is with each link that breaks off."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from commonage.domain.reasons.attempts import ExitCode
from commonage.link.connection import close_writer
from commonage.link.exchange import MAX_FRAME_BYTES, Exchange, RequestHandler, decode_failure, encode_json
from commonage.link.messages import Attempts, RequestType
from commonage.testing.fakes.clock import settle

pytestmark = pytest.mark.anyio
PING = RequestType("ping", Attempts, Attempts, 5.0)


class Transport:
    """A TLS transport as in Python 3.11.2: a second close makes it forget its waiters."""

    def __init__(self) -> None:
        self.protocol: list[str] | None = []
        self.closed = False

    def close(self) -> None:
        if self.closed:
            self.protocol = None
        self.closed = True

    def abort(self) -> None:
        assert self.protocol is not None, "AttributeError: 'NoneType' object has no attribute '_abort'"
        self.protocol.append("aborted")


class Writer:
    def __init__(self) -> None:
        self.transport = Transport()

    def close(self) -> None:
        self.transport.close()

    def is_closing(self) -> bool:
        return self.transport.closed

    async def wait_closed(self) -> None:
        pass


@pytest.mark.parametrize("closed_before", [False, True])
async def test_closing_aborts_a_connection_that_was_closed_before(closed_before: bool) -> None:
    writer: Any = Writer()
    if closed_before:
        writer.close()
    await close_writer(writer)
    assert writer.transport.closed
    assert writer.transport.protocol == ["aborted"]


class Peer(Exchange):
    """An end of a link that keeps what it sends."""

    def __init__(self, handler: RequestHandler) -> None:
        super().__init__("peer", {PING: handler}, {})
        self.sent: list[Any] = []

    def _transmit(self, frame: bytes) -> None:
        self.sent.append(json.loads(frame))

    def _disconnect(self) -> None:
        """There is nothing to close."""

    async def run(self, silence_s: float = 0) -> None:
        """Frames come by `_dispatch`."""


async def test_requests_that_wait_hold_a_bounded_number_of_bytes() -> None:
    go_on, handled = asyncio.Event(), 0

    async def wait(_params: Attempts, _on_progress: object) -> Attempts:
        nonlocal handled
        handled += 1
        await go_on.wait()
        return Attempts(())

    def request(number: int) -> bytes:
        attempts = ["x" * (MAX_FRAME_BYTES - 1024)]
        return encode_json({"request": PING.name, "id": number, "body": {"ids": attempts}})

    peer = Peer(wait)
    for number in range(20):
        await peer._dispatch(request(number))
    assert handled == 4
    failures = [decode_failure(answer["error"]) for answer in peer.sent]
    assert len(failures) == 16
    assert all(one.is_retryable and "are being handled" in one.message for one in failures)
    go_on.set()
    await settle()
    await peer._dispatch(request(20))
    await settle()
    assert handled == 5, "requests are handled again after the others ended"


@pytest.mark.parametrize(
    ("failure_frame", "native"),
    [(["engine-failure", "no", True, "", None], ""), (["x", "no", True, "raw", None], "raw")],
)
def test_reads_a_failure_with_its_native_text(failure_frame: list[str | bool | None], native: str) -> None:
    failure = decode_failure(failure_frame)
    assert (failure.message, failure.is_retryable, failure.native) == ("no", True, native)
    assert failure.reason is None


def test_a_failure_with_a_reason_keeps_it() -> None:
    failure = decode_failure(["engine-failure", "no", False, "raw", {"code": "ExitCode", "params": {"exit_code": 3}}])
    assert (failure.reason, failure.native) == (ExitCode(exit_code=3), "raw")
