"""Messages between the control plane and the program in a file Pod, over the streams of one command there.

A frame has three numbers (conversation, length of the message, length of the data), the message as JSON, and data. The
control plane begins a conversation with a request. The program may ask for data (`pull`), and ends it with `done` or
`failed`. The control plane's end is `engines.kubernetes.storage`, the program's is `storage.file_pod`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from commonage.domain import errors
from commonage.domain.codec import Json, from_json, to_json
from commonage.domain.errors import CommonageError, EngineFailure, InvalidInput, Unavailable
from commonage.domain.files import Parts
from commonage.domain.materials import MaterialCopy, MaterialFile, Version
from commonage.domain.reasons import Reason

MAX_DATA = 1024 * 1024
_MAX_MESSAGE = 64 * 1024 * 1024  # a version with all its files
_HEAD = struct.Struct(">III")
HELLO = 0
"""The conversation of the program's first frame, which says that it listens."""


class Say(StrEnum):
    """Of the control plane: `ask`, `data` (the answer to `pull`; without data: the end) and `cancel`."""

    ASK = "ask"
    DATA = "data"
    CANCEL = "cancel"
    PULL = "pull"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Frame:
    conversation: int
    say: Say
    body: Json = None
    data: bytes = b""

    def packed(self) -> bytes:
        text = json.dumps([self.say, self.body]).encode("ascii")
        return _HEAD.pack(self.conversation, len(text), len(self.data)) + text + self.data


@dataclass(slots=True)
class Frames:
    """Finds the frames in a stream of bytes."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Raises EngineFailure for anything else."""
        self._rest += data
        while len(self._rest) >= _HEAD.size:
            conversation, text, size = _HEAD.unpack_from(self._rest)
            if text > _MAX_MESSAGE or size > MAX_DATA:
                raise EngineFailure(f"a file Pod sent something else than frames: {bytes(self._rest[:60])!r}")
            end = _HEAD.size + text + size
            if len(self._rest) < end:
                return
            whole = bytes(self._rest[_HEAD.size : end])
            del self._rest[:end]
            try:
                say, body = json.loads(whole[:text])
                yield Frame(conversation, Say(say), body, whole[text:])
            except (ValueError, TypeError) as error:
                raise EngineFailure(f"a file Pod sent something else than frames: {error}") from error


# --- requests and answers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListFolder:
    path: Parts


@dataclass(frozen=True, slots=True)
class ShowFile:
    path: Parts


@dataclass(frozen=True, slots=True)
class FileStatus:
    size_bytes: int
    modified_at: float
    version: str


@dataclass(frozen=True, slots=True)
class ReadFile:
    """At most MAX_DATA bytes, of this version of the file."""

    path: Parts
    version: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ShowUpload:
    path: Parts
    key: str


@dataclass(frozen=True, slots=True)
class Receive:
    """The program pulls the bytes from `offset`."""

    path: Parts
    key: str
    length: int
    replace: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Count:
    size: int


@dataclass(frozen=True, slots=True)
class MakeFolder:
    path: Parts


@dataclass(frozen=True, slots=True)
class Move:
    path: Parts
    to: Parts


@dataclass(frozen=True, slots=True)
class Remove:
    path: Parts


@dataclass(frozen=True, slots=True)
class FileOfVersion:
    path: str
    blob: str
    size: int
    executable: bool


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """A version of a material, as the codec takes it."""

    commit: str
    tree: str
    published_at: float
    files: tuple[FileOfVersion, ...]

    @classmethod
    def of(cls, version: Version) -> VersionFiles:
        files = (FileOfVersion(path, one.blob, one.size, one.executable) for path, one in version.files.items())
        return cls(version.commit, version.tree, version.published_at, tuple(files))

    @property
    def version(self) -> Version:
        files = {one.path: MaterialFile(one.blob, one.size, one.executable) for one in self.files}
        return Version(self.commit, self.tree, self.published_at, files)


@dataclass(frozen=True, slots=True)
class Deliver:
    """The program pulls the files of the version that it writes, each by its path, part by part."""

    material: str
    version: VersionFiles
    at: float
    reset: tuple[str, ...] = ()
    room_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    material: str
    version: VersionFiles | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """`damaged`: the path of a file of the version that is not what git has; then nothing else is known."""

    copy: MaterialCopy | None = None
    damaged: str = ""


@dataclass(frozen=True, slots=True)
class Nothing:
    pass


_REQUESTS = (
    ListFolder, ShowFile, ReadFile, ShowUpload, Receive, MakeFolder, Move, Remove, Deliver, Look,
)  # fmt: skip
REQUESTS: Mapping[str, type] = {one.__name__: one for one in _REQUESTS}


def ask(conversation: int, request: object) -> Frame:
    return Frame(conversation, Say.ASK, [type(request).__name__, to_json(request)])


def request_of(frame: Frame) -> object:
    """Raises InvalidInput."""
    name, body = frame.body
    return from_json(REQUESTS[name], body)


# --- errors ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Failure:
    kind: str
    message: str
    code: str
    reason: Reason | None = None
    field: str | None = None


def failed(conversation: int, error: CommonageError) -> Frame:
    name = error.field if isinstance(error, InvalidInput) else None
    told = _Failure(type(error).__name__, error.message, error.problem_code, error.reason, name)
    return Frame(conversation, Say.FAILED, to_json(told))


def error_of(frame: Frame) -> CommonageError:
    """The error that the program raised. One of another kind becomes Unavailable."""
    told = from_json(_Failure, frame.body)
    what = told.reason or told.message
    kind = getattr(errors, told.kind, None)
    if kind is InvalidInput:
        return InvalidInput(what, field=told.field, code=told.code)
    if kind in (errors.NotFound, errors.Conflict):
        made: CommonageError = kind(what, code=told.code)
        return made
    return Unavailable(what)
