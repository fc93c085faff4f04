"""Unpacks the files that users send along: in a child process with limits, a few at once, with a timeout.

Used by the engines. Only `unpack_child` reads the archive; the server never does.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from commonage.domain.errors import EngineFailure
from commonage.engines.rundir import unpack_child

T = TypeVar("T")

MAX_TRIES = 2
"""The server may end this many times while it unpacks the files of one attempt."""
WITHIN_S = 900.0
FILES_MAX = 100_000
"""Limit of files and folders in one archive."""
_AT_ONCE = 4
_AT_ONCE_FOR_ONE = 2
_ANSWER_MAX = 4096
_CHILD = str(Path(unpack_child.__file__))
_MARK = "unpacking"


class Unpacker:
    """Unpacks archives of limited size: four at once, two per user, in threads separate from an engine's."""

    def __init__(self, limit_mib: int, files_max: int = FILES_MAX) -> None:
        self._limits = str(limit_mib), str(files_max)
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="unpack")
        self._of_owner: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE_FOR_ONE))
        self._children: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    async def run(self, owner: str, work: Callable[[], T]) -> T:
        """Run `work`, which unpacks files of this user, in a thread; return its result."""
        async with self._of_owner[owner]:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def unpack(self, bundle: Path, folder: Path) -> None:
        """Unpack an archive (tar.gz) into `folder`, over existing files. Blocks; raises EngineFailure.

        A folder that did not exist is removed again if unpacking fails.
        """
        check_bundle_exists(bundle)
        try:
            made = _make(folder)
            try:
                self._unpack(bundle, folder)
            except BaseException:
                if made:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as error:
            raise EngineFailure(f"the files sent along cannot be unpacked: {error}", retryable=True) from error

    def _unpack(self, bundle: Path, folder: Path) -> None:
        child = _start(bundle, folder, self._limits)
        self._children.add(child)
        if self._closed:
            child.kill()
        with child:
            try:
                said, _ = child.communicate(timeout=WITHIN_S)
            except subprocess.TimeoutExpired:
                child.kill()
                raise _refused(f"that took more than {WITHIN_S / 60:.0f} minutes") from None
            finally:
                self._children.discard(child)
        _raise_child_error(child.returncode, said)

    def close(self) -> None:
        """Abort all unpacking. There must be no waiter left."""
        self._closed = True
        for child in list(self._children):
            child.kill()
        self._threads.shutdown(cancel_futures=True)


@contextmanager
def recorded_try(run: Path) -> Iterator[None]:
    """Note in a run folder, durably, that its files are being unpacked. Raises EngineFailure, OSError.

    An existing note comes from a server that ended during unpacking. After two of them the attempt is refused: the
    archive may have ended the server, and would end it again at every start.
    """
    tries = _tries(run)
    if tries >= MAX_TRIES:
        raise EngineFailure(
            f"the server ended {tries} times while it unpacked the files of this attempt, so they are not unpacked "
            "again. Submit it again if the server was stopped on purpose; else send other files, and tell an admin"
        )
    _write_mark(run, tries + 1)
    try:
        yield
    finally:
        (run / _MARK).unlink(missing_ok=True)


def _tries(run: Path) -> int:
    try:
        return int((run / _MARK).read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0
    except ValueError:  # the server ended while it was written
        return 1


def _write_mark(run: Path, tries: int) -> None:
    mark = os.open(run / _MARK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(mark, str(tries).encode())
        os.fsync(mark)
    finally:
        os.close(mark)
    folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_bundle_exists(bundle: Path | str | None) -> None:
    """Raise EngineFailure if the request has an archive and that was removed."""
    if bundle is not None and not os.path.exists(bundle):
        raise EngineFailure("Bundle not found: the files sent along are gone. Send them again and submit again")


def _make(folder: Path) -> bool:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _start(bundle: Path, folder: Path, limits: tuple[str, str]) -> subprocess.Popen[bytes]:
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with open(os.open(bundle, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as packed:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", _CHILD, str(root), *limits, str(os.getpid())],
                stdin=packed,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                pass_fds=(root,),
            )
    finally:
        os.close(root)


def _raise_child_error(code: int, said: bytes) -> None:
    """Raise the error that the child reported; a child without a report was killed."""
    if code == -signal.SIGXCPU:
        raise _refused(f"that took more than {unpack_child.CPU_S} s of processor time")
    try:
        answer: Any = json.loads(said[:_ANSWER_MAX])
        error, retryable = answer.get("error"), bool(answer.get("retryable"))
    except (ValueError, AttributeError):
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise _refused(f"the process that unpacks them ended with {ended}, for want of memory perhaps") from None
    if error is not None:
        raise _refused(str(error), retryable=retryable)


def _refused(why: str, *, retryable: bool = False) -> EngineFailure:
    return EngineFailure(f"the files sent along cannot be unpacked: {why}", retryable=retryable)
