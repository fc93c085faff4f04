"""The run folders: what is known of each attempt on disk, so that it outlives the control plane.

    runs/<attempt id>/order.json   what was ordered, without secrets; there before anything is started
                      secrets.json the secrets, 0600, until it ended
                      pid          who runs it ("pid start-time boot-id"), or that it never shall ("never")
                      exit         its exit code, and in further lines why, where that is not the program's
                      log          stdout and stderr together
                      tmp/         its TMPDIR, until it ended
                      room         a little room, given up where none is left to write `exit`
    runs/.old/<attempt id>/log     what is left of forgotten ones, for some time

`pid` is created exclusively, by the shim or by a stop: so an attempt runs at most once, whoever died when.
Used by the engine, mostly in threads; nothing here starts or ends processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from commonage.domain.errors import EngineFailure
from commonage.domain.sightings import Order

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", re.ASCII)
_NEVER = "never"
_LOST = "lost"
_OOM = "oom"
_ORDERS = TypeAdapter(Order)
_OLD = ".old"
_ROOM = bytes(8192)
_DAY_S = 24 * 3600
_MIB = 1024 * 1024
# A folder without a log still says that its attempt has been, and is not to be started again.
_REMEMBER_DAYS = 30


@dataclass(frozen=True, slots=True)
class Claim:
    """Who runs an attempt.

    `pid` with `began` (clock ticks since boot), at `at`; all zero if it never shall run.
    """

    pid: int
    began: int
    boot_id: str
    at: float

    @property
    def is_never(self) -> bool:
        """True if it was stopped or failed before it started."""
        return self.pid == 0


@dataclass(frozen=True, slots=True)
class Exit:
    """How it ended, as written down: `code` (None: nobody knows), `detail` (empty if the program's own doing)."""

    code: int | None
    detail: str
    at: float
    oom: bool = False


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One attempt's folder."""

    path: Path

    @property
    def log(self) -> Path:
        """Its output."""
        return self.path / "log"

    @property
    def tmp(self) -> Path:
        """Its TMPDIR."""
        return self.path / "tmp"

    def claim(self) -> Claim | None:
        """Who runs it; None while nobody does. Half-written ones read as None, too: ask again."""
        try:
            with open(self.path / "pid", encoding="ascii") as file:
                words = file.read().split()
                at = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        if words == [_NEVER]:
            return Claim(0, 0, "", at)
        if len(words) != 3:
            return None
        return Claim(int(words[0]), int(words[1]), words[2], at)

    def claim_never(self) -> bool:
        """Have it never run. False if it runs, or ran, already. Raises OSError."""
        path = self.path / "pid"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(_NEVER)
        except OSError:  # half written it would keep everybody from it, and nobody would know why
            path.unlink()
            raise
        return True

    def exit(self) -> Exit | None:
        """How it ended; None while that is not written."""
        try:
            with open(self.path / "exit", encoding="utf-8", errors="replace") as file:
                first, _, detail = file.read().partition("\n")
                code, _, oom = first.partition(" ")
                at = os.fstat(file.fileno()).st_mtime
                return Exit(None if code == _LOST else int(code), detail.strip(), at, oom == _OOM)
        except (FileNotFoundError, ValueError):
            return None

    def has_empty_exit(self) -> bool:
        """True if it ended, but there was no room to write how."""
        path = self.path / "exit"
        return path.exists() and path.stat().st_size == 0

    def write_exit(self, end: Exit) -> None:
        """Write down how it ended, where the shim cannot know it."""
        temporary = self.path / "exit.new"
        first = f"{_LOST if end.code is None else end.code}{' ' + _OOM if end.oom else ''}"
        temporary.write_text(f"{first}\n{end.detail}\n", encoding="utf-8")
        os.utime(temporary, (end.at, end.at))
        temporary.rename(self.path / "exit")

    def give_room(self) -> None:
        """Give up what was kept for its end, so that there is room to write that down. Idempotent."""
        (self.path / "room").unlink(missing_ok=True)

    def order(self) -> tuple[Order, int | None] | None:
        """What was ordered, with its secrets while they are there, and its port.

        None if that is not complete.
        """
        try:
            document = json.loads((self.path / "order.json").read_bytes())
            order = _ORDERS.validate_python(document["order"])
            secrets = self._secrets()
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            return None
        return replace(order, secrets=secrets), document["port"]

    def _secrets(self) -> tuple[tuple[str, str], ...]:
        try:
            pairs = json.loads((self.path / "secrets.json").read_bytes())
        except FileNotFoundError:
            return ()
        return tuple((name, value) for name, value in pairs)

    def tidy(self) -> None:
        """It ended: remove its secrets and its temporary files. Idempotent."""
        (self.path / "secrets.json").unlink(missing_ok=True)
        self.give_room()
        try:
            self.tmp.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            shutil.rmtree(self.tmp, ignore_errors=True)


class Runs:
    """All run folders, under `root` (made when missing, 0700)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._old = root / _OLD

    def open(self) -> None:
        """Make the folders."""
        self._old.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)

    def folder(self, attempt_id: str) -> RunFolder:
        """The folder of an attempt, there or not. Raises EngineFailure for what cannot be an id."""
        if not _ID.fullmatch(attempt_id):
            raise EngineFailure(f"{attempt_id[:100]!r} cannot be the id of an attempt")
        return RunFolder(self.root / attempt_id)

    def create(self, order: Order, port: int | None) -> RunFolder:
        """Write the order down, so that it is found after a crash.

        A stop that came first (`claim_never`) stays.
        """
        folder = self.folder(order.attempt_id)
        folder.path.mkdir(mode=0o700, exist_ok=True)
        folder.tmp.mkdir(mode=0o700, exist_ok=True)
        if order.secrets:
            _write_private(folder.path / "secrets.json", json.dumps(order.secrets).encode())
        bare = _ORDERS.dump_json(replace(order, secrets=()))
        _write_private(folder.log, b"", os.O_APPEND)
        _write_private(folder.path / "room", _ROOM)
        # Last, in one go: a folder without a whole order is one whose attempt was never started.
        document = b'{"port":%s,"order":%s}' % (json.dumps(port).encode(), bare)
        _write_private(folder.path / "order.json", document)
        return folder

    def is_forgotten(self, attempt_id: str) -> bool:
        """True if it ran, ended, and was forgotten."""
        return (self._old / attempt_id).is_dir()

    def log_path(self, attempt_id: str) -> Path | None:
        """Where its log is, also after it was forgotten; None if there is none."""
        if not _ID.fullmatch(attempt_id):
            return None
        candidates = (self.root / attempt_id / "log", self._old / attempt_id / "log")
        return next((path for path in candidates if path.exists()), None)

    def forget(self, attempt_id: str) -> None:
        """Keep nothing but the log. Idempotent."""
        folder, old = self.folder(attempt_id).path, self._old / attempt_id
        try:
            folder.rename(old)
        except FileNotFoundError:
            return
        for entry in os.scandir(old):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != "log":
                os.unlink(entry.path)

    def clear_old(self, now: float, keep_days: int, keep_mib: int) -> int:
        """Remove logs that were forgotten more than `keep_days` ago, and the oldest beyond `keep_mib` in all.

        Gives how many.
        """
        removed, kept, total = 0, [], 0
        for entry in os.scandir(self._old):
            age_s = now - entry.stat(follow_symlinks=False).st_mtime
            log = Path(entry.path, "log")
            try:
                size = log.stat().st_blocks * 512
            except FileNotFoundError:
                size = 0
            else:
                if age_s <= keep_days * _DAY_S:
                    kept.append((age_s, size, log))
                    total += size
                    continue
                removed += 1
                log.unlink()
            if age_s > max(keep_days, _REMEMBER_DAYS) * _DAY_S:
                shutil.rmtree(entry.path, ignore_errors=True)
        for _, size, log in sorted(kept, reverse=True):
            if total <= keep_mib * _MIB:
                break
            log.unlink(missing_ok=True)
            total -= size
            removed += 1
        return removed

    def remove(self, attempt_id: str) -> None:
        """Take back `create`: it was certainly not started."""
        shutil.rmtree(self.folder(attempt_id).path, ignore_errors=True)

    def load(self) -> list[tuple[Order, int | None]]:
        """All whole orders that are not forgotten, with their ports. What a crash left half-written is removed."""
        found = []
        for attempt_id in self.all():
            folder = self.folder(attempt_id)
            whole = folder.order()
            if whole is not None:
                found.append(whole)
            elif folder.claim() is None:
                self.remove(attempt_id)
        return found

    def all(self) -> list[str]:
        """The ids of all that is not forgotten."""
        return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir() and _ID.fullmatch(entry.name))


def _write_private(path: Path, content: bytes, mode: int = os.O_TRUNC) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | mode, 0o600)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
