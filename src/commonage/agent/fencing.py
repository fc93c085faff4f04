"""Fences attempts on this node: ends or pauses them, with or without the Docker daemon, and remembers which.

An attempt that is reported as gone has no process left. A paused one stays paused until the control plane decides,
because it may run elsewhere by now. Blocks: call it in threads.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from commonage.agent.config import replace_file
from commonage.agent.containers.containers import LABEL
from commonage.agent.containers.docker import DaemonGone, DaemonSilent, DockerDaemon
from commonage.agent.containers.processes import OnDisk, end_processes, on_disk, pause, unpause
from commonage.domain.errors import EngineFailure
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import DaemonNotAnswering, DaemonNotRunning

_log = logging.getLogger(__name__)
_END_TIMEOUT_S = 10.0
_FENCED_RETENTION_S = 86_400.0


class Fences:
    """`folder` is the agent's own; `root` is where the daemon keeps its containers, empty while unknown."""

    def __init__(self, daemon: DockerDaemon, folder: Path) -> None:
        self._daemon = daemon
        self._root_file, self._ended_file = folder / "docker-root", folder / "fenced.json"
        self._paused_file = folder / "paused.json"
        self.root = _read_text(self._root_file)
        self._ended: dict[str, float] = _read_times(self._ended_file)
        self._paused: dict[str, float] = _read_times(self._paused_file)
        self._notes_lock, self._pause_lock = threading.Lock(), threading.Lock()

    @property
    def fenced(self) -> tuple[str, ...]:
        """The attempts that the agent ended on its own, for a day."""
        return tuple(self._ended)

    @property
    def paused(self) -> tuple[str, ...]:
        """The attempts that are paused and wait for the control plane's decision."""
        return tuple(self._paused)

    def note_root(self, root: str) -> None:
        """Record the daemon's data folder. Raises OSError."""
        if root != self.root:
            replace_file(self._root_file, root + "\n")
            self.root = root

    def end_all(self, reason: str) -> bool:
        """End all running Commonage containers without the daemon.

        False if some remain, or this cannot be determined.
        """
        return self._end_and_note(self._running("ended"), reason)

    def pause_all(self, reason: str) -> None:
        """Pause all running Commonage containers without the daemon, and end those that cannot be paused."""
        with self._pause_lock:
            running = self._running("paused") or []
            new = {one.attempt_id for one in running} - self._paused.keys()
            if new:
                _log.warning("%s: %d attempts are paused on this node: %s", reason, len(new), ", ".join(sorted(new)))
            # Write it down first: a paused attempt that is forgotten would never run again.
            kept = self._note_paused(more=new)
            paused = pause([one.id for one in running]) if kept else {}
            if unpaused := [one for one in running if not (kept and paused.get(one.id, True))]:
                self._end_and_note(unpaused, f"{reason}, and they cannot be paused")

    def unpause(self, attempt_ids: Collection[str]) -> dict[str, float]:
        """End the pause of these attempts. Returns the seconds that each was paused. Raises EngineFailure."""
        with self._pause_lock:
            since = {one: at for one, at in self._paused.items() if one in attempt_ids}
            unpause([one.id for one in self._on_disk() if one.attempt_id in since])
            self._note_paused(fewer=since)
        _log.info("%d attempts continue after a pause: %s", len(since), ", ".join(since))
        return {one: max(0.0, time.time() - at) for one, at in since.items()}

    def end(self, attempt_ids: Collection[str]) -> Sequence[str]:
        """End these attempts; returns those without a process here.

        Raises EngineFailure if this cannot be determined.
        """
        if self._paused.keys() & set(attempt_ids):  # the daemon cannot end a paused process
            end_processes([one.id for one in self._on_disk() if one.attempt_id in attempt_ids], _END_TIMEOUT_S, unpause)
        try:
            mine = {
                str(one["Id"]): str(one["Labels"][LABEL])
                for one in self._daemon.containers(LABEL, ended_too=True)
                if one["Labels"][LABEL] in attempt_ids
            }
            for container in mine:
                self._daemon.remove(container)
        except (DaemonGone, DaemonSilent):
            mine = {one.id: one.attempt_id for one in self._on_disk() if one.attempt_id in attempt_ids}
        alive = {mine[one] for one in end_processes(mine, _END_TIMEOUT_S, unpause)}
        gone = [one for one in attempt_ids if one not in alive]
        self._note_paused(fewer=gone)
        return gone

    def _running(self, action: str) -> list[OnDisk] | None:
        """The Commonage containers that ran; None if this cannot be determined, which is logged."""
        try:
            return [one for one in self._on_disk() if one.ran]
        except EngineFailure as error:
            _log.error("the containers on this node cannot be %s: %s", action, error)
            return None

    def _end_and_note(self, containers: Sequence[OnDisk] | None, reason: str) -> bool:
        if containers is None:
            return False
        alive = end_processes([one.id for one in containers], _END_TIMEOUT_S, unpause)
        gone = sorted({one.attempt_id for one in containers if one.id not in alive} - self._ended.keys())
        if gone:
            _log.warning("%s: %d attempts were ended on this node: %s", reason, len(gone), ", ".join(gone))
            self._note_ended(gone)
        if alive:
            _log.error("%d containers have processes that cannot be killed", len(alive))
        return not alive

    def _on_disk(self) -> list[OnDisk]:
        if not self.root:
            raise EngineFailure(
                "the Docker daemon's data folder is not known yet: the daemon has not answered since the agent started",
                retryable=True,
            )
        try:
            return on_disk(Path(self.root))
        except OSError as error:
            raise EngineFailure(f"{self.root}/containers cannot be read: {error.strerror}") from error

    def _note_ended(self, attempts: Collection[str]) -> None:
        now = time.time()
        with self._notes_lock:
            kept = {one: at for one, at in self._ended.items() if now - at < _FENCED_RETENTION_S}
            self._ended = {**kept, **dict.fromkeys(attempts, now)}
            with suppress(OSError):  # a full disk: they are still reported from memory
                replace_file(self._ended_file, json.dumps(self._ended))
        self._note_paused(fewer=attempts)

    def _note_paused(self, more: Collection[str] = (), fewer: Collection[str] = ()) -> bool:
        """Record paused attempts. False if that cannot be written."""
        with self._notes_lock:
            paused = {**dict.fromkeys(more, time.time()), **self._paused}
            paused = {one: at for one, at in paused.items() if one not in fewer}
            if paused == self._paused:
                return True
            self._paused = paused
            try:
                replace_file(self._paused_file, json.dumps(paused))
            except OSError as error:
                _log.error("the list of paused attempts cannot be written: %s", error)
                return False
            return True


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _read_times(path: Path) -> dict[str, float]:
    try:
        return {str(attempt): float(at) for attempt, at in json.loads(_read_text(path) or "{}").items()}
    except (ValueError, AttributeError, TypeError):
        return {}


SILENT_FAULT_AFTER_S = 10.0


class Ping(Enum):
    ANSWERS = "answers"
    GONE = "gone"
    SILENT = "silent"


@dataclass(slots=True)
class DaemonHealth:
    """The state of the daemon. Times are monotonic.

    `fence_after_s`: time the daemon may be gone before its containers are ended without it. A daemon that listens and
    does not answer, as can happen under load, has `silent_after_s`.
    """

    fence_after_s: float
    silent_after_s: float
    gone_since: float | None = None
    silent_since: float | None = None
    fenced: bool = False

    def note(self, answer: Ping, began: float) -> None:
        match answer:
            case Ping.ANSWERS:
                self.gone_since = self.silent_since = None
                self.fenced = False
            case Ping.GONE:
                self.gone_since = began if self.gone_since is None else self.gone_since
            case Ping.SILENT:
                self.gone_since = None
                self.silent_since = began if self.silent_since is None else self.silent_since

    def note_fenced(self, *, done: bool) -> None:
        """The containers were ended; `done`: all of them, so that fencing is not due again."""
        self.fenced = done

    def fault(self, now: float) -> Reason | None:
        """Why this node should get no work; None if it may get some."""
        if self.gone_since is not None:
            return DaemonNotRunning(silent_s=round(now - self.gone_since))
        if self.silent_since is not None and now - self.silent_since >= SILENT_FAULT_AFTER_S:
            return DaemonNotAnswering(silent_s=round(now - self.silent_since))
        return None

    def must_fence(self, now: float) -> bool:
        """True when its containers must be ended, until `note_fenced` reports that it is done."""
        gone = self.gone_since is not None and now - self.gone_since >= self.fence_after_s
        silent = self.silent_since is not None and now - self.silent_since >= self.silent_after_s
        return (gone or silent) and not self.fenced
