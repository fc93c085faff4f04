"""One end of a link: sends and receives frames, and matches requests with their responses. The same on both sides.

A frame is one line of JSON: a message `{"message": NAME, "body": …}`, or a request `{"request": NAME, "id": 7, "body":
…}`, which is answered by `{"id": 7, "result": …}` or `{"id": 7, "error": …}`. Before that, `{"id": 7, "progress": …}`
reports progress. `{"cancel": 7}` cancels a request.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from commonage.domain.codec import Json, Unreadable, from_json, to_json
from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.reasons import Reason
from commonage.link.messages import SILENCE_S, RequestType
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.devices import ShareNotEnforced

_log = logging.getLogger(__name__)
MAX_FRAME_BYTES = 8 * 1024 * 1024
"""Readers are created with this limit."""
_MAX_UNSENT_BYTES = 4 * MAX_FRAME_BYTES
_MAX_CONCURRENT_REQUESTS = 1000
_CLOSE_TIMEOUT_S = 1.0

FRAME_ERRORS = (OSError, EOFError, ValueError, RecursionError, Unreadable)
"""The errors that reading a frame may raise."""

RequestHandler = Callable[[Any, OnProgress], Awaitable[object]]
"""Handles a request and returns its result; may report progress. An exception is sent to the requester."""
MessageHandlers = Mapping[str, tuple[type[Any], Callable[[Any], None]]]
"""The messages that this side accepts: by name, the type of the message and its handler."""
Q = TypeVar("Q")
A = TypeVar("A")


# --- frames -----------------------------------------------------------------------------------------------------------


def encode_frame(frame: Json) -> bytes:
    return json.dumps(frame, separators=(",", ":")).encode() + b"\n"


def message_frame(name: str, message: object) -> Json:
    return {"message": name, "body": to_json(message)}


async def read_frame(reader: asyncio.StreamReader, timeout_s: float) -> Mapping[str, Any]:
    """The next frame. Raises TimeoutError, and the errors in FRAME_ERRORS."""
    try:
        async with asyncio.timeout(timeout_s):
            line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        raise EOFError("the other side closed the connection") from error
    except asyncio.LimitOverrunError as error:
        raise ValueError(f"the frame is larger than {MAX_FRAME_BYTES} bytes") from error
    frame = json.loads(line)
    if not isinstance(frame, dict):
        raise Unreadable("the frame is not a JSON object")
    return frame


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


def error_text(error: BaseException) -> str:
    """The error's message, or its type if it has none."""
    return str(error) or type(error).__name__


# --- requests and messages --------------------------------------------------------------------------------------------


class ConnectionLost(EngineFailure):
    """The other side does not answer any more: the outcome of pending requests is not known."""

    retryable = True


@dataclass(slots=True, eq=False)
class _PendingRequest:
    result: asyncio.Future[Json]
    on_progress: OnProgress


class Connection:
    """One end of a link. `name` is that of the other side; the handlers are for its requests and messages."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        request_handlers: Mapping[RequestType[Any, Any], RequestHandler],
        message_handlers: MessageHandlers,
    ) -> None:
        self.name = name
        self._reader, self._writer = reader, writer
        self._request_handlers = {kind.name: (kind, handler) for kind, handler in request_handlers.items()}
        self._message_handlers = message_handlers
        self._numbers = itertools.count(1)
        self._pending: dict[int, _PendingRequest] = {}
        self._handling: dict[int, asyncio.Task[None]] = {}
        self._close_reason: str | None = None

    # --- out ------------------------------------------------------------------------------------------------------

    def send(self, name: str, message: object) -> None:
        """Send a message. After the end of the link it is lost."""
        self._write(message_frame(name, message))

    async def request(self, kind: RequestType[Q, A], params: Q, on_progress: OnProgress = ignore_progress) -> A:
        """Send a request and wait for the result.

        Raises the other side's error as an EngineFailure; ConnectionLost, also after a timeout.
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
            return from_json(kind.result, result)
        except Unreadable as error:
            raise EngineFailure(f"{self.name} sent a result that cannot be read: {error}") from error

    def _write(self, frame: Json) -> None:
        if self._close_reason is not None:
            return
        self._writer.write(encode_frame(frame))
        if self._writer.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self.close(f"{self.name} does not read the data that is sent to it")

    # --- in -------------------------------------------------------------------------------------------------------

    async def run(self, silence_s: float = SILENCE_S) -> None:
        """Receive frames until the link ends. Always raises ConnectionLost, with the reason."""
        try:
            while self._close_reason is None:
                frame = await read_frame(self._reader, silence_s)
                if self._close_reason is None:
                    await self._dispatch(frame)
        except TimeoutError:
            self.close(f"{self.name} sent nothing for {silence_s:.0f} s")
        except FRAME_ERRORS as error:
            self.close(f"the link to {self.name} is broken: {error_text(error)}")
        finally:
            self.close(f"the link to {self.name} was closed")
        raise ConnectionLost(self._close_reason or "")

    async def _dispatch(self, frame: Mapping[str, Any]) -> None:
        if "message" in frame:
            kind, handler = self._message_handlers.get(str(frame["message"]), (None, None))
            if kind is not None and handler is not None:
                handler(from_json(kind, frame.get("body")))
        elif "request" in frame:
            self._on_request(frame)
        elif "cancel" in frame:
            task = self._handling.get(_number(frame, "cancel"))
            if task is not None:
                task.cancel()
        else:
            self._on_response(frame)
        await asyncio.sleep(0)  # a flood of frames must not starve other tasks

    def _on_request(self, frame: Mapping[str, Any]) -> None:
        number = _number(frame, "id")
        if len(self._handling) >= _MAX_CONCURRENT_REQUESTS or number in self._handling:
            raise Unreadable(f"more than {_MAX_CONCURRENT_REQUESTS} requests at once, or two with the same id")
        task = asyncio.create_task(self._handle(number, str(frame["request"]), frame.get("body")))
        self._handling[number] = task
        task.add_done_callback(lambda _: self._handling.pop(number, None))

    async def _handle(self, number: int, name: str, params: Json) -> None:
        def on_progress(reason: Reason, progress: float | None) -> None:
            self._write({"id": number, "progress": [to_json(reason), progress]})

        kind, handler = self._request_handlers.get(name, (None, None))
        try:
            if kind is None or handler is None:
                raise EngineFailure(f"the request {name} is not known: the two sides have different versions")
            result = await handler(from_json(kind.params, params), on_progress)
        except CommonageError as error:
            reason = None if error.reason is None else to_json(error.reason)
            native = error.native if isinstance(error, EngineFailure) else ""
            failure = [error.problem_code, error.message, error.is_retryable, native, reason]
            self._write({"id": number, "error": failure})
        except Exception as error:  # a bug: the requester gets an error, the log the rest
            _log.exception("request %s of %s failed", name, self.name)
            self._write({"id": number, "error": ["engine-failure", f"{name} failed: {error}", False, "", None]})
        else:
            self._write({"id": number, "result": to_json(result)})

    def _on_response(self, frame: Mapping[str, Any]) -> None:
        pending = self._pending.get(_number(frame, "id"))
        if pending is None or pending.result.done():
            return
        if "progress" in frame:
            pending.on_progress(*_progress_of(frame["progress"]))
        elif "error" in frame:
            pending.result.set_exception(_failure_of(frame["error"]))
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
        self._writer.close()
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


def _progress_of(progress: Json) -> tuple[Reason, float | None]:
    match progress:
        case [reason, (int() | float() | None) as fraction]:
            return from_json(Reason, reason), fraction
        case _:
            raise Unreadable("the progress of a request cannot be read")


def _failure_of(failure: Json) -> EngineFailure:
    match failure:
        case [str(code), str(message), bool(retryable), str(native), reason]:
            kind = ShareNotEnforced if code == ShareNotEnforced.code else EngineFailure
            cause = message if reason is None else from_json(Reason, reason)
            return kind(cause, retryable=retryable, native=native)  # other codes are the other side's own
        case _:
            raise Unreadable("the error of a request cannot be read")
