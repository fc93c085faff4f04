"""One end of a link: sends and receives frames, and matches requests with their answers. The same on both sides.

A frame is one line of JSON: `{"say": …, "with": …}`; `{"ask": …, "id": 7, "with": …}`, which is answered by `{"id": 7,
"gives": …}` or `{"id": 7, "fails": …}`, with `{"id": 7, "told": …}` before for progress; `{"drop": 7}` when nobody
waits for the answer any more.
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
from commonage.ports.devices import NotConfined

_log = logging.getLogger(__name__)
MAX_FRAME_BYTES = 8 * 1024 * 1024
"""Maximum size of one frame. Readers are created with this limit."""
_MOST_UNSENT = 4 * MAX_FRAME_BYTES
_MOST_QUESTIONS = 1000
_CLOSE_WITHIN_S = 1.0

FRAME_ERRORS = (OSError, EOFError, ValueError, RecursionError, Unreadable)
"""The errors that reading a frame may raise."""

Answer = Callable[[Any, OnProgress], Awaitable[object]]
"""Handles a request and returns its answer; may report progress. An exception is sent to the requester."""
MessageHandlers = Mapping[str, tuple[type[Any], Callable[[Any], None]]]
"""The messages that this side accepts: by name, the type of the message and its handler."""
Q = TypeVar("Q")
A = TypeVar("A")


def encode_frame(frame: Json) -> bytes:
    """The frame as it is sent."""
    return json.dumps(frame, separators=(",", ":")).encode() + b"\n"


def said(name: str, message: object) -> Json:
    """The frame for a message."""
    return {"say": name, "with": to_json(message)}


async def read_frame(reader: asyncio.StreamReader, within_s: float) -> Mapping[str, Any]:
    """The next frame. Raises TimeoutError, and what is in BROKEN."""
    try:
        async with asyncio.timeout(within_s):
            line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        raise EOFError("the other side ended it") from error
    except asyncio.LimitOverrunError as error:
        raise ValueError(f"a frame of more than {MAX_FRAME_BYTES} bytes") from error
    frame = json.loads(line)
    if not isinstance(frame, dict):
        raise Unreadable("a frame that is no object")
    return frame


async def end(writer: asyncio.StreamWriter) -> None:
    """Close the connection; by force if the other side does not cooperate."""
    if not writer.is_closing():  # a second close makes asyncio of Python 3.11.2 forget what is to be aborted
        writer.close()
    try:
        async with asyncio.timeout(_CLOSE_WITHIN_S):
            await writer.wait_closed()
    except OSError:  # includes TimeoutError
        return
    finally:
        writer.transport.abort()


def error_text(error: BaseException) -> str:
    """The error's message, or its type if it has none."""
    return str(error) or type(error).__name__


class ConnectionLost(EngineFailure):
    """The other side does not answer any more: the outcome of pending requests is not known."""

    retryable = True


@dataclass(slots=True, eq=False)
class _Asked:
    """A pending request."""

    answer: asyncio.Future[Json]
    told: OnProgress


class Connection:
    """One end. `name` is that of the other side; `offers` answers its requests, `hears` takes its messages."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        offers: Mapping[RequestType[Any, Any], Answer],
        hears: MessageHandlers,
    ) -> None:
        self.name = name
        self._reader, self._writer = reader, writer
        self._offers = {call.name: (call, answer) for call, answer in offers.items()}
        self._hears = hears
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._over: str | None = None

    # --- out ------------------------------------------------------------------------------------------------------

    def say(self, name: str, message: object) -> None:
        """Send a message. After the end of the link it is lost."""
        self._send(said(name, message))

    async def ask(self, call: RequestType[Q, A], question: Q, told: OnProgress = ignore_progress) -> A:
        """Send a request and wait.

        Raises the other side's error as an EngineFailure; ConnectionLost, also after a timeout.
        """
        if self._over is not None:
            raise ConnectionLost(self._over)
        number = next(self._numbers)
        asked = _Asked(asyncio.get_running_loop().create_future(), told)
        self._asked[number] = asked
        try:
            self._send({"ask": call.name, "id": number, "with": to_json(question)})
            async with asyncio.timeout(call.within_s):
                gives = await asked.answer
        except TimeoutError:
            raise ConnectionLost(f"{self.name} did not answer within {call.within_s:.0f} s ({call.name})") from None
        finally:
            del self._asked[number]
            if not asked.answer.done() or asked.answer.cancelled():
                self._send({"drop": number})
        try:
            return from_json(call.answer, gives)
        except Unreadable as error:
            raise EngineFailure(f"{self.name} answered what is not understood: {error}") from error

    def _send(self, frame: Json) -> None:
        if self._over is not None:
            return
        self._writer.write(encode_frame(frame))
        if self._writer.transport.get_write_buffer_size() > _MOST_UNSENT:
            self.close(f"{self.name} does not take what is sent to it")

    # --- in -------------------------------------------------------------------------------------------------------

    async def run(self, silence_s: float = SILENCE_S) -> None:
        """Receive frames until the link ends. Always raises ConnectionLost, with the reason."""
        try:
            while self._over is None:
                frame = await read_frame(self._reader, silence_s)
                if self._over is None:
                    await self._take(frame)
        except TimeoutError:
            self.close(f"nothing was heard of {self.name} for {silence_s:.0f} s")
        except FRAME_ERRORS as error:
            self.close(f"the link to {self.name} is broken: {error_text(error)}")
        finally:
            self.close(f"the link to {self.name} was ended")
        raise ConnectionLost(self._over or "")

    async def _take(self, frame: Mapping[str, Any]) -> None:
        if "say" in frame:
            self._agent_reports(frame)
        elif "ask" in frame:
            self._was_asked(frame)
        elif "drop" in frame:
            task = self._answering.get(_number(frame, "drop"))
            if task is not None:
                task.cancel()
        else:
            self._was_answered(frame)
        await asyncio.sleep(0)  # a flood of frames must not starve other tasks

    def _agent_reports(self, frame: Mapping[str, Any]) -> None:
        kind, take = self._hears.get(str(frame["say"]), (None, None))
        if kind is not None and take is not None:
            take(from_json(kind, frame.get("with")))

    def _was_asked(self, frame: Mapping[str, Any]) -> None:
        number = _number(frame, "id")
        if len(self._answering) >= _MOST_QUESTIONS or number in self._answering:
            raise Unreadable("more questions than can be answered")
        task = asyncio.create_task(self._answer(number, str(frame["ask"]), frame.get("with")))
        self._answering[number] = task
        task.add_done_callback(lambda _: self._answering.pop(number, None))

    async def _answer(self, number: int, name: str, question: Json) -> None:
        def told(reason: Reason, progress: float | None) -> None:
            self._send({"id": number, "told": [to_json(reason), progress]})

        call, answer = self._offers.get(name, (None, None))
        try:
            if call is None or answer is None:
                raise EngineFailure(f"{name} is not known here: the two sides are of different versions")
            given = await answer(from_json(call.question, question), told)
        except CommonageError as error:
            reason = None if error.reason is None else to_json(error.reason)
            native = error.native if isinstance(error, EngineFailure) else ""
            fails = [error.problem_code, error.message, error.is_retryable, native, reason]
            self._send({"id": number, "fails": fails})
        except Exception as error:  # a bug: the requester gets an error, the log the rest
            _log.exception("%s of %s failed", name, self.name)
            self._send({"id": number, "fails": ["engine-failure", f"{name} failed: {error}", False, "", None]})
        else:
            self._send({"id": number, "gives": to_json(given)})

    def _was_answered(self, frame: Mapping[str, Any]) -> None:
        asked = self._asked.get(_number(frame, "id"))
        if asked is None or asked.answer.done():
            return
        if "told" in frame:
            asked.told(*_told_of(frame["told"]))
        elif "fails" in frame:
            asked.answer.set_exception(_failure(frame["fails"]))
        else:
            asked.answer.set_result(frame.get("gives"))

    # --- the end --------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True once the link has ended."""
        return self._over is not None

    def close(self, why: str) -> None:
        """End the link; pending requests fail with this reason. Idempotent: the first reason stays."""
        if self._over is not None:
            return
        self._over = why
        self._writer.close()
        for task in list(self._answering.values()):
            task.cancel()
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(ConnectionLost(why))


def _number(frame: Mapping[str, Any], key: str) -> int:
    number = frame.get(key)
    if type(number) is not int:
        raise Unreadable(f"a frame without a number: {str(frame)[:100]}")
    return number


def _told_of(told: Json) -> tuple[Reason, float | None]:
    match told:
        case [reason, (int() | float() | None) as progress]:
            return from_json(Reason, reason), progress
        case _:
            raise Unreadable("progress that is not understood")


def _failure(fails: Json) -> EngineFailure:
    match fails:
        case [str(code), str(message), bool(retryable), *rest] if len(rest) <= 2:
            native = str(rest[0]) if rest else ""  # older versions send less
            reason = rest[1] if len(rest) > 1 else None
            kind = NotConfined if code == NotConfined.code else EngineFailure
            what = message if reason is None else from_json(Reason, reason)
            return kind(what, retryable=retryable, native=native)  # other codes are the other side's own
        case _:
            raise Unreadable("a failure that is not understood")
