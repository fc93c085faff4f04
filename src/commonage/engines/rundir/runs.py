"""Run folders: state of each attempt on disk, so that it survives the control plane.

    runs/<attempt id>/request.json   the start request, without secrets; written before anything is started
                      secrets.json the secrets, 0600, until the end
                      pid          the process that runs it ("pid start-time boot-id"), or "forbidden"
                      exit         its exit code, and in a second line a reason (JSON), if the end is not the program's
                      log          stdout and stderr together
                      tmp/         its TMPDIR, until the end
                      room         reserved disk space; renamed to `exit` if the disk is too full to write that
    runs/.old/<attempt id>/log     log of a forgotten attempt, kept for some time

The shim or a stop creates `pid` exclusively: so an attempt runs at most once, no matter which process dies at what
moment. If workloads run on other nodes, `log` (and the control folder) lie in a folder that those see, and nothing else
of this: see `Runs`. Used by the engine, mostly in threads; nothing here starts or ends processes.
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
from commonage.domain.statuses import StartRequest
from commonage.files.safe_path import SafePath

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", re.ASCII)
_FORBIDDEN = "forbidden"
_LOST = "lost"
_OOM = "oom"
_REQUESTS = TypeAdapter(StartRequest)
_OLD = ".old"
_ROOM = bytes(8192)
_DAY_S = 24 * 3600
_MIB = 1024 * 1024
# A folder without a log still records that its attempt existed and must not be started again.
_REMEMBER_DAYS = 30


@dataclass(frozen=True, slots=True)
class RunnerProcess:
    """The process that runs an attempt.

    `pid` with `began` (clock ticks since boot), at `at`; all zero if it must never run.
    """

    pid: int
    began: int
    boot_id: str
    at: float

    @property
    def is_forbidden(self) -> bool:
        """True if it was stopped or failed before it started."""
        return self.pid == 0


@dataclass(frozen=True, slots=True)
class Exit:
    """The recorded end: `code` (None if unknown), `reason` (None if the program ended by itself)."""

    code: int | None
    reason: Reason | None
    at: float
    oom: bool = False


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One attempt's folder. `shared`: the part of it that other nodes see, if any."""

    path: Path
    shared: SafePath | None = None

    @property
    def writable(self) -> SafePath:
        """The folder with everything that its workload may write to."""
        return SafePath(self.path) if self.shared is None else self.shared

    @property
    def log(self) -> SafePath:
        return self.writable / "log"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    def runner(self) -> RunnerProcess | None:
        """Return the process that runs it; None if it is undecided. A half-written file reads as None: ask again."""
        try:
            with open(self.path / "pid", encoding="ascii") as file:
                words = file.read().split()
                at = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        if words == [_FORBIDDEN]:
            return RunnerProcess(0, 0, "", at)
        if len(words) != 3:
            return None
        return RunnerProcess(int(words[0]), int(words[1]), words[2], at)

    def forbid_start(self) -> bool:
        """Ensure that it never runs. False if it runs or ran already. Raises OSError."""
        path = self.path / "pid"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(_FORBIDDEN)
        except OSError:  # a half-written file would block every other one, with no explanation
            path.unlink()
            raise
        return True

    def exit(self) -> Exit | None:
        """Return how it ended; None while that is not written."""
        try:
            with open(self.path / "exit", encoding="utf-8", errors="replace") as file:
                first, _, written = file.read().partition("\n")
                written = written.strip("\0\n")  # a renamed `room` ends in zero bytes
                reason = from_json(Reason, json.loads(written)) if written else None
                code, _, oom = first.partition(" ")
                at = os.fstat(file.fileno()).st_mtime
                return Exit(None if code == _LOST else int(code), reason, at, oom == _OOM)
        except (FileNotFoundError, ValueError, Unreadable):
            return None

    def has_empty_exit(self) -> bool:
        """True if it ended, but there was no disk space to write how."""
        path = self.path / "exit"
        return path.exists() and path.stat().st_size == 0

    def write_exit(self, end: Exit) -> None:
        """Write how it ended, for an end that the shim cannot know."""
        temporary = self.path / "exit.new"
        first = f"{_LOST if end.code is None else end.code}{' ' + _OOM if end.oom else ''}"
        reason = "" if end.reason is None else json.dumps(to_json(end.reason))
        temporary.write_text(f"{first}\n{reason}\n", encoding="utf-8")
        os.utime(temporary, (end.at, end.at))
        temporary.rename(self.path / "exit")

    def release_reserve(self) -> None:
        """Free the disk space that was reserved for recording its end. Idempotent."""
        (self.path / "room").unlink(missing_ok=True)

    def request(self) -> tuple[StartRequest, int | None] | None:
        """Return the start request, with its secrets while they exist, and its port.

        None if that is incomplete.
        """
        try:
            document = json.loads((self.path / "request.json").read_bytes())
            request = _REQUESTS.validate_python(document["request"])
            secrets = self._secrets()
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            return None
        return replace(request, secrets=secrets), document["port"]

    def _secrets(self) -> tuple[tuple[str, str], ...]:
        try:
            pairs = json.loads((self.path / "secrets.json").read_bytes())
        except FileNotFoundError:
            return ()
        return tuple((name, value) for name, value in pairs)

    def tidy(self) -> None:
        """Remove the secrets and temporary files of an ended attempt. Idempotent."""
        (self.path / "secrets.json").unlink(missing_ok=True)
        self.release_reserve()
        try:
            self.tmp.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            shutil.rmtree(self.tmp, ignore_errors=True)


class Runs:
    """All run folders, under `root` (created if missing, 0700).

    `shared` is the folder that other nodes see: it has a folder of the same name for each attempt, with its log and its
    control folder. Root on one of those nodes may change anything in it, at any time.
    """

    def __init__(self, root: Path, shared: SafePath | None = None) -> None:
        self.root = root
        self._shared = shared
        self._old = root / _OLD
        self._logs = SafePath(root) if shared is None else shared
        self._old_logs = self._logs / _OLD

    def open(self) -> None:
        self._old_logs.make_folder(parents=True)
        self._old.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)

    def folder(self, attempt_id: str) -> RunFolder:
        """Return the folder of an attempt, existing or not. Raises EngineFailure for an invalid id."""
        if not _ID.fullmatch(attempt_id):
            raise EngineFailure(f"{attempt_id[:100]!r} cannot be the id of an attempt")
        shared = None if self._shared is None else self._shared / attempt_id
        return RunFolder(self.root / attempt_id, shared)

    def create(self, request: StartRequest, port: int | None) -> RunFolder:
        """Write the start request, so that it is found after a crash.

        An earlier stop (`forbid_start`) stays in force.
        """
        folder = self.folder(request.attempt_id)
        folder.path.mkdir(mode=0o700, exist_ok=True)
        folder.tmp.mkdir(mode=0o700, exist_ok=True)
        if folder.shared is not None:
            folder.shared.make_folder()
        if request.secrets:
            _write_private(folder.path / "secrets.json", json.dumps(request.secrets).encode())
        bare = _REQUESTS.dump_json(replace(request, secrets=()))
        os.close(folder.log.open(os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        _write_private(folder.path / "room", _ROOM)
        # Last, and atomically: a folder without a complete request belongs to an attempt that was never started.
        document = b'{"port":%s,"request":%s}' % (json.dumps(port).encode(), bare)
        _write_private(folder.path / "request.json", document)
        return folder

    def is_forgotten(self, attempt_id: str) -> bool:
        """True if it ran, ended, and was forgotten."""
        return (self._old / attempt_id).is_dir()

    def log_places(self, attempt_id: str) -> Sequence[SafePath]:
        """Where its log may be: as long as it is known, and after it was forgotten."""
        if not _ID.fullmatch(attempt_id):
            return ()
        return (self._logs / attempt_id / "log", self._old_logs / attempt_id / "log")

    def log_path(self, attempt_id: str) -> SafePath | None:
        return next((place for place in self.log_places(attempt_id) if place.exists()), None)

    def forget(self, attempt_id: str) -> None:
        """Keep only the log. Idempotent."""
        self.folder(attempt_id)
        if self._shared is not None:
            _keep_log(self._logs / attempt_id, self._old_logs / attempt_id)
        _keep_log(SafePath(self.root) / attempt_id, SafePath(self._old) / attempt_id)

    def clear_old(self, now: float, keep_s: float, keep_mib: int) -> int:
        """Remove logs that were forgotten more than `keep_s` ago, and the oldest beyond `keep_mib` in total.

        Returns their number.
        """
        removed, kept, total = 0, [], 0
        for name in {*self._old_logs.list_names(), *os.listdir(self._old)}:
            shared, old = self._old_logs / name, SafePath(self._old) / name
            age_s = now - (old if old.exists() else shared).stat().st_mtime
            log = shared / "log"
            try:
                size = log.stat().st_blocks * 512
            except OSError:  # it has no log, or the path is not a log
                size = 0
            else:
                if age_s <= keep_s:
                    kept.append((age_s, size, log))
                    total += size
                    continue
                removed += 1
                log.remove()
            if age_s > max(keep_s, _REMEMBER_DAYS * _DAY_S):
                shared.remove()
                old.remove()
        for _, size, log in sorted(kept, key=lambda one: one[0], reverse=True):
            if total <= keep_mib * _MIB:
                break
            log.remove()
            total -= size
            removed += 1
        return removed

    def remove(self, attempt_id: str) -> None:
        """Undo `create` for an attempt that was certainly not started."""
        folder = self.folder(attempt_id)
        if folder.shared is not None:
            with suppress(OSError):
                folder.shared.remove()
        shutil.rmtree(folder.path, ignore_errors=True)

    def load(self) -> list[tuple[StartRequest, int | None]]:
        """Return all complete start requests that are not forgotten, with their ports.

        Removes half-written ones of a crash.
        """
        found = []
        for attempt_id in self.all():
            folder = self.folder(attempt_id)
            whole = folder.request()
            if whole is not None:
                found.append(whole)
            elif folder.runner() is None:
                self.remove(attempt_id)
        return found

    def all(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir() and _ID.fullmatch(entry.name))


def _keep_log(place: SafePath, old: SafePath) -> None:
    """Move the log, if it exists, and keep nothing else. A missing log is no error."""
    try:
        place.move(old)
    except FileNotFoundError:
        return
    except OSError:  # another user put something in its place
        old.remove()
        place.move(old)
    if not old.is_folder():
        old.remove()
        return
    for name in old.list_names():
        if name != "log":
            (old / name).remove()


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
