"""The program in a file Pod: does to the files of one claim what the control plane asks for, by the same code.

Started as `python3 -m commonage.storage.file_pod FOLDER` by `engines.kubernetes.storage`. It speaks the frames of
`link.file_pods` on stdin and stdout, and ends with its input. Several requests run at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from commonage.domain.codec import Json, to_json
from commonage.domain.errors import CommonageError, Unavailable
from commonage.files.safe_path import absolute
from commonage.link.file_pods import (
    HELLO,
    MAX_DATA,
    Copy,
    Count,
    Deliver,
    FileStatus,
    Frame,
    Frames,
    ListFolder,
    Look,
    MakeFolder,
    Move,
    Nothing,
    ReadFile,
    Receive,
    Remove,
    Say,
    ShowFile,
    ShowUpload,
    failed,
    request_of,
)
from commonage.ports.files import Place, Upload
from commonage.ports.materials import Damaged
from commonage.storage.materials.copies import HomeCopy, Source
from commonage.storage.user_files import FolderFiles


class FilePod:
    """`send` writes a frame to the control plane; called in the loop."""

    def __init__(self, folder: Path, send: Callable[[Frame], None]) -> None:
        self._home = absolute(folder)
        self._place = Place(source=str(folder))
        self._files = FolderFiles(self._home)
        self._send = send
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pulling: dict[int, asyncio.Future[bytes]] = {}

    def take(self, frame: Frame) -> None:
        number = frame.conversation
        if frame.say is Say.ASK:
            self._tasks[number] = asyncio.create_task(self._answer(frame))
        elif frame.say is Say.DATA and (waiting := self._pulling.pop(number, None)) is not None:
            if not waiting.done():
                waiting.set_result(frame.data)
        elif frame.say is Say.CANCEL and (task := self._tasks.get(number)) is not None:
            task.cancel()

    async def _answer(self, frame: Frame) -> None:
        number = frame.conversation
        try:
            answer, data = await self._do(number, request_of(frame))
            self._send(Frame(number, Say.DONE, to_json(answer), data))
        except CommonageError as error:
            self._send(failed(number, error))
        except OSError as error:
            self._send(failed(number, Unavailable(error.strerror or str(error))))
        finally:
            self._tasks.pop(number, None)
            self._pulling.pop(number, None)

    async def _do(self, number: int, request: object) -> tuple[object, bytes]:
        files, place = self._files, self._place
        match request:
            case ListFolder(path):
                return await files.list(place, path), b""
            case ShowFile(path):
                file = await files.open(place, path)
                await file.close()
                return FileStatus(file.size_bytes, file.modified_at, file.version), b""
            case ReadFile():
                return Nothing(), await self._read(request)
            case ShowUpload(path, key):
                return Count(await files.uploaded(place, path, key)), b""
            case Receive():
                upload = Upload(request.path, request.key, request.length, request.replace)
                return Count(await files.receive(place, upload, request.offset, self._pulled(number))), b""
            case Deliver():
                return await self._deliver(number, request), b""
            case Look():
                version = None if request.version is None else request.version.version
                look = HomeCopy(self._home, request.material).look
                return Copy(await asyncio.to_thread(look, version)), b""
        await self._change(request)
        return Nothing(), b""

    async def _change(self, request: object) -> None:
        match request:
            case MakeFolder(path):
                await self._files.make_folder(self._place, path)
            case Move(path, to):
                await self._files.move(self._place, path, to)
            case Remove(path):
                await self._files.remove(self._place, path)

    async def _read(self, request: ReadFile) -> bytes:
        file = await self._files.open(self._place, request.path)
        try:
            if file.version != request.version:
                raise Unavailable("the file changed while it was sent; load it again")
            return await file.read(request.offset, min(request.size, MAX_DATA))
        finally:
            await file.close()

    async def _pulled(self, number: int) -> AsyncIterator[bytes]:
        while data := await self._pull(number, None):
            yield data

    def _pull(self, number: int, what: Json) -> asyncio.Future[bytes]:
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pulling[number] = waiting
        self._send(Frame(number, Say.PULL, what))
        return waiting

    async def _deliver(self, number: int, request: Deliver) -> Copy:
        loop = asyncio.get_running_loop()

        async def pull(path: str, offset: int) -> bytes:
            return await self._pull(number, [path, offset])

        def read(path: str) -> Source:
            return _Pulled(lambda offset: asyncio.run_coroutine_threadsafe(pull(path, offset), loop).result())

        deliver = HomeCopy(self._home, request.material).deliver
        reset = frozenset(request.reset)
        try:
            return Copy(
                await asyncio.to_thread(deliver, request.version.version, read, request.at, reset, request.room_mib)
            )
        except Damaged as error:
            return Copy(damaged=str(error))


class _Pulled:
    """A file of a version, as the control plane sends it: in parts of MAX_DATA, of which only the last is shorter."""

    def __init__(self, pull: Callable[[int], bytes]) -> None:
        self._pull, self._at, self._is_over = pull, 0, False

    def read(self, _size: int, /) -> bytes:
        data = b"" if self._is_over else self._pull(self._at)
        self._at += len(data)
        self._is_over = len(data) < MAX_DATA
        return data

    def close(self) -> None:
        self._is_over = True


async def serve(folder: Path) -> None:
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)

    def send(frame: Frame) -> None:
        rest = memoryview(frame.packed())
        while rest:
            rest = rest[output.write(rest) :]

    reader = asyncio.StreamReader(limit=MAX_DATA)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    pod, frames = FilePod(folder, send), Frames()
    send(Frame(HELLO, Say.DONE))
    while data := await reader.read(MAX_DATA):
        for frame in frames.feed(data):
            pod.take(frame)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
    os._exit(0)  # do not wait for threads that still work: their client is gone
