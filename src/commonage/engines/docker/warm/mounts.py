"""Mounts folders of this node in the mount namespace of a container that runs. Used by containers.py, in threads.

A container's description cannot get mounts after it was created, but its namespace can: root clones a mount here
(open_tree), enters the namespace, and puts the clone in its place (move_mount; Linux 5.12). What is cloned was opened
by the caller, so that no path is resolved a second time. It needs root, and the daemon's processes in sight.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on all architectures
_CLONE, _CLOEXEC, _RECURSIVE, _EMPTY_PATH = 1, os.O_CLOEXEC, 0x8000, 0x1000
_FROM_EMPTY_PATH = 4
_HERE = -100
_PRIVATE = 1 << 18
_SHARED_FOLDERS, _MOUNTS = 0x200, 0x20000  # CLONE_FS, CLONE_NEWNS
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Folder:
    """A mount: an open descriptor (also O_PATH) of a folder or a plain file, and its place in the container."""

    descriptor: int
    target: str
    is_file: bool = False


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("users", ctypes.c_uint64),
    )


def namespace_of(pid: int, container: str) -> int:
    """Open the mount namespace of a process of this container. Raises OSError if `pid` is no process of it any more."""
    process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)  # never a later process of this pid
    try:
        groups = os.open("cgroup", os.O_RDONLY, dir_fd=process)
        with os.fdopen(groups, "rb") as file:
            if container.encode() not in file.read():
                raise ProcessLookupError(f"process {pid} is not of container {container[:12]}")
        return os.open("ns/mnt", os.O_RDONLY, dir_fd=process)
    finally:
        os.close(process)


def mount_in(namespace: int, folders: Sequence[Folder]) -> None:
    """Mount these in a container's namespace, writable, and private as Docker's own. Raises OSError."""
    with ExitStack() as closing:
        clones = []
        for folder in folders:
            clone = _call(_OPEN_TREE, folder.descriptor, b"", _CLONE | _CLOEXEC | _RECURSIVE | _EMPTY_PATH)
            closing.callback(os.close, clone)
            private = _Attributes(propagation=_PRIVATE)
            _call(_MOUNT_SETATTR, clone, b"", _EMPTY_PATH | _RECURSIVE, ctypes.byref(private), ctypes.sizeof(private))
            clones.append((clone, folder))
        failures: list[OSError] = []
        # A thread of its own, which ends there: setns changes one thread, and the caller's must keep its namespace.
        thread = threading.Thread(target=_mount_all, args=(namespace, clones, failures))
        thread.start()
        thread.join()
        if failures:
            raise failures[0]


def _mount_all(namespace: int, clones: Sequence[tuple[int, Folder]], failures: list[OSError]) -> None:
    try:
        _checked(_libc.unshare(_SHARED_FOLDERS))
        _checked(_libc.setns(namespace, _MOUNTS))
        for clone, folder in clones:
            _make_place(folder.target.encode(), folder.is_file)
            _call(_MOVE_MOUNT, clone, b"", _HERE, folder.target.encode(), _FROM_EMPTY_PATH)
    except OSError as error:
        failures.append(error)


def _make_place(target: bytes, is_file: bool) -> None:
    """Create what is mounted over, as Docker does. An existing place stays."""
    parts = target.split(b"/")
    for end in range(2, len(parts) + (not is_file)):
        _libc.mkdir(b"/".join(parts[:end]), 0o755)
    if is_file:
        # O_EXCL: opening a pipe that the image has there would block forever.
        made = _libc.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if made >= 0:
            os.close(made)


def _call(number: int, *arguments: object) -> int:
    whole = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *whole))


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
