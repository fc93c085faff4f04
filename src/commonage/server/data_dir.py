"""The data folder: its layout, the lock against a second server, and its checks. `commonage up` prepares it first."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from commonage.files.atomic import write_file
from commonage.server import ServerError

LAYOUT_VERSION = 1
MIN_FREE_MIB = 200
_FOLDERS = ("logs", "runs", "environments", "workspaces", "bundles")


class DataDirError(ServerError):
    """The folder cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Running:
    """The contents of a running server's lock file. `url` is the address for users."""

    pid: int
    host: str
    started_at: float
    url: str = ""
    hub_url: str = ""
    control_url: str = ""


class DataDir:
    """A prepared folder, locked by this process; a context manager. The kernel releases a dead process's lock.

    `was_killed`: the server before this one did not close it, and its children may end only now.
    """

    def __init__(self, path: Path, lock: IO[str], *, was_killed: bool = False) -> None:
        self.path, self.was_killed = path, was_killed
        self._lock = lock

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def folder(self, name: str) -> Path:
        """One of the folders of the layout: runs, environments, workspaces, bundles."""
        return self.path / name

    def announce(self, running: Running) -> None:
        _announce(self._lock, running)

    def close(self) -> None:
        if not self._lock.closed:
            self._lock.truncate(0)
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prepare(path: Path) -> DataDir:
    """Create the folder if needed, lock it, check that it is writable and has space. Raises DataDirError."""
    path = path.absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)
        lock, was_killed = _take_lock(path)
        data = DataDir(path, lock, was_killed=was_killed)
    except OSError as error:
        raise DataDirError(sentence(error, path)) from error
    try:
        _check_version(path)
        _check_writable(path)
        for name in _FOLDERS:
            (path / name).mkdir(mode=0o700, exist_ok=True)
    except BaseException as error:
        data.close()
        if isinstance(error, OSError):
            raise DataDirError(sentence(error, path)) from error
        raise
    return data


def sentence(error: OSError, path: Path) -> str:
    culprit = error.filename or path
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"The disk of {culprit} is full. Free some space, or set another folder with --data-dir."
        case errno.EROFS:
            return f"{culprit} is on a read-only file system. Set another folder with --data-dir."
        case errno.EACCES | errno.EPERM:
            return (
                f"This user (uid {os.geteuid()}) may not write to {culprit}. "
                "Change its owner, or set another folder with --data-dir."
            )
        case errno.ENOTDIR | errno.EEXIST:
            return f"{culprit} is not a folder. Set another one with --data-dir."
        case _:
            return f"Cannot use the data folder {path}: {error.strerror or error}."


def running_server(path: Path) -> Running | None:
    """The server that holds this folder now, or None. Raises DataDirError if the lock file cannot be read."""
    lock = path.absolute() / "commonage.lock"
    try:
        with lock.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read(file.read())
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataDirError(sentence(error, path)) from error


def _take_lock(path: Path) -> tuple[IO[str], bool]:
    """The locked file, and whether the process that had it before left its contents."""
    file = (path / "commonage.lock").open("a+", encoding="utf-8")
    try:
        _lock_with_retries(file)
    except BlockingIOError:
        file.seek(0)
        holder = _read(file.read())
        file.close()
        raise DataDirError(_held_by(path, holder)) from None
    except OSError:
        file.close()
        raise
    file.seek(0)
    was_killed = bool(file.read(1))
    _announce(file, Running(os.getpid(), socket.gethostname(), time.time()))
    return file, was_killed


def _lock_with_retries(file: IO[str]) -> None:
    """Take the lock. Retries while another process only reads (`running_server`) or is about to end."""
    for _ in range(9):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.1)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _announce(file: IO[str], running: Running) -> None:
    file.seek(0)
    file.truncate()
    json.dump(asdict(running), file)
    file.flush()


def _read(text: str) -> Running:
    try:
        return Running(**json.loads(text))
    except (ValueError, TypeError):  # the holder of the lock has not written the file yet
        return Running(0, "", 0.0)


def _held_by(path: Path, holder: Running) -> str:
    details = [f"process {holder.pid} on {holder.host}"] if holder.pid else []
    details += [f"at {holder.url}"] if holder.url else []
    shown = f" ({', '.join(details)})" if details else ""
    return f"Another server uses {path}{shown}. Stop it, or set another folder with --data-dir."


def write_private(path: Path, text: str) -> None:
    """Write the file atomically with mode 0600. Raises OSError."""
    write_file(path, text, 0o600)


def _check_version(path: Path) -> None:
    file = path / "layout"
    try:
        found = int(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        file.write_text(f"{LAYOUT_VERSION}\n", encoding="utf-8")
        return
    except ValueError:
        raise DataDirError(f"{file} has no version number. Check that {path} is a data folder of Commonage.") from None
    if found > LAYOUT_VERSION:
        raise DataDirError(
            f"A newer Commonage wrote {path} (layout {found}; this version knows up to {LAYOUT_VERSION}). "
            "Start that version, or set another folder with --data-dir."
        )


def _check_writable(path: Path) -> None:
    """Write as much as a database at rest needs, so that a full disk is reported here and not during a migration."""
    probe = path / ".probe"
    try:
        with probe.open("wb") as file:
            file.write(b"\0" * 1024 * 1024)
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)
