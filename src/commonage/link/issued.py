"""Which certificates the authority gave to which machine, and which of them it took back: one small file.

Read anew by every call and written behind a lock, for the control plane and an admin's command may use it at once.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """One certificate. `serial` is in hex, `until` in unix seconds."""

    node: str
    serial: str
    until: float
    revoked: bool = False


class Issued:
    """The file. Entries are dropped when their certificate has expired by itself."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, node: str, serial: int, until: float, now: float) -> None:
        """Note a certificate that was just signed."""
        with self._lock():
            self._write([*self._current(now), Entry(node, f"{serial:x}", until)])

    def revoke(self, node: str, now: float) -> None:
        """Take back all that this machine was given. Unknown machines are no error."""
        with self._lock():
            self._write([replace(entry, revoked=entry.revoked or entry.node == node) for entry in self._current(now)])

    def revoked(self) -> frozenset[int]:
        """The serial numbers of those that were taken back."""
        return frozenset(int(entry.serial, 16) for entry in self._read() if entry.revoked)

    def _current(self, now: float) -> list[Entry]:
        return [entry for entry in self._read() if entry.until > now]

    def _read(self) -> list[Entry]:
        try:
            return [Entry(**entry) for entry in json.loads(self._path.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []

    def _write(self, entries: list[Entry]) -> None:
        temporary = self._path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump([asdict(entry) for entry in entries], file, indent=0)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self._path.with_suffix(".lock").open("w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
