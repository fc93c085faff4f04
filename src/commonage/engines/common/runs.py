"""The run folders: what is known of each attempt on disk, so that it outlives the control plane.

    runs/<attempt id>/order.json   what was ordered, without secrets; there before anything is started
                      secrets.json the secrets, 0600, until it ended
                      pid          who runs it ("pid start-time boot-id"), or that it never shall ("never")
                      exit         its exit code, and in a second line why (JSON), where that is not the program's
                      log          stdout and stderr together
                      tmp/         its TMPDIR, until it ended
                      room         a little room, given up where none is left to write `exit`
    runs/.old/<attempt id>/log     what is left of forgotten ones, for some time

`pid` is created exclusively, by the shim or by a stop: so an attempt runs at most once, whoever died when.
Where workloads run on other machines, `log` (and the box) lie in a folder that those see, and nothing else of this:
see `Runs`. Used by the engine, mostly in threads; nothing here starts or ends processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.sightings import Order
from commonage.files.beneath import Beneath

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
    """How it ended, as written down: `code` (None: nobody knows), `reason` (None if the program's own doing)."""

    code: int | None
    reason: Reason | None
    at: float
    oom: bool = False


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One attempt's folder. `shared`: the folder of it that other machines see, if any does."""

    path: Path
    shared: Beneath | None = None

    @property
    def outside(self) -> Beneath:
        """The folder with all that its workload may write to."""
        return Beneath(self.path) if self.shared is None else self.shared

    @property
    def log(self) -> Beneath:
        """Its output."""
        return self.outside / "log"

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
                first, _, written = file.read().partition("\n")
                reason = from_json(Reason, json.loads(written)) if written.strip() else None
                code, _, oom = first.partition(" ")
                at = os.fstat(file.fileno()).st_mtime
                return Exit(None if code == _LOST else int(code), reason, at, oom == _OOM)
        except (FileNotFoundError, ValueError, Unreadable):
            return None

    def has_empty_exit(self) -> bool:
        """True if it ended, but there was no room to write how."""
        path = self.path / "exit"
        return path.exists() and path.stat().st_size == 0

    def write_exit(self, end: Exit) -> None:
        """Write down how it ended, where the shim cannot know it."""
        temporary = self.path / "exit.new"
        first = f"{_LOST if end.code is None else end.code}{' ' + _OOM if end.oom else ''}"
        reason = "" if end.reason is None else json.dumps(to_json(end.reason))
        temporary.write_text(f"{first}\n{reason}\n", encoding="utf-8")
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
    """All run folders, under `root` (made when missing, 0700).

    `shared` is the folder that other machines see: one of the same names for each attempt, with its log and its box.
    Whoever is root on one of those machines may change all that is in there, at any time.
    """

    def __init__(self, root: Path, shared: Beneath | None = None) -> None:
        self.root = root
        self._shared = shared
        self._old = root / _OLD
        self._outside = Beneath(root) if shared is None else shared
        self._old_outside = self._outside / _OLD

    def open(self) -> None:
        """Make the folders. Raises OSError."""
        self._old_outside.make_folder(parents=True)
        self._old.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)

    def folder(self, attempt_id: str) -> RunFolder:
        """The folder of an attempt, there or not. Raises EngineFailure for what cannot be an id."""
        if not _ID.fullmatch(attempt_id):
            raise EngineFailure(f"{attempt_id[:100]!r} cannot be the id of an attempt")
        shared = None if self._shared is None else self._shared / attempt_id
        return RunFolder(self.root / attempt_id, shared)

    def create(self, order: Order, port: int | None) -> RunFolder:
        """Write the order down, so that it is found after a crash.

        A stop that came first (`claim_never`) stays.
        """
        folder = self.folder(order.attempt_id)
        folder.path.mkdir(mode=0o700, exist_ok=True)
        folder.tmp.mkdir(mode=0o700, exist_ok=True)
        if folder.shared is not None:
            folder.shared.make_folder()
        if order.secrets:
            _write_private(folder.path / "secrets.json", json.dumps(order.secrets).encode())
        bare = _ORDERS.dump_json(replace(order, secrets=()))
        os.close(folder.log.open(os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        _write_private(folder.path / "room", _ROOM)
        # Last, in one go: a folder without a whole order is one whose attempt was never started.
        document = b'{"port":%s,"order":%s}' % (json.dumps(port).encode(), bare)
        _write_private(folder.path / "order.json", document)
        return folder

    def is_forgotten(self, attempt_id: str) -> bool:
        """True if it ran, ended, and was forgotten."""
        return (self._old / attempt_id).is_dir()

    def log_places(self, attempt_id: str) -> Sequence[Beneath]:
        """Where its log may be: as long as it is known, and after it was forgotten."""
        if not _ID.fullmatch(attempt_id):
            return ()
        return (self._outside / attempt_id / "log", self._old_outside / attempt_id / "log")

    def log_path(self, attempt_id: str) -> Beneath | None:
        """Where its log is now; None if there is none."""
        return next((place for place in self.log_places(attempt_id) if place.is_there()), None)

    def forget(self, attempt_id: str) -> None:
        """Keep nothing but the log. Idempotent."""
        self.folder(attempt_id)
        if self._shared is not None:
            _keep_log(self._outside / attempt_id, self._old_outside / attempt_id)
        _keep_log(Beneath(self.root) / attempt_id, Beneath(self._old) / attempt_id)

    def clear_old(self, now: float, keep_days: int, keep_mib: int) -> int:
        """Remove logs that were forgotten more than `keep_days` ago, and the oldest beyond `keep_mib` in all.

        Gives how many.
        """
        removed, kept, total = 0, [], 0
        for name in {*self._old_outside.listed(), *os.listdir(self._old)}:
            outside, old = self._old_outside / name, Beneath(self._old) / name
            age_s = now - (old if old.is_there() else outside).stat().st_mtime
            log = outside / "log"
            try:
                size = log.stat().st_blocks * 512
            except OSError:  # it has no log, or what is there is none
                size = 0
            else:
                if age_s <= keep_days * _DAY_S:
                    kept.append((age_s, size, log))
                    total += size
                    continue
                removed += 1
                log.remove()
            if age_s > max(keep_days, _REMEMBER_DAYS) * _DAY_S:
                outside.remove()
                old.remove()
        for _, size, log in sorted(kept, key=lambda one: one[0], reverse=True):
            if total <= keep_mib * _MIB:
                break
            log.remove()
            total -= size
            removed += 1
        return removed

    def remove(self, attempt_id: str) -> None:
        """Take back `create`: it was certainly not started."""
        folder = self.folder(attempt_id)
        if folder.shared is not None:
            with suppress(OSError):
                folder.shared.remove()
        shutil.rmtree(folder.path, ignore_errors=True)

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


def _keep_log(place: Beneath, old: Beneath) -> None:
    """Keep only the log, if there is one, elsewhere. One that is not there is no error."""
    try:
        place.move(old)
    except FileNotFoundError:
        return
    except OSError:  # somebody else put something in its place
        old.remove()
        place.move(old)
    if not old.is_folder():
        old.remove()
        return
    for name in old.listed():
        if name != "log":
            (old / name).remove()


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
