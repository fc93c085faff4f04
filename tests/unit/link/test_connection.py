"""The end of a connection that was closed before, as it is with each link that breaks off."""

from __future__ import annotations

from typing import Any

import pytest

from commonage.domain.reasons.attempts import ExitCode
from commonage.link.connection import close_writer
from commonage.link.exchange import decode_failure

pytestmark = pytest.mark.anyio


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
