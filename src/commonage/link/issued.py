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

    `node_id` is the Swarm node that it binds the name `node` to; empty in one that was signed before
    certificates named Swarm nodes.
    `account` is the machine's secret for the site's registry, as good as the certificate is; empty if it has none.
    """

    node: str
    serial: str
    until: float
    revoked: bool = False
    account: str = ""
    node_id: str = ""

    def binds(self, now: float) -> bool:
        """True while it binds its name to its Swarm node."""
        return bool(self.node_id) and self.until > now and not self.revoked


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
        """Note a certificate that was just signed, and take back all that its name, and its Swarm node, had before.

        So a name is bound to one Swarm node at a time, and a Swarm node to one name.
        """
        with self._lock():
            self._write([*_taken_back(self._current(now), entry.node, {entry.node_id}), entry])

    def renew(self, before: int, entry: Entry, now: float) -> None:
        """Note a certificate that was just signed for who showed the one with the serial number `before`.

        Raises Forbidden, and notes nothing, unless that one holds in this very moment.
        """
        with self._lock():
            kept = self._current(now)
            shown = next((one for one in kept if int(one.serial, 16) == before and not one.revoked), None)
            if shown is None or (shown.node, shown.node_id) != (entry.node, entry.node_id):
                raise Forbidden(f"the certificate of {entry.node} does not hold any more: have the machine join again")
            self._write([*kept, replace(entry, account=shown.account)])

    def revoke(self, node: str, now: float) -> None:
        """Take back all that this node was given, by its name and by its Swarm node id. Unknown ones are no error."""
        with self._lock():
            kept = self._current(now)
            ids = {one.node_id for one in kept if one.node == node and one.binds(now)}
            self._write(_taken_back(kept, node, ids))

    def bindings(self, now: float) -> dict[str, str]:
        """The names of nodes by their Swarm node ids, as certificates bind them now."""
        return {one.node_id: one.node for one in self._read() if one.binds(now)}

    def node_ids(self, node: str, now: float) -> frozenset[str]:
        """The Swarm node ids that this name is, or was, bound to, except those that another name is bound to now."""
        kept = self._current(now)
        others = {one.node_id for one in kept if one.node != node and one.binds(now)}
        return frozenset(one.node_id for one in kept if one.node == node and one.node_id) - others

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


def _taken_back(entries: list[Entry], node: str, node_ids: set[str]) -> list[Entry]:
    ids = node_ids - {""}
    return [replace(one, revoked=one.revoked or one.node == node or one.node_id in ids) for one in entries]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
