"""The certificates that the authority issued to nodes, and which of them are revoked: one small file (0600).

Used by `certificate_authority`. Every call reads it again and writes it behind a lock, because the control plane and
an admin's command may use it at once.
"""

from __future__ import annotations

import fcntl
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from commonage.domain.errors import Forbidden, file_errors
from commonage.files.atomic import write_file

_WHAT = "which node has which certificate"


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """One certificate. `serial` is in hex, `until` in unix seconds.

    `node_id` is the Swarm node that it binds the name `node` to; empty in one that was signed before certificates named
    Swarm nodes. `account` is the node's secret for the site's registry, valid as long as the certificate; empty if it
    has none.
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


class IssuedCertificates:
    """The file; base of `CertificateAuthority`. Entries are dropped when their certificate has expired.

    Every write raises Unavailable and changes nothing if it fails: the disk may be full. `now` gives unix seconds.
    """

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._path, self._now = path, now

    def _record(self, entry: IssuedCertificate) -> None:
        with self._lock():
            self._write([*self._current(), entry])

    def _record_replacement(self, entry: IssuedCertificate) -> None:
        """Record a certificate that was just signed, and revoke all earlier ones of its name and of its Swarm node.

        So a name is bound to one Swarm node at a time, and a Swarm node to one name.
        """
        with self._lock():
            self._write([*_taken_back(self._current(), entry.node, {entry.node_id}), entry])

    def _record_renewal(self, before: int, entry: IssuedCertificate) -> None:
        """Record the renewal of the certificate with the serial number `before`.

        Raises Forbidden, and records nothing, unless that certificate is valid at this moment.
        """
        with self._lock():
            kept = self._current()
            shown = next((one for one in kept if int(one.serial, 16) == before and not one.revoked), None)
            if shown is None or (shown.node, shown.node_id) != (entry.node, entry.node_id):
                raise Forbidden(f"the certificate of {entry.node} does not hold any more: have the node join again")
            self._write([*kept, replace(entry, account=shown.account)])

    def revoke(self, node: str) -> None:
        """Revoke all certificates of this node, by its name and by its Swarm node id. An unknown node is no error.

        A certificate issued later is valid.
        """
        with self._lock():
            kept, now = self._current(), self._now()
            ids = {one.node_id for one in kept if one.node == node and one.binds(now)}
            self._write(_taken_back(kept, node, ids))

    def bindings(self) -> dict[str, str]:
        """The names of nodes by their Swarm node ids, as valid certificates bind them."""
        now = self._now()
        return {one.node_id: one.node for one in self._read() if one.binds(now)}

    def node_ids(self, node: str) -> frozenset[str]:
        """The Swarm node ids that this name is, or was, bound to, except those that another name is bound to now."""
        kept, now = self._current(), self._now()
        others = {one.node_id for one in kept if one.node != node and one.binds(now)}
        return frozenset(one.node_id for one in kept if one.node == node and one.node_id) - others

    def revoked(self) -> frozenset[int]:
        """The serial numbers of all revoked certificates that have not expired."""
        return frozenset(int(entry.serial, 16) for entry in self._read() if entry.revoked)

    def holds(self, node: str) -> bool:
        """True if this node has a valid certificate."""
        return bool(self._valid(node))

    def has_account(self, node: str, account: str) -> bool:
        """True if `account` is the registry secret of a node with a valid certificate."""
        known = [one.account.encode() for one in self._valid(node) if one.account]
        return any(secrets.compare_digest(one, account.encode()) for one in known)

    def _valid(self, node: str) -> list[IssuedCertificate]:
        return [one for one in self._current() if one.node == node and not one.revoked]

    def _current(self) -> list[IssuedCertificate]:
        now = self._now()
        return [entry for entry in self._read() if entry.until > now]

    def _read(self) -> list[IssuedCertificate]:
        try:
            return [IssuedCertificate(**entry) for entry in json.loads(self._path.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []

    def _write(self, entries: list[IssuedCertificate]) -> None:
        write_file(self._path, json.dumps([asdict(entry) for entry in entries], indent=0), 0o600)

    def _lock(self) -> AbstractContextManager[None]:
        return locked(self._path, _WHAT)


def _taken_back(entries: list[IssuedCertificate], node: str, node_ids: set[str]) -> list[IssuedCertificate]:
    ids = node_ids - {""}
    return [replace(one, revoked=one.revoked or one.node == node or one.node_id in ids) for one in entries]


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of this file, also against other processes. `what` names the content for errors (Unavailable)."""
    with file_errors(what, path), path.with_suffix(".lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
