"""Mounts the folders of attempts for Docker: each is opened without following a link, and the open folder is mounted.

Docker follows a path as root whenever it starts a container. Root of another node that writes to the shared folder
could make that path lead anywhere on this node. So Docker gets only paths of this node that contain nothing but mounts.
Everything here blocks: call it in a thread.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import FoldersNotMountable
from commonage.files.safe_path import SafePath, absolute

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", re.ASCII)
_NOSUID, _NODEV, _REMOUNT, _BIND, _REC = 2, 4, 32, 4096, 16384
# Flags that the kernel reports of a mount (statvfs), and the flags that keep them in a remount (mount).
_KEPT = {1: 1, 2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
_DETACH, _NO_LINK = 2, 8
_STALE_AFTER_S = 600.0
_LIBC = ctypes.CDLL(None, use_errno=True)


class Mounts:
    """The mounts below `root`, a folder of this node: `root`/ATTEMPT/NAME.

    In a path below `shared`, the folder that all nodes of the site see, the part up to there may contain links; in any
    other path no part may be one.
    """

    def __init__(self, root: Path, shared: str) -> None:
        self._root = root
        self._shared = Path(shared) if shared else None
        self._stale: dict[str, float] = {}

    def fault(self) -> Reason | None:
        """Why nothing can be mounted here; None if it can. Tests it with a mount."""
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = f"try-{os.getpid()}"
            self._mount(name, "folder", SafePath(self._root))
            self.remove([name])
        except OSError as error:
            return FoldersNotMountable(folder=str(self._root), error=error.strerror or str(error))
        return None

    def mount(self, attempt_id: str, sources: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        """Mount each source (name, path) for this attempt; returns the targets in the same order. Idempotent.

        Raises EngineFailure; then no mount is left that did not exist before.
        """
        if not all(_NAME.fullmatch(name) for name in (attempt_id, *(name for name, _ in sources))):
            raise EngineFailure(f"{attempt_id[:100]!r} and what is to be mounted for it are not named as attempts are")
        places = []
        for name, path in sources:
            try:
                places.append(self._mount(attempt_id, name, self._source(path)))
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                # A link stays until it is removed by hand; other errors may be temporary.
                passes = isinstance(error, OSError) and error.errno not in (errno.ENOTDIR, errno.ELOOP, errno.EINVAL)
                self.remove([attempt_id])
                raise EngineFailure(
                    f"{path} is not mounted for {attempt_id}: {why}. Links are not followed, because "
                    "they could lead to the node's own files. Ask the admin to replace the link by the folder itself",
                    retryable=passes,
                ) from error
        return tuple(map(str, places))

    def _source(self, path: str) -> SafePath:
        plain = Path(path)
        if ".." not in plain.parts and self._shared is not None and plain.is_relative_to(self._shared):
            return SafePath(self._shared, plain.relative_to(self._shared).parts)
        return absolute(plain)

    def _mount(self, attempt_id: str, name: str, source: SafePath) -> Path:
        target = self._root / attempt_id / name
        with _open_source(source) as descriptor:
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            if target.exists() and os.path.samestat(os.fstat(descriptor), target.lstat()):
                return target
            self._unmount(target)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root.chmod(0o700)
            if is_folder:
                target.mkdir(mode=0o700)
            else:
                target.touch(0o600, exist_ok=False)
            _mount(f"/proc/self/fd/{descriptor}", target, _BIND | _REC)
            # No device files in there, and no setuid programs.
            kept = sum(flag for reported, flag in _KEPT.items() if os.statvfs(target).f_flag & reported)
            _mount("none", target, _REMOUNT | _BIND | _NOSUID | _NODEV | kept)
        return target

    def remove(self, attempt_ids: Collection[str]) -> None:
        """Unmount everything of these attempts. No error if nothing is mounted. Raises OSError."""
        for attempt_id in attempt_ids:
            if not _NAME.fullmatch(attempt_id):
                continue
            folder = self._root / attempt_id
            for one in list(folder.iterdir()) if folder.is_dir() else ():
                self._unmount(one)
            with suppress(FileNotFoundError):
                folder.rmdir()

    def _unmount(self, target: Path) -> None:
        while _umount(target):
            pass
        # An empty folder or file: `rmdir` and `unlink` remove nothing that is mounted, or in a folder.
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(target.lstat().st_mode):
                target.rmdir()
            else:
                target.unlink()

    def all(self) -> list[str]:
        """The attempts with mounts. Raises OSError."""
        return [one.name for one in self._root.iterdir()] if self._root.is_dir() else []

    def remove_stale(self, live: Collection[str], now: float) -> None:
        """Unmount folders of attempts whose containers have been missing for long. Raises OSError.

        `now` is monotonic.
        """
        self._stale = {one: self._stale.get(one, now) for one in self.all() if one not in live}
        old = [one for one, since in self._stale.items() if now - since > _STALE_AFTER_S]
        if old:
            _log.warning("attempts %s have ended: their folders are unmounted", ", ".join(old))
            self.remove(old)


@contextmanager
def _open_source(source: SafePath) -> Iterator[int]:
    """A descriptor of the folder or plain file that serves only for mounting (O_PATH)."""
    if not source.names:
        descriptor = os.open(source.root, os.O_PATH | os.O_DIRECTORY)
    else:
        with source.parent.open_path() as above:
            descriptor = os.open(source.name, os.O_PATH | os.O_NOFOLLOW, dir_fd=above)
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(kind):
            raise OSError(errno.ELOOP, "it is a link", str(source))
        if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
            raise OSError(errno.EINVAL, "it is neither a folder nor a plain file", str(source))
        yield descriptor
    finally:
        os.close(descriptor)


def _mount(source: str, target: Path, flags: int) -> None:
    if _LIBC.mount(source.encode(), os.fsencode(target), None, ctypes.c_ulong(flags), None) != 0:
        raise _last_error(target)


def _umount(target: Path) -> bool:
    """False if nothing is mounted there."""
    if _LIBC.umount2(os.fsencode(target), _DETACH | _NO_LINK) == 0:
        return True
    error = _last_error(target)
    if error.errno in (errno.EINVAL, errno.ENOENT):
        return False
    raise error


def _last_error(target: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(target))
