"""Messages, requests and their results between the two ends of a link, whatever carries their frames.

A frame is a JSON object: a message `{"message": NAME, "body": …}`, or a request `{"request": NAME, "id": 7, "body":
…}`, which is answered by `{"id": 7, "result": …}` or `{"id": 7, "error": …}`. Before that, `{"id": 7, "progress": …}`
reports progress. `{"cancel": 7}` cancels a request. `connection` carries the frames of node agents, `sites.connection`
those of sites.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from commonage.domain.codec import MAX_NUMBER, Json, Unreadable, cleaned, from_json, to_json
from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.reasons import Reason
from commonage.link.messages import SILENCE_S, RequestType
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.devices import ShareNotEnforced
from commonage.ports.execs import NotRunning

_log = logging.getLogger(__name__)
MAX_FRAME_BYTES = 8 * 1024 * 1024
MAX_TEXT = 4096
"""Characters of a text of the other side that is shown or stored: of an error or a warning."""
_MAX_REASON_BYTES = 64 * 1024
MAX_UNSENT_BYTES = 4 * MAX_FRAME_BYTES
_MAX_CONCURRENT_REQUESTS, _MAX_HANDLED_BYTES = 1000, 4 * MAX_FRAME_BYTES
_MAX_DIGITS = 20
_LARGE = re.compile(rb"(?<![.\d])\d{16}|\d[eE]\+?\d\d|NaN|Infinity")
_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_UNSTORABLE = re.compile(rb"\\u0000|\\u[dD][89a-fA-F]")

RequestHandler = Callable[[Any, OnProgress], Awaitable[object]]
"""Handles a request and returns its result; may report progress. An exception is sent to the requester."""
MessageHandlers = Mapping[str, tuple[type[Any], Callable[[Any], None]]]
"""The messages that this side accepts: by name, the type of the message and its handler."""
Q = TypeVar("Q")
A = TypeVar("A")


def encode_json(frame: Json) -> bytes:
    return json.dumps(frame, separators=(",", ":")).encode()


def parse_json(data: bytes) -> Json:
    """JSON from the other side, made safe to compute with and to store.

    Numbers beyond ±2**53 become that, and NUL and lone surrogates become U+FFFD. Raises ValueError, RecursionError.
    """
    parsed = (_BOUNDED if _may_exceed(data) else _PLAIN).decode(data.decode())
    return cleaned(parsed) if _UNSTORABLE.search(data) else parsed


def _may_exceed(data: bytes) -> bool:
    """Whether a number may be beyond 2**53: the parser that bounds numbers takes eight times as long."""
    shape = data.translate(_DIGITS, b"+")
    parts = (b"0" * 16, b"0e00", b"NaN", b"Infinity")
    return any(part in shape for part in parts) and _LARGE.search(data) is not None


def _bounded_int(text: str) -> int:
    number = int(text) if len(text) <= _MAX_DIGITS else -MAX_NUMBER if text.startswith("-") else MAX_NUMBER
    return max(-MAX_NUMBER, min(number, MAX_NUMBER))


def _bounded_float(text: str) -> float:
    return max(-float(MAX_NUMBER), min(float(text), float(MAX_NUMBER)))


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


_PLAIN = json.JSONDecoder()
_BOUNDED = json.JSONDecoder(parse_int=_bounded_int, parse_float=_bounded_float, parse_constant=_no_number)


def decode_json(frame: bytes) -> Mapping[str, Any]:
    """Raises ValueError, RecursionError, Unreadable."""
    decoded = parse_json(frame)
    if not isinstance(decoded, dict):
        raise Unreadable("the frame is not a JSON object")
    return decoded


def message_frame(name: str, message: object) -> Json:
    return {"message": name, "body": to_json(message)}


def error_text(error: BaseException) -> str:
    """The error's message, or its type if it has none."""
    return str(error) or type(error).__name__


class ConnectionLost(EngineFailure):
    """The other side does not answer any more: the outcome of pending requests is not known."""

    retryable = True


@dataclass(slots=True, eq=False)
class _PendingRequest:
    result: asyncio.Future[Json]
    on_progress: OnProgress


class Exchange(ABC):
    """One end of a link. `name` is that of the other side; the handlers are for its requests and messages."""

    ignore_unknown: ClassVar[bool] = False
    """Whether fields that this version does not know are skipped, because the other side may be newer."""

    def __init__(
        self,
        name: str,
        request_handlers: Mapping[RequestType[Any, Any], RequestHandler],
        message_handlers: MessageHandlers,
    ) -> None:
        self.name = name
        self._request_handlers = {kind.name: (kind, handler) for kind, handler in request_handlers.items()}
        self._message_handlers = message_handlers
        self._numbers = itertools.count(1)
        self._pending: dict[int, _PendingRequest] = {}
        self._handling: dict[int, asyncio.Task[None]] = {}
        self._handled_bytes = 0
        self._close_reason: str | None = None

    # --- what carries the frames ------------------------------------------------------------------------------------

    @abstractmethod
    def _transmit(self, frame: bytes) -> None:
        """Queue this frame; not called after the end."""

    @abstractmethod
    def _disconnect(self) -> None:
        """The link has ended: close the connection."""

    @abstractmethod
    async def run(self, silence_s: float = SILENCE_S) -> None:
        """Receive frames until the link ends. Always raises ConnectionLost, with the reason."""

    async def run_with(self, *work: Coroutine[Any, Any, None]) -> None:
        """`run`, with `work` in tasks meanwhile. The link ends with the first of them, whose error is raised."""
        tasks = [asyncio.create_task(each) for each in work]
        for task in tasks:
            task.add_done_callback(lambda _: self.close("a task of the link ended"))
        try:
            await self.run()
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended

    # --- out ------------------------------------------------------------------------------------------------------

    def send(self, name: str, message: object) -> None:
        """Send a message. After the end of the link it is lost."""
        self._write(message_frame(name, message))

    async def request(self, kind: RequestType[Q, A], params: Q, on_progress: OnProgress = ignore_progress) -> A:
        """Send a request and wait for the result.

        Raises the other side's error as an EngineFailure or NotRunning; ConnectionLost, also after a timeout.
        """
        if self._close_reason is not None:
            raise ConnectionLost(self._close_reason)
        number = next(self._numbers)
        pending = _PendingRequest(asyncio.get_running_loop().create_future(), on_progress)
        self._pending[number] = pending
        try:
            self._write({"request": kind.name, "id": number, "body": to_json(params)})
            async with asyncio.timeout(kind.timeout_s):
                result = await pending.result
        except TimeoutError:
            raise ConnectionLost(f"{self.name} did not answer within {kind.timeout_s:.0f} s ({kind.name})") from None
        finally:
            del self._pending[number]
            if not pending.result.done() or pending.result.cancelled():
                self._write({"cancel": number})
        try:
            return from_json(kind.result, result, ignore_unknown=self.ignore_unknown)
        except Unreadable as error:
            raise EngineFailure(f"{self.name} sent a result that cannot be read: {error}") from error

    def _write(self, frame: Json) -> None:
        if self._close_reason is None:
            self._transmit(encode_json(frame))

    # --- in -------------------------------------------------------------------------------------------------------

    async def _dispatch(self, data: bytes) -> None:
        """Raises ValueError, RecursionError, Unreadable."""
        frame = decode_json(data)
        if "message" in frame:
            kind, handler = self._message_handlers.get(str(frame["message"]), (None, None))
            if kind is not None and handler is not None:
                self._on_message(kind, handler, frame)
        elif "request" in frame:
            self._on_request(frame, len(data))
        elif "cancel" in frame:
            task = self._handling.get(_number(frame, "cancel"))
            if task is not None:
                task.cancel()
        else:
            self._on_response(frame)
        await asyncio.sleep(0)  # a flood of frames must not starve other tasks

    def _on_message(self, kind: type[Any], handler: Callable[[Any], None], frame: Mapping[str, Any]) -> None:
        try:
            message = from_json(kind, frame.get("body"), ignore_unknown=self.ignore_unknown)
        except Unreadable as error:
            if not self.ignore_unknown:
                raise
            _log.warning("a message %s of %s is dropped: %s", frame["message"], self.name, error)
        else:
            handler(message)

    def _on_request(self, frame: Mapping[str, Any], size: int) -> None:
        number = _number(frame, "id")
        if len(self._handling) >= _MAX_CONCURRENT_REQUESTS or number in self._handling:
            raise Unreadable(f"more than {_MAX_CONCURRENT_REQUESTS} requests at once, or two with the same id")
        if self._handled_bytes + size > _MAX_HANDLED_BYTES:
            why = f"requests of {self._handled_bytes} bytes are being handled, at most {_MAX_HANDLED_BYTES}; try again"
            self._write({"id": number, "error": encode_failure(EngineFailure(why, retryable=True))})
            return
        task = asyncio.create_task(self._handle(number, str(frame["request"]), frame.get("body")))
        self._handling[number] = task
        self._handled_bytes += size

        def on_done(_: asyncio.Task[None]) -> None:
            del self._handling[number]
            self._handled_bytes -= size

        task.add_done_callback(on_done)

    async def _handle(self, number: int, name: str, params: Json) -> None:
        def on_progress(reason: Reason, progress: float | None) -> None:
            self._write({"id": number, "progress": [to_json(reason), progress]})

        kind, handler = self._request_handlers.get(name, (None, None))
        try:
            if kind is None or handler is None:
                raise EngineFailure(f"the request {name} is not known: the two sides have different versions")
            result = await handler(from_json(kind.params, params, ignore_unknown=self.ignore_unknown), on_progress)
        except CommonageError as error:
            self._write({"id": number, "error": encode_failure(error)})
        except Exception as error:  # a bug: the requester gets an error, the log the rest
            _log.exception("request %s of %s failed", name, self.name)
            self._write({"id": number, "error": encode_failure(EngineFailure(f"{name} failed: {error}"))})
        else:
            self._answer(number, name, to_json(result))

    def _answer(self, number: int, name: str, result: Json) -> None:
        frame = encode_json({"id": number, "result": result})
        if len(frame) > MAX_FRAME_BYTES:  # the other side would end the link
            too_large = EngineFailure(f"the result of {name} has {len(frame)} bytes, more than {MAX_FRAME_BYTES}")
            self._write({"id": number, "error": encode_failure(too_large)})
        elif self._close_reason is None:
            self._transmit(frame)

    def _on_response(self, frame: Mapping[str, Any]) -> None:
        pending = self._pending.get(_number(frame, "id"))
        if pending is None or pending.result.done():
            return
        if "progress" in frame:
            pending.on_progress(*_progress_of(frame["progress"], ignore_unknown=self.ignore_unknown))
        elif "error" in frame:
            pending.result.set_exception(decode_failure(frame["error"]))
        else:
            pending.result.set_result(frame.get("result"))

    # --- the end --------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._close_reason is not None

    def close(self, reason: str) -> None:
        """End the link; pending requests fail with this reason. Idempotent: the first reason stays."""
        if self._close_reason is not None:
            return
        self._close_reason = reason
        self._disconnect()
        for task in list(self._handling.values()):
            task.cancel()
        for pending in self._pending.values():
            if not pending.result.done():
                pending.result.set_exception(ConnectionLost(reason))


def _number(frame: Mapping[str, Any], key: str) -> int:
    number = frame.get(key)
    if type(number) is not int:
        raise Unreadable(f"the frame has no number in {key}: {str(frame)[:100]}")
    return number


def _progress_of(progress: Json, *, ignore_unknown: bool) -> tuple[Reason, float | None]:
    match progress:
        case [reason, (int() | float() | None) as fraction]:
            done = None if fraction is None else max(0.0, min(float(fraction), 1.0))
            return _read_reason(reason, ignore_unknown=ignore_unknown), done
        case _:
            raise Unreadable("the progress of a request cannot be read")


def encode_failure(error: CommonageError) -> Json:
    reason = None if error.reason is None else to_json(error.reason)
    native = error.native if isinstance(error, EngineFailure) else ""
    return [error.problem_code, error.message, error.is_retryable, native, reason]


def decode_failure(failure: Json) -> CommonageError:
    """The error that the other side raised: NotRunning, or an EngineFailure. Raises Unreadable."""
    match failure:
        case [NotRunning.code, str(message), bool(), str(), _]:
            return NotRunning(message[:MAX_TEXT])
        case [str(code), str(message), bool(retryable), str(native), reason]:
            kind = ShareNotEnforced if code == ShareNotEnforced.code else EngineFailure
            return kind(
                _cause(message[:MAX_TEXT], reason), retryable=retryable, native=native[:MAX_TEXT]
            )  # other codes are its own
        case _:
            raise Unreadable("the error of a request cannot be read")


def _cause(message: str, reason: Json) -> str | Reason:
    try:
        return message if reason is None else _read_reason(reason, ignore_unknown=True)
    except Unreadable:  # too long, or a reason of a newer version; the message says the same
        return message


def _read_reason(data: Json, *, ignore_unknown: bool) -> Reason:
    """Raises Unreadable."""
    reason: Reason = from_json(Reason, data, ignore_unknown=ignore_unknown)
    size = len(encode_json(to_json(reason)))
    if size > _MAX_REASON_BYTES:
        raise Unreadable(f"a reason has {size} bytes; the limit is {_MAX_REASON_BYTES}")
    return reason
