"""The applied holds, one file each in a folder of the node, so that a later process can release them.

A file is written before anything is applied and removed after all of it was released: after a crash there may be a file
too many, never one too few. Used by `devices.IsolatedDevices`, under its lock; `commonage node mig` reads them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.ports.devices import ShareAssignment

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", re.ASCII)
_SUFFIX = ".json"


class AssignmentFiles:
    """The files in `folder`, which is created with the first one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, assignment: ShareAssignment) -> None:
        """Write a hold; replaces an earlier one of the same attempt. Raises OSError."""
        path = self._path(assignment.attempt_id)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(to_json(assignment)), encoding="utf-8")
        os.replace(new, path)

    def get(self, attempt_id: str) -> ShareAssignment | None:
        """The hold of this attempt; None if it has none. A file that cannot be read counts as a hold without shares.

        It is removed like any other, and the limits it named end with its control group or with the driver.
        """
        if not _ID.fullmatch(attempt_id):
            return None
        try:
            return from_json(ShareAssignment, json.loads(self._path(attempt_id).read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, Unreadable):
            return ShareAssignment(attempt_id, ())

    def drop(self, attempt_id: str) -> None:
        if _ID.fullmatch(attempt_id):
            with suppress(FileNotFoundError, NotADirectoryError):
                self._path(attempt_id).unlink()

    def __iter__(self) -> Iterator[ShareAssignment]:
        for attempt_id in self.ids():
            assignment = self.get(attempt_id)
            if assignment is not None:
                yield assignment

    def ids(self) -> list[str]:
        try:
            return sorted(entry.name[: -len(_SUFFIX)] for entry in os.scandir(self._folder) if _is_ours(entry.name))
        except FileNotFoundError:
            return []

    def _path(self, attempt_id: str) -> Path:
        if not _ID.fullmatch(attempt_id):
            raise ValueError(f"{attempt_id[:100]!r} cannot be the id of an attempt")
        return self._folder / f"{attempt_id}{_SUFFIX}"


def _is_ours(name: str) -> bool:
    return name.endswith(_SUFFIX) and _ID.fullmatch(name[: -len(_SUFFIX)]) is not None
