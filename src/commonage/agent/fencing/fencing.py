"""Fencing: ends and pauses attempts on this node, with or without its Docker daemon, and remembers which.

An attempt that is reported as gone has no process left, and a paused one does nothing until the control plane says so:
it may run elsewhere. Blocks: call it in threads.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from commonage.agent.containers.containers import LABEL, OnDisk, end_processes, on_disk
from commonage.agent.containers.docker import DaemonGone, DaemonSilent, DockerDaemon
from commonage.agent.fencing.freezer import pause, unpause
from commonage.domain.errors import EngineFailure

_log = logging.getLogger(__name__)
_WITHIN_S = 10.0
_REMEMBERED_S = 86_400.0


class Fences:
    """`folder` is the agent's own; `root` is where the daemon keeps its containers, empty while unknown."""

    def __init__(self, daemon: DockerDaemon, folder: Path) -> None:
        self._daemon = daemon
        self._root_file, self._ended_file = folder / "docker-root", folder / "fenced.json"
        self._paused_file = folder / "paused.json"
        self.root = _text(self._root_file)
        self._ended: dict[str, float] = _times_in(self._ended_file)
        self._paused: dict[str, float] = _times_in(self._paused_file)
        self._remembering, self._pausing = threading.Lock(), threading.Lock()

    @property
    def fenced(self) -> tuple[str, ...]:
        """The attempts that the agent ended on its own, for a day."""
        return tuple(self._ended)

    @property
    def paused(self) -> tuple[str, ...]:
        """The attempts that are paused and wait for the control plane's decision."""
        return tuple(self._paused)

    def note_root(self, root: str) -> None:
        """Record the folder in which the daemon keeps its containers. Raises OSError."""
        if root != self.root:
            _keep(self._root_file, root)
            self.root = root

    def end_all(self, why: str) -> bool:
        """End all running Commonage containers without the daemon.

        False if some remain, or this cannot be determined.
        """
        return self._end_unasked(self._that_run("ended"), why)

    def pause_all(self, why: str) -> None:
        """Pause all running Commonage containers without the daemon, and end those that cannot be paused."""
        with self._pausing:
            found = self._that_run("paused") or []
            new = {one.attempt_id for one in found} - self._paused.keys()
            if new:
                _log.warning("%s: %d attempts are paused here: %s", why, len(new), ", ".join(sorted(new)))
            # Write it down first: a paused attempt that is forgotten would never run again.
            kept = self._note_paused(more=new)
            paused = pause([one.id for one in found]) if kept else {}
            if unpaused := [one for one in found if not (kept and paused.get(one.id, True))]:
                self._end_unasked(unpaused, f"{why}, and they cannot be paused")

    def unpause(self, attempt_ids: Collection[str]) -> dict[str, float]:
        """End the pause of these attempts. Returns the seconds that each was paused. Raises EngineFailure."""
        with self._pausing:
            since = {one: at for one, at in self._paused.items() if one in attempt_ids}
            unpause([one.id for one in self._on_disk() if one.attempt_id in since])
            self._note_paused(fewer=since)
        _log.info("%d attempts go on: %s", len(since), ", ".join(since))
        return {one: max(0.0, time.time() - at) for one, at in since.items()}

    def end(self, attempt_ids: Collection[str]) -> Sequence[str]:
        """End these attempts; returns those without a process here.

        Raises EngineFailure if this cannot be determined.
        """
        if self._paused.keys() & set(attempt_ids):  # the daemon cannot end a paused process
            end_processes([one.id for one in self._on_disk() if one.attempt_id in attempt_ids], _WITHIN_S, unpause)
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
        alive = {mine[one] for one in end_processes(mine, _WITHIN_S, unpause)}
        gone = [one for one in attempt_ids if one not in alive]
        self._note_paused(fewer=gone)
        return gone

    def _that_run(self, what: str) -> list[OnDisk] | None:
        """The Commonage containers that ran; None if this cannot be determined, which is logged."""
        try:
            return [one for one in self._on_disk() if one.ran]
        except EngineFailure as error:
            _log.error("what runs here cannot be %s: %s", what, error)
            return None

    def _end_unasked(self, found: Sequence[OnDisk] | None, why: str) -> bool:
        if found is None:
            return False
        alive = end_processes([one.id for one in found], _WITHIN_S, unpause)
        gone = sorted({one.attempt_id for one in found if one.id not in alive} - self._ended.keys())
        if gone:
            _log.warning("%s: %d attempts were ended here: %s", why, len(gone), ", ".join(gone))
            self._note_ended(gone)
        if alive:
            _log.error("%d containers have processes that do not end", len(alive))
        return not alive

    def _on_disk(self) -> list[OnDisk]:
        if not self.root:
            raise EngineFailure("where the Docker daemon keeps its containers is not known yet", retryable=True)
        try:
            return on_disk(Path(self.root))
        except OSError as error:
            raise EngineFailure(f"{self.root}/containers cannot be read: {error.strerror}") from error

    def _note_ended(self, attempts: Collection[str]) -> None:
        now = time.time()
        with self._remembering:
            kept = {one: at for one, at in self._ended.items() if now - at < _REMEMBERED_S}
            self._ended = {**kept, **dict.fromkeys(attempts, now)}
            with suppress(OSError):  # a full disk: they are still reported from memory
                _keep(self._ended_file, json.dumps(self._ended))
        self._note_paused(fewer=attempts)

    def _note_paused(self, more: Collection[str] = (), fewer: Collection[str] = ()) -> bool:
        """Record paused attempts. False if that cannot be written."""
        with self._remembering:
            paused = {**dict.fromkeys(more, time.time()), **self._paused}
            paused = {one: at for one, at in paused.items() if one not in fewer}
            if paused == self._paused:
                return True
            self._paused = paused
            try:
                _keep(self._paused_file, json.dumps(paused))
            except OSError as error:
                _log.error("which attempts are paused cannot be kept: %s", error)
                return False
            return True


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _times_in(path: Path) -> dict[str, float]:
    try:
        return {str(attempt): float(at) for attempt, at in json.loads(_text(path) or "{}").items()}
    except (ValueError, AttributeError, TypeError):
        return {}


def _keep(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(path)
