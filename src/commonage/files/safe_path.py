"""Opens a file or folder below a folder that other users can write to, without following any link.

A path is resolved again with each call, and root of another node may meanwhile replace any part of a shared folder by a
link. So every part is opened by its name in the open folder above it. Used by engines, by agents, and where nodes join.
Everything here blocks. All methods but `exists` and `is_folder` raise OSError.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_REMOVE_WITHIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class SafePath:
    """The path `names`, one below the other, in the folder `root`.

    The path to `root` is trusted, and may have links in it. Raises ValueError for a name that leads elsewhere.
    """

    root: Path
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.names:
            if name in ("", ".", "..") or "/" in name or "\0" in name:
                raise ValueError(f"{name!r} is not the name of a file")

    def __truediv__(self, name: str) -> SafePath:
        return SafePath(self.root, (*self.names, name))

    def __str__(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """The path as text. For messages, and for callers that open it with the same checks."""
        return self.root.joinpath(*self.names)

    @property
    def name(self) -> str:
        """The last part. The path must have one."""
        return self.names[-1]

    @property
    def parent(self) -> SafePath:
        return SafePath(self.root, self.names[:-1])

    # --- reading --------------------------------------------------------------------------------------------------

    def stat(self) -> os.stat_result:
        """Status of the entry itself, also if it is a link."""
        with self._open_parent() as parent:
            return os.stat(self.name, dir_fd=parent, follow_symlinks=False)

    def exists(self) -> bool:
        try:
            self.stat()
        except OSError:
            return False
        return True

    def is_folder(self) -> bool:
        """True if it is a folder, and no link to one."""
        with suppress(OSError), self.open_path():
            return True
        return False

    def list_names(self) -> list[str]:
        with self.folder() as descriptor:
            return sorted(os.listdir(descriptor))

    # --- opening --------------------------------------------------------------------------------------------------

    @contextmanager
    def open_path(self) -> Iterator[int]:
        """Open the folder as a path-only descriptor (O_PATH). Raises OSError for a link on the path."""
        descriptor = os.open(self.root, os.O_PATH | os.O_DIRECTORY)
        try:
            for name in self.names:
                below = self._step(name, descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def _step(self, name: str, parent: int) -> int:
        try:
            return os.open(name, _WALK, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise self._unfit(errno.ENOTDIR, f"{name} on the way to it is a link, or no folder") from error
            raise

    @contextmanager
    def folder(self) -> Iterator[int]:
        """Open the folder for reading. Raises OSError for a link, here or on the path."""
        with self.open_path() as descriptor:
            opened = os.open(".", _FOLDER, dir_fd=descriptor)
        try:
            yield opened
        finally:
            os.close(opened)

    def open(self, flags: int, mode: int = 0o600) -> int:
        """Open the plain file; return its descriptor. Raises OSError for anything else, links and devices included.

        With O_CREAT an existing file is accepted, except with O_EXCL. Only plain files are opened: opening a device or
        a pipe can have effects, or block forever.
        """
        with self._open_parent() as parent:
            if flags & os.O_CREAT:
                try:
                    return os.open(self.name, flags | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=parent)
                except FileExistsError:
                    if flags & os.O_EXCL:
                        raise
            entry = os.open(self.name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
        try:
            kind = os.fstat(entry).st_mode
            if stat.S_ISLNK(kind):
                raise self._unfit(errno.ELOOP, "it is a link")
            if not stat.S_ISREG(kind):
                raise self._unfit(errno.EINVAL, "it is no plain file")
            return os.open(f"/proc/self/fd/{entry}", flags & ~(os.O_CREAT | os.O_EXCL))
        finally:
            os.close(entry)

    def read(self, max_bytes: int) -> bytes:
        """The first `max_bytes` of the plain file."""
        with os.fdopen(self.open(os.O_RDONLY), "rb") as file:
            return file.read(max_bytes)

    # --- changing -------------------------------------------------------------------------------------------------

    def make_folder(self, mode: int = 0o700, *, parents: bool = False) -> bool:
        """Create the folder if it is missing; False if it exists. Raises OSError, also for a link in its place."""
        if parents:
            if not self.names:
                self.root.mkdir(parents=True, exist_ok=True)
                return False
            self.parent.make_folder(mode, parents=True)
        with self._open_parent() as parent:
            try:
                os.mkdir(self.name, mode, dir_fd=parent)
            except FileExistsError:
                os.close(self._step(self.name, parent))
                return False
        return True

    def write(self, content: bytes, mode: int = 0o600) -> None:
        """Write this content atomically; an existing file is replaced."""
        new = self.parent / f".{self.name}.{secrets.token_hex(6)}"
        try:
            with os.fdopen(new.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
            new.move(self)
        except OSError:
            with suppress(OSError):
                new.remove()
            raise

    def move(self, to: SafePath) -> None:
        with self._open_parent() as parent, to._open_parent() as target:
            os.rename(self.name, to.name, src_dir_fd=parent, dst_dir_fd=target)

    def link(self, to: SafePath) -> None:
        """Give the file a second name. Raises FileExistsError if that one is taken."""
        with self._open_parent() as parent, to._open_parent() as target:
            os.link(self.name, to.name, src_dir_fd=parent, dst_dir_fd=target, follow_symlinks=False)

    def chown(self, uid: int, gid: int) -> None:
        """Change its owner; for a link, the link's own."""
        with self._open_parent() as parent:
            os.chown(self.name, uid, gid, dir_fd=parent, follow_symlinks=False)

    def remove(self, within_s: float = _REMOVE_WITHIN_S) -> None:
        """Remove a file, a link, or a folder with its contents. A missing one is no error.

        Raises OSError with ETIMEDOUT if the contents take longer; files removed by then stay removed.
        """
        try:
            with self._open_parent() as parent:
                try:
                    os.unlink(self.name, dir_fd=parent)
                except IsADirectoryError:
                    until = time.monotonic() + within_s
                    while not _is_removed(self.name, parent):  # again if a program has written to it since
                        _check_time(until)
                        with self.folder() as folder:
                            _empty(folder, until)
        except FileNotFoundError:
            return

    def _open_parent(self) -> AbstractContextManager[int]:
        if not self.names:
            raise ValueError(f"{self.root} itself is not changed")
        return self.parent.open_path()

    def _unfit(self, number: int, why: str) -> OSError:
        return OSError(number, why, str(self.path))


def absolute(path: Path) -> SafePath:
    """An absolute path in which no part may be a link. Raises ValueError for one with `..` in it."""
    if not path.is_absolute():
        raise ValueError(f"{path} is not an absolute path")
    return SafePath(Path("/"), path.parts[1:])


def _empty(folder: int, until: float) -> None:
    """Remove all contents of an open folder at any depth: nested folders move up until they are empty.

    Names are read a few at a time, so that a folder with millions of them takes little memory.
    """
    found = True
    while found:
        found = False
        with os.scandir(folder) as entries:
            for entry in entries:
                found = True
                _check_time(until)
                if not _is_unlinked(entry.name, folder):
                    _flatten(entry.name, folder, until)


def _flatten(name: str, folder: int, until: float) -> None:
    try:
        below = os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        return
    try:
        with os.scandir(below) as entries:
            for entry in entries:
                _check_time(until)
                if not _is_unlinked(entry.name, below):
                    with suppress(FileNotFoundError):
                        os.rename(entry.name, secrets.token_hex(16), src_dir_fd=below, dst_dir_fd=folder)
    finally:
        os.close(below)
    _is_removed(name, folder)  # otherwise it is found again


def _is_unlinked(name: str, folder: int) -> bool:
    """False for a folder. A name that is gone is unlinked."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    except FileNotFoundError:
        pass
    return True


def _is_removed(name: str, folder: int) -> bool:
    """False for a folder that is not empty."""
    try:
        os.rmdir(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _check_time(until: float) -> None:
    if time.monotonic() >= until:
        raise OSError(
            errno.ETIMEDOUT, "it has too many files to be removed at once, or a program continues to write to it"
        )
