"""Files of homes and volumes on this machine: listed, read, written and removed for their users (ADR 23).

Every path is opened part by part without links. New files and folders get the owner of the folder above, so that
workloads can use them. All calls block, and run in threads without the right to exceed quotas.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from commonage.domain.errors import CommonageError, Conflict, InvalidInput, NotFound, Unavailable
from commonage.domain.files import MAX_ENTRIES, Entry, EntryKind, Listing, Parts, join
from commonage.domain.reasons.refusals import FilesGap
from commonage.domain.volumes import Volume, VolumeKind, folder_name
from commonage.files.safe_path import SafePath, absolute
from commonage.ports.files import Files, OpenFile, Place, Upload
from commonage.storage.room import room_in

_THREADS = 16
_REMOVE_WITHIN_S = 20.0  # a client waits for a minute
_MOST_NAMES = 20_000  # of a folder that are read
_BATCH_BYTES = 1024 * 1024
_FILE_MODE, _FOLDER_MODE, _HOME_MODE, _ABOVE_MODE = 0o644, 0o755, 0o700, 0o711
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_REPLACE, _UNSUPPORTED = 1, (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_CAP_SYS_RESOURCE, _CAPABILITY_VERSION = 24, 0x2008_0522

_libc = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")


class FolderFiles(Files):
    """`homes` is the folder with all homes."""

    def __init__(self, homes: SafePath) -> None:
        self._homes = homes
        self._threads = ThreadPoolExecutor(_THREADS, "files", initializer=_obey_quotas)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def gap(self, volume: Volume | None) -> FilesGap | None:
        kinds = {VolumeKind.SCRATCH: FilesGap.SCRATCH, VolumeKind.DOCKER: FilesGap.DOCKER}
        return None if volume is None else kinds.get(volume.kind)

    def is_per_tenant(self, volume: Volume | None) -> bool:
        return volume is not None and "{tenant}" in volume.source.split("/")

    async def list(self, place: Place, path: Parts) -> Listing:
        def run() -> Listing:
            top = self._top(place)
            if not path and not top.exists() and (place.home or place.is_made or place.link):
                return Listing()
            return _list(_below(top, path))

        return await self._run(run, path)

    async def open(self, place: Place, path: Parts) -> OpenFile:
        descriptor = await self._run(lambda: _below(self._top(place), path).open(os.O_RDONLY), path)
        return _Opened(descriptor, self._run, path)

    async def uploaded(self, place: Place, path: Parts, key: str) -> int:
        def run() -> int:
            try:
                return _partial(_below(self._top(place), path), key).stat().st_size
            except FileNotFoundError:
                return 0

        return await self._run(run, path)

    async def receive(self, place: Place, upload: Upload, offset: int, chunks: AsyncIterator[bytes]) -> int:
        def begin() -> tuple[SafePath, int]:
            top = self._top(place)
            self._prepare(place, top)
            target = _below(top, upload.path)
            return target, _begin(target, upload, offset, top.parent)

        target, descriptor = await self._run(begin, upload.path)
        try:
            at = await self._append(descriptor, upload, offset, chunks)
            if at == upload.length:
                await self._run(lambda: _finish(target, descriptor, upload), upload.path)
            return at
        finally:
            await asyncio.shield(self._run(lambda: os.close(descriptor), upload.path))

    async def _append(self, descriptor: int, upload: Upload, offset: int, chunks: AsyncIterator[bytes]) -> int:
        at, waiting = offset, bytearray()

        async def flush() -> None:
            nonlocal at
            data = bytes(waiting)
            waiting.clear()
            await self._run(lambda: _write_all(descriptor, data, at), upload.path)
            at += len(data)

        try:
            async for chunk in chunks:
                if at + len(waiting) + len(chunk) > upload.length:
                    raise InvalidInput(
                        f"more than the announced {upload.length} bytes were sent; send the file again from the start",
                        field="Upload-Length",
                        code="upload-mismatch",
                    )
                waiting += chunk
                if len(waiting) >= _BATCH_BYTES:
                    await flush()
        finally:  # also the bytes before the connection broke
            if waiting:
                await asyncio.shield(flush())
        return at

    async def make_folder(self, place: Place, path: Parts) -> None:
        def run() -> None:
            top = self._top(place)
            self._prepare(place, top)
            folder = _below(top, path)
            if not folder.make_folder(_FOLDER_MODE):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            _give_as_above(folder)

        await self._run(run, path)

    async def move(self, place: Place, path: Parts, to: Parts) -> None:
        top = self._top(place)
        source, target = _below(top, path), _below(top, to)
        await self._run(source.stat, path)
        await self._run(lambda: _rename(source, target), to)

    async def remove(self, place: Place, path: Parts) -> None:
        def run() -> None:
            found = _below(self._top(place), path)
            found.stat()
            found.remove(_REMOVE_WITHIN_S)

        await self._run(run, path)

    # --- places -------------------------------------------------------------------------------------------------------

    def _top(self, place: Place) -> SafePath:
        if place.home:
            return self._homes / folder_name(place.home)
        top = absolute(Path(os.path.normpath(place.source)))
        return _led_by(top, place.link) if place.link else top

    def _prepare(self, place: Place, top: SafePath) -> None:
        """Create the home, or the last two folders of a volume, as a workload's start does."""
        if top.exists():
            return
        if place.home:
            top.make_folder(_HOME_MODE, parents=True)
        elif place.is_made:
            if not top.parent.is_folder():
                top.parent.make_folder(_ABOVE_MODE)
            top.make_folder(_HOME_MODE)

    async def _run(self, work: Callable[[], _T], path: Parts) -> _T:
        def guarded() -> _T:
            with _errors(path):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._threads, guarded)


class _Opened(OpenFile):
    def __init__(
        self, descriptor: int, run: Callable[[Callable[[], bytes], Parts], Awaitable[bytes]], path: Parts
    ) -> None:
        self._descriptor, self._run, self._path = descriptor, run, path
        self._status = os.fstat(descriptor)

    @property
    def size_bytes(self) -> int:
        return self._status.st_size

    @property
    def modified_at(self) -> float:
        return self._status.st_mtime

    @property
    def version(self) -> str:
        return f"{self._status.st_mtime_ns:x}-{self._status.st_size:x}"

    async def read(self, offset: int, size: int) -> bytes:
        return await self._run(lambda: os.pread(self._descriptor, size, offset), self._path)

    async def close(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        """An answer that is refused, or broken off before its first byte, reads nothing and closes nothing."""
        self._close()


def _led_by(top: SafePath, link: str) -> SafePath:
    """The target of the link, in its folder. If the link is missing, the path of the link itself, at which nothing is
    found.
    """
    try:
        with top.open_path() as folder:
            return _below(top, tuple(os.readlink(link, dir_fd=folder).split("/")))
    except FileNotFoundError:
        return top / link


def _below(top: SafePath, path: Parts) -> SafePath:
    return SafePath(top.root, (*top.names, *path))


def _list(folder: SafePath) -> Listing:
    entries: list[Entry] = []
    left_out = 0
    with folder.folder() as descriptor, os.scandir(descriptor) as found:
        for one in islice(found, _MOST_NAMES):
            if len(entries) >= MAX_ENTRIES or not one.name.isprintable():
                left_out += 1
                continue
            try:
                one.name.encode()
                status = one.stat(follow_symlinks=False)
            except (OSError, UnicodeEncodeError):  # it vanished, or cannot be named in a request
                left_out += 1
                continue
            entries.append(Entry(one.name, _kind(status.st_mode), status.st_size, status.st_mtime))
    entries.sort(key=lambda one: (one.kind is not EntryKind.FOLDER, one.name.casefold(), one.name))
    return Listing(tuple(entries), left_out)


def _kind(mode: int) -> EntryKind:
    if stat.S_ISDIR(mode):
        return EntryKind.FOLDER
    if stat.S_ISREG(mode):
        return EntryKind.FILE
    return EntryKind.LINK if stat.S_ISLNK(mode) else EntryKind.OTHER


def _partial(target: SafePath, key: str) -> SafePath:
    """In the same folder as the file, so that it counts in the same quota, and a rename completes it."""
    return target.parent / f".upload-{key}.part"


def _begin(target: SafePath, upload: Upload, offset: int, above: SafePath) -> int:
    """Open and lock the partial file; return its descriptor. `above`: the folder above the place."""
    if not upload.replace and target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    if target.is_folder():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    partial = _partial(target, upload.key)
    descriptor = partial.open(os.O_RDWR | os.O_CREAT, 0o600)
    try:
        status = os.fstat(descriptor)
        if status.st_nlink != 1:
            raise InvalidInput("the upload has a second name; delete it, and send the file again", code="invalid-path")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict("this upload is being received already; wait until that ends", code="upload-busy") from None
        if offset == 0:
            os.ftruncate(descriptor, 0)
            _give_as_above(partial)
        elif offset != status.st_size:
            raise Conflict(
                f"the upload has {status.st_size} bytes here, not {offset}; get its offset, and continue from there",
                code="upload-offset",
            )
        if upload.length - offset > room_in(descriptor, above):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _finish(target: SafePath, descriptor: int, upload: Upload) -> None:
    os.fchmod(descriptor, _FILE_MODE)
    os.fsync(descriptor)
    partial = _partial(target, upload.key)
    status = partial.stat()
    here = os.fstat(descriptor)
    if (status.st_ino, status.st_dev) != (here.st_ino, here.st_dev):
        raise Conflict("the upload was replaced while it was received; send the file again", code="upload-mismatch")
    if upload.replace:
        partial.move(target)
    else:
        _rename(partial, target)


def _rename(source: SafePath, target: SafePath) -> None:
    """Rename without replacing anything. Raises FileExistsError."""
    with source.parent.open_path() as before, target.parent.open_path() as after:
        arguments = (before, os.fsencode(source.name), after, os.fsencode(target.name), ctypes.c_uint(_NO_REPLACE))
        if _libc.renameat2(*arguments) == 0:
            return
        number = ctypes.get_errno()
    if number not in _UNSUPPORTED or target.exists() or target.names[: len(source.names)] == source.names:
        raise OSError(
            number if number not in _UNSUPPORTED or not target.exists() else errno.EEXIST, os.strerror(number)
        )
    source.move(target)  # a file system without the flag, such as NFS


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def _give_as_above(new: SafePath) -> None:
    """Give a new file or folder the owner of its folder: the user of the workloads that use it."""
    with new.parent.open_path() as folder:
        above = os.fstat(folder)
    if os.geteuid() == 0 and (above.st_uid, above.st_gid) != (0, 0):
        new.chown(above.st_uid, above.st_gid)


@contextmanager
def _errors(path: Parts) -> Iterator[None]:
    """Raise a domain error for an error of the kernel."""
    try:
        yield
    except CommonageError:
        raise
    except OSError as error:
        raise _error(error, f"/{join(path)}") from error


def _error(error: OSError, path: str) -> CommonageError:
    why = error.strerror or str(error)
    match error.errno:
        case errno.ENOENT:
            return NotFound(f"there is no {path} here", code="file-not-found")
        case errno.EEXIST | errno.ENOTEMPTY:
            return Conflict(
                f"{path} exists already; choose another name, or replace it",
                code="file-exists",
            )
        case errno.ENOSPC | errno.EDQUOT:
            return Conflict(
                f"{path} does not fit: the disk or a quota is full; delete files that are not needed, then continue",
                code="storage-full",
            )
        case errno.ENOTDIR | errno.ELOOP | errno.EINVAL | errno.EISDIR | errno.ENAMETOOLONG:
            return InvalidInput(
                f"{path} cannot be used here: {why}; links and special files can be used in a session",
                field="path",
                code="invalid-path",
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return Unavailable(f"the server may not use {path} ({why}); use it in a session, or tell the admin")
        case errno.ETIMEDOUT:
            return Unavailable(
                f"{path} is only partly deleted: {why}; stop the program that writes to it, and delete it again"
            )
        case errno.EXDEV:
            return Conflict(f"{path} lies on another disk or in another quota; copy it in a session", code="conflict")
        case _:
            return Unavailable(f"{path} cannot be used now: {why}; try again")


def _obey_quotas() -> None:
    """Take CAP_SYS_RESOURCE from this thread: by it, ext4 lets root write beyond a quota."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    if _libc.capget(header, held) != 0:
        return
    words = list(struct.unpack("=6I", held.raw))
    words[0] &= ~(1 << _CAP_SYS_RESOURCE)  # of the effective ones
    with suppress(OSError):
        _libc.capset(header, struct.pack("=6I", *words))
