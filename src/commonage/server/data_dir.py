"""The data folder: its layout, the lock against a second server, its checks, and the loopback ports.

`commonage up` prepares it first; other server commands read it with `running_server`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import random
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

log = logging.getLogger(__name__)

LAYOUT_VERSION = 1
MIN_FREE_MIB = 200
_OUR_PORTS = range(15_000, 20_000)
_FOLDERS = ("logs", "runs", "environments", "workspaces", "bundles")


class DataDirError(Exception):
    """The folder cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The loopback ports of an installation. They stay the same, because sessions that outlive the server know them."""

    control: int
    hub: int
    proxy_api: int


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
    """A prepared folder, locked by this process; a context manager. The kernel releases a dead process's lock."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock

    @property
    def database(self) -> Path:
        """The control plane's SQLite file."""
        return self.path / "commonage.db"

    @property
    def logs(self) -> Path:
        """The log files of the server and its children."""
        return self.path / "logs"

    def folder(self, name: str) -> Path:
        """One of the folders of the layout: runs, environments, workspaces, bundles."""
        return self.path / name

    def announce(self, running: Running) -> None:
        """Write the lock's holder and its address into the lock file."""
        self._lock.seek(0)
        self._lock.truncate()
        json.dump(asdict(running), self._lock)
        self._lock.flush()

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if not self._lock.closed:
            self._lock.seek(0)
            self._lock.truncate()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def prepare(path: Path) -> DataDir:
    """Create the folder if needed, lock it, check that it is writable and has space. Raises DataDirError."""
    path = path.absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)
        data = DataDir(path, _take_lock(path))
    except OSError as error:
        raise DataDirError(sentence(error, path)) from error
    try:
        _check_version(path)
        _check_writable(path)
        for name in _FOLDERS:
            (path / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        data.close()
        raise DataDirError(sentence(error, path)) from error
    except DataDirError:
        data.close()
        raise
    return data


def sentence(error: OSError, path: Path) -> str:
    """The message for an error of the file system."""
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


def keep_ports(data: DataDir, wanted: Ports) -> Ports:
    """The loopback ports: the requested ones; for 0, the one of the last start, or a free one that is kept from now
    on.
    """
    file = data.path / "ports.json"
    kept = _kept_ports(file)
    ports = Ports(
        wanted.control or _still_free(kept.control),
        wanted.hub or _still_free(kept.hub),
        wanted.proxy_api or _still_free(kept.proxy_api),
    )
    if ports != kept:
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(ports)), encoding="utf-8")
        fresh.replace(file)
    return ports


def free_port(bind: str = "127.0.0.1") -> int:
    """A port without a listener, from a range that the kernel does not use for outgoing connections."""
    first = random.SystemRandom().randrange(len(_OUR_PORTS))
    for number in range(len(_OUR_PORTS)):
        port = _OUR_PORTS[(first + number) % len(_OUR_PORTS)]
        if _is_free(bind, port):
            return port
    raise DataDirError(f"No free port from {_OUR_PORTS[0]} to {_OUR_PORTS[-1]} on {bind}.")


def _is_free(bind: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind, port))
            probe.listen()
        except OSError:
            return False
    return True


def _still_free(kept: int) -> int:
    """The port of the last start, or another one if it is taken now."""
    if kept and _is_free("127.0.0.1", kept):
        return kept
    if kept:
        log.warning("port %d of the last start is in use; sessions from before may not reach the hub", kept)
    return free_port()


def _kept_ports(file: Path) -> Ports:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return Ports(int(found["control"]), int(found["hub"]), int(found["proxy_api"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # torn by a crash: the same as no file
        return Ports(0, 0, 0)


def _take_lock(path: Path) -> IO[str]:
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
    json.dump(asdict(Running(os.getpid(), socket.gethostname(), time.time())), _emptied(file))
    file.flush()
    return file


def _lock_with_retries(file: IO[str]) -> None:
    """Take the lock. Retries while another process only reads (`running_server`) or is about to end."""
    for _ in range(9):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.1)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _emptied(file: IO[str]) -> IO[str]:
    file.seek(0)
    file.truncate()
    return file


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
