"""Ending attempts by force on this machine, with its daemon or without, and remembering which were ended so.

What is said to be gone has no process any more: the control plane may run it elsewhere. Blocks: call it in threads.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from commonage.agent.containers import LABEL, OnDisk, end_processes, on_disk
from commonage.agent.docker import DaemonGone, DaemonSilent, DockerDaemon
from commonage.domain.errors import EngineFailure

_log = logging.getLogger(__name__)
_WITHIN_S = 10.0
_REMEMBERED_S = 86_400.0


class Fences:
    """`folder` is the agent's own; `root` is where the daemon keeps its containers, "" while that is not known."""

    def __init__(self, daemon: DockerDaemon, folder: Path) -> None:
        self._daemon = daemon
        self._root_file, self._ended_file = folder / "docker-root", folder / "fenced.json"
        self.root = _text(self._root_file)
        self._ended: dict[str, float] = _ended_in(self._ended_file)
        self._remembering = threading.Lock()

    @property
    def fenced(self) -> tuple[str, ...]:
        """The attempts that were ended unasked, for a day."""
        return tuple(self._ended)

    def note_root(self, root: str) -> None:
        """The daemon says where it keeps its containers. Raises OSError."""
        if root != self.root:
            _keep(self._root_file, root)
            self.root = root

    def end_all(self, why: str) -> bool:
        """End all of ours that ran, without the daemon. False if some could not be ended, or nobody can tell."""
        try:
            found = [one for one in self._on_disk() if one.ran]
        except EngineFailure as error:
            _log.error("what ran here cannot be ended: %s", error.message)
            return False
        alive = end_processes([one.id for one in found], _WITHIN_S)
        gone = sorted({one.attempt_id for one in found if one.id not in alive} - self._ended.keys())
        if gone:
            _log.warning("%s: %d attempts were ended here: %s", why, len(gone), ", ".join(gone))
            self._remember(gone)
        if alive:
            _log.error("%d containers have processes that do not end", len(alive))
        return not alive

    def end(self, attempt_ids: Collection[str]) -> Sequence[str]:
        """End these attempts; gives those that have no process here. Raises EngineFailure if nobody can tell."""
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
        alive = {mine[one] for one in end_processes(mine, _WITHIN_S)}
        return [one for one in attempt_ids if one not in alive]

    def _on_disk(self) -> list[OnDisk]:
        if not self.root:
            raise EngineFailure("where the Docker daemon keeps its containers is not known yet", retryable=True)
        try:
            return on_disk(Path(self.root))
        except OSError as error:
            raise EngineFailure(f"{self.root}/containers cannot be read: {error.strerror}") from error

    def _remember(self, attempts: Collection[str]) -> None:
        now = time.time()
        with self._remembering:
            kept = {one: at for one, at in self._ended.items() if now - at < _REMEMBERED_S}
            self._ended = {**kept, **dict.fromkeys(attempts, now)}
            with suppress(OSError):  # a full disk: they are told all the same
                _keep(self._ended_file, json.dumps(self._ended))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _ended_in(path: Path) -> dict[str, float]:
    try:
        return {str(attempt): float(at) for attempt, at in json.loads(_text(path) or "{}").items()}
    except (ValueError, AttributeError, TypeError):
        return {}


def _keep(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(path)
