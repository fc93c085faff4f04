"""Conversations with the program in a file Pod, several at once over one stream. Used by `file_pods`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from commonage.domain.codec import Json, from_json
from commonage.domain.errors import CommonageError, Unavailable
from commonage.link.file_pods import HELLO, Frame, Frames, Say, ask, error_of
from commonage.ports.execs import OUT, ExecStream

T = TypeVar("T")
Pull = Callable[[Json], Awaitable[bytes]]
"""Gives the program what it asks for, at most MAX_DATA bytes; none at the end."""
_ANSWERS_WITHIN_S = 30.0
_MAX_COMPLAINT = 2000


class PodLink:
    """`stream` is that of the program. `begin` first."""

    def __init__(self, stream: ExecStream) -> None:
        self._stream = stream
        self._numbers = itertools.count(HELLO + 1)
        self._waiting: dict[int, asyncio.Queue[Frame | None]] = {}
        self._writing = asyncio.Lock()
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._complaint = b""
        self._taking = asyncio.create_task(self._take())
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return not self._taking.done()

    async def begin(self) -> None:
        """Wait until the program listens. Raises Unavailable."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                await asyncio.shield(self._hello)
        except TimeoutError:
            raise Unavailable("the program in the file Pod does not answer; try again") from None

    async def close(self) -> None:
        self._taking.cancel()
        await asyncio.gather(self._taking, return_exceptions=True)
        await self._stream.close()

    async def ask(self, request: object, answer: type[T], pull: Pull | None = None) -> tuple[T, bytes]:
        """The answer with its data. Raises what the program raised, what `pull` raised, and Unavailable.

        When `pull` raises, the program gets the end of the data, and its answer is waited for.
        """
        number = next(self._numbers)
        frames = self._waiting[number] = asyncio.Queue()
        problem: BaseException | None = None
        is_over = False
        try:
            await self._send(ask(number, request))
            while True:
                frame = await frames.get() if self.is_open or not frames.empty() else None
                if frame is None:
                    raise self._lost()
                if frame.say is Say.PULL:
                    data = b""
                    try:
                        data = await pull(frame.body) if pull is not None and problem is None else b""
                    except Exception as error:  # raised once the program has answered
                        problem = error
                    await self._send(Frame(number, Say.DATA, data=data))
                    continue
                is_over = True
                if problem is not None:
                    raise problem
                if frame.say is Say.FAILED:
                    raise error_of(frame)
                return from_json(answer, frame.body), frame.data
        finally:
            del self._waiting[number]
            if not is_over and self.is_open:
                self._begin_sending(Frame(number, Say.CANCEL))

    async def _send(self, frame: Frame) -> None:
        await asyncio.shield(self._begin_sending(frame))  # half a frame would break all conversations

    def _begin_sending(self, frame: Frame) -> asyncio.Task[None]:
        task = asyncio.create_task(self._write(frame))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return task

    async def _write(self, frame: Frame) -> None:
        async with self._writing:
            with suppress(CommonageError):  # `_take` notices a lost connection
                await self._stream.write(frame.packed())

    async def _take(self) -> None:
        frames = Frames()
        try:
            while (said := await self._stream.read()) is not None:
                if said[0] != OUT:
                    self._complaint = (self._complaint + said[1])[-_MAX_COMPLAINT:]
                    continue
                for frame in frames.feed(said[1]):
                    self._pass_on(frame)
        except CommonageError as error:
            self._complaint = str(error).encode()
        finally:
            if not self._hello.done():
                self._hello.set_exception(self._lost())
                self._hello.exception()
            for waiting in self._waiting.values():
                waiting.put_nowait(None)

    def _pass_on(self, frame: Frame) -> None:
        if frame.conversation == HELLO:
            if not self._hello.done():
                self._hello.set_result(None)
        elif (waiting := self._waiting.get(frame.conversation)) is not None:
            waiting.put_nowait(frame)
        elif frame.say is Say.PULL:  # of a conversation that was cancelled
            self._begin_sending(Frame(frame.conversation, Say.DATA))

    def _lost(self) -> Unavailable:
        why = self._complaint.decode(errors="replace").strip().rpartition("\n")[2]
        return Unavailable(f"the connection to the files was lost{f' ({why})' if why else ''}; try again")
