"""Unpacks one archive (tar.gz) of a user. A separate program, so that a hostile archive harms only this process.

    python -I -S unpack_child.py FOLDER MIB FILES PARENT < ARCHIVE

FOLDER is the descriptor of an open folder, MIB the limit of the unpacked archive, headers included, FILES the limit of
files and folders to create, PARENT the server's process id. One line of JSON goes to stdout: `{}`, or `{"error": …,
"retryable": …}`. Started by `unpacking`; standard library only. The archive is untrusted, so memory for its contents
is bounded, and nothing is written outside FOLDER.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gzip
import json
import os
import resource
import stat
import sys
import tarfile
import zlib
from typing import IO, Any

MEMORY_MIB = 256
"""Address space limit of this process, in MiB: Python itself takes about 40 MiB of it."""
CPU_S = 120
_DEPTH_MAX = 64
_NAME_MAX = 4096
_EXTENSION_MAX = 64 * 1024
_EXTENSIONS_IN_A_ROW = 4  # a long name, a long link name, and pax headers
_GLOBAL_HEADERS_MAX = 16
_FILES_OPEN = 32
_CHUNK = 1 << 18
_MIB = 1 << 20
_EXTENSIONS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Errors caused by the archive itself: the same archive fails again.
_FINAL = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EFBIG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 38, 9
_CAPABILITIES_V3 = 0x20080522


class ArchiveRefused(Exception):
    """The archive is refused; the message says why."""


class _Header(tarfile.TarInfo):
    """A header that is checked before tarfile reads the data after it into memory."""

    in_a_row = 0
    global_headers = 0

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Any:
        """Read one block of 512 bytes. Raises Refused."""
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0:
            raise ArchiveRefused("a header has a negative size")
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise ArchiveRefused(f"{_shown(header.name)} is a sparse file; pack it as a plain one")
        if header.type not in _EXTENSIONS:
            _Header.in_a_row = 0
            return header
        _Header.in_a_row += 1
        _Header.global_headers += header.type == tarfile.XGLTYPE
        if header.size > _EXTENSION_MAX:
            raise ArchiveRefused(f"an extension header has {header.size} bytes, and {_EXTENSION_MAX} are allowed")
        if _Header.in_a_row > _EXTENSIONS_IN_A_ROW or _Header.global_headers > _GLOBAL_HEADERS_MAX:
            raise ArchiveRefused("it has too many extension headers")
        return header


class _Counted:
    """The decompressed archive; reading beyond `limit_mib` raises an error."""

    def __init__(self, packed: IO[bytes], limit_mib: int) -> None:
        self._plain = gzip.GzipFile(fileobj=packed, mode="rb")
        self._left, self._limit_mib = limit_mib * _MIB, limit_mib

    def read(self, size: int) -> bytes:
        found = self._plain.read(size)
        self._left -= len(found)
        if self._left < 0:
            raise ArchiveRefused(
                f"it has more than {self._limit_mib} MiB when unpacked; put large data into your workspace instead"
            )
        return found


class _Tree:
    """The folder to fill. Every name is opened from its parent's descriptor, and no link is followed."""

    def __init__(self, root: int, files_max: int) -> None:
        self._root = root
        self._made, self._files_max = 0, files_max

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member)
        if member.isdir():
            os.close(self._open(parts))
            return
        if not member.isreg():
            raise ArchiveRefused(
                f"{_shown(member.name)} is a link or a device, and only files and folders are unpacked"
            )
        if not parts:
            raise ArchiveRefused(f"{_shown(member.name)} is no name of a file")
        source = archive.extractfile(member)
        assert source is not None  # it is a regular file
        folder = self._open(parts[:-1])
        try:
            self._count()
            mode = 0o700 if member.mode & stat.S_IXUSR else 0o600
            with source, os.fdopen(_create(folder, parts[-1], mode), "wb") as file:
                while chunk := source.read(_CHUNK):
                    file.write(chunk)
        finally:
            os.close(folder)

    def _open(self, parts: list[str]) -> int:
        """Return the descriptor of a folder below the root, creating missing ones. The caller closes it."""
        folder = os.open(".", _FOLDER, dir_fd=self._root)
        for part in parts:
            parent = folder
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=parent)
                    self._count()
                folder = os.open(part, _FOLDER, dir_fd=parent)
            finally:
                os.close(parent)
        return folder

    def _count(self) -> None:
        self._made += 1
        if self._made > self._files_max:
            raise ArchiveRefused(f"it has more than {self._files_max} files and folders")


def _parts(member: tarfile.TarInfo) -> list[str]:
    """Return the path components of a member. Raises Refused for a path that leaves the folder."""
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if member.name.startswith("/") or ".." in parts:
        raise ArchiveRefused(f"{_shown(member.name)} leads out of its folder")
    if len(parts) > _DEPTH_MAX or len(os.fsencode(member.name)) > _NAME_MAX:
        raise ArchiveRefused(f"{_shown(member.name)} is too long a name, or in more than {_DEPTH_MAX} folders")
    return parts


def _create(folder: int, name: str, mode: int) -> int:
    """Create a new file. Whatever else has its name is replaced and never opened: it may be a link or a pipe."""
    try:
        return os.open(name, _NEW_FILE, mode, dir_fd=folder)
    except FileExistsError:
        os.unlink(name, dir_fd=folder)
        return os.open(name, _NEW_FILE, mode, dir_fd=folder)


def unpack(packed: IO[bytes], tree: _Tree, limit_mib: int) -> None:
    """Unpack it into the tree. Raises Refused, OSError, MemoryError, and the exceptions of gzip and tarfile."""
    counted: Any = _Counted(packed, limit_mib)  # tarfile calls only read
    options: Any = {"tarinfo": _Header, "encoding": "utf-8", "errors": "surrogateescape"}
    with tarfile.open(fileobj=counted, mode="r|", bufsize=_CHUNK, **options) as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # tarfile would remember all of them
            sparse = any(key.startswith("GNU.sparse") for key in member.pax_headers)
            if member.size < 0 or sparse:
                raise ArchiveRefused(f"{_shown(member.name)} has a negative size or is a sparse file")
            tree.add(archive, member)


def _shown(name: str) -> str:
    return ascii(name[:100])


def _enforce(root: int, limit_mib: int) -> None:
    """Drop every privilege that filling one folder does not need."""
    os.nice(10)
    _limit(resource.RLIMIT_AS, MEMORY_MIB * _MIB)
    # At the soft limit it gets a signal that shows the parent the cause; at the hard one it is killed.
    _limit(resource.RLIMIT_CPU, CPU_S, CPU_S + 1)
    _limit(resource.RLIMIT_FSIZE, limit_mib * _MIB)
    _limit(resource.RLIMIT_NOFILE, _FILES_OPEN)
    _limit(resource.RLIMIT_CORE, 0)
    os.fchdir(root)
    with contextlib.suppress(PermissionError):  # only root can
        os.chroot(".")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)())


def _limit(kind: int, most: int, hard: int | None = None) -> None:
    _, before = resource.getrlimit(kind)
    wanted = most if hard is None else hard
    ceiling = wanted if before == resource.RLIM_INFINITY else min(wanted, before)
    resource.setrlimit(kind, (min(most, ceiling), ceiling))


def _end_with_parent(parent: int) -> None:
    """Be killed when the server ends: the next server unpacks the same archive again."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main(arguments: list[str]) -> dict[str, Any]:
    root, limit_mib, files_max, parent = map(int, arguments)
    _end_with_parent(parent)
    _enforce(root, limit_mib)
    try:
        unpack(sys.stdin.buffer, _Tree(root, files_max), limit_mib)
    except ArchiveRefused as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": f"more than {MEMORY_MIB} MiB of memory is needed to read it"}
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, RecursionError, ValueError) as error:
        return {"error": f"it is not a whole tar.gz archive: {str(error)[:200]}"}
    except OSError as error:
        return {"error": str(error)[:300], "retryable": error.errno not in _FINAL}
    return {}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
