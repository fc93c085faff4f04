"""Which certificates the authority gave to which machine, and which of them it took back: one small file (0600).

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

from commonage.domain.errors import Forbidden
from commonage.domain.keeping import keeping

_WHAT = "which machine has which certificate"


@dataclass(frozen=True, slots=True)
class Entry:
    """One certificate. `serial` is in hex, `until` in unix seconds.

    `account` is the machine's secret for the site's registry, as good as the certificate is; empty if it has none.
    """

    node: str
    serial: str
    until: float
    revoked: bool = False
    account: str = ""


class Issued:
    """The file. Entries are dropped when their certificate has expired by itself.

    All that writes it raises Unavailable, and changes nothing, if it cannot: the disk may be full.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, entry: Entry, now: float) -> None:
        """Note a certificate that was just signed."""
        with self._lock():
            self._write([*self._current(now), entry])

    def replace(self, entry: Entry, now: float) -> None:
        """Note a certificate that was just signed, and take back all that its machine was given before."""
        with self._lock():
            self._write([*_taken_back(self._current(now), entry.node), entry])

    def renew(self, before: int, entry: Entry, now: float) -> None:
        """Note a certificate that was just signed for who showed the one with the serial number `before`.

        Raises Forbidden, and notes nothing, unless that one holds in this very moment.
        """
        with self._lock():
            kept = self._current(now)
            shown = next((one for one in kept if int(one.serial, 16) == before and not one.revoked), None)
            if shown is None or shown.node != entry.node:
                raise Forbidden(f"the certificate of {entry.node} does not hold any more: have the machine join again")
            self._write([*kept, replace(entry, account=shown.account)])

    def revoke(self, node: str, now: float) -> None:
        """Take back all that this machine was given. Unknown machines are no error."""
        with self._lock():
            self._write(_taken_back(self._current(now), node))

    def revoked(self) -> frozenset[int]:
        """The serial numbers of those that were taken back."""
        return frozenset(int(entry.serial, 16) for entry in self._read() if entry.revoked)

    def holds(self, node: str, now: float) -> bool:
        """True if a certificate of this machine holds now."""
        return any(one.node == node and one.until > now and not one.revoked for one in self._read())

    def accounts(self, node: str, now: float) -> frozenset[str]:
        """The machine's secrets for the registry that hold now."""
        mine = (one for one in self._read() if one.node == node and one.until > now and not one.revoked)
        return frozenset(one.account for one in mine if one.account)

    def _current(self, now: float) -> list[Entry]:
        return [entry for entry in self._read() if entry.until > now]

    def _read(self) -> list[Entry]:
        try:
            return [Entry(**entry) for entry in json.loads(self._path.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []

    def _write(self, entries: list[Entry]) -> None:
        temporary = self._path.with_suffix(".new")
        try:
            with open(temporary, "w", encoding="utf-8", opener=_private) as file:
                json.dump([asdict(entry) for entry in entries], file, indent=0)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)  # what was written of it takes room where there is none

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with keeping(_WHAT, self._path), self._path.with_suffix(".lock").open("w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _taken_back(entries: list[Entry], node: str) -> list[Entry]:
    return [replace(entry, revoked=entry.revoked or entry.node == node) for entry in entries]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
