"""The last message of a kind from the control plane, kept in a file of the agent's folder for the next start."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.files.atomic import write_file

T = TypeVar("T")
_log = logging.getLogger(__name__)


class KeptMessage(Generic[T]):
    """Blocks briefly."""

    def __init__(self, kind: type[T], file: Path) -> None:
        self._kind, self._file = kind, file

    def read(self) -> T | None:
        with suppress(OSError, ValueError, Unreadable):
            return from_json(self._kind, json.loads(self._file.read_text(encoding="ascii")), ignore_unknown=True)
        return None

    def keep(self, message: T) -> None:
        if message == self.read():
            return
        try:
            write_file(self._file, json.dumps(to_json(message)), 0o600)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._file, error.strerror or error)
