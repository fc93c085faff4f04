"""Addresses of the control plane that lead to the ports of attempts on a site: what proxies and the portal connect to.

Each attempt has the port that it has on its site, at a loopback address of its own (127.64.0.0/10), so that a program
which knows its port is right about it. Ports that this machine may need itself are moved. The address stays the same
over restarts.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from urllib.parse import urlsplit

from commonage.engines.remote.records import SiteRecords
from commonage.link.sites.transport.stream_forwarder import StreamForwarder

_log = logging.getLogger(__name__)
_TRIES = 64
MAX_TUNNELS = 1000
"""Of one site. Each needs a file descriptor."""
_FIRST_PORT, _MOVED_BY = 1024, 20_000


class Tunnels:
    """`carry` carries a connection to the port of an attempt. `reserved` are ports of the installation, which are not
    listened on: nothing could listen on them at all addresses any more, so the proxy could not start again.
    """

    def __init__(
        self,
        site: str,
        records: SiteRecords,
        carry: Callable[[str, socket.socket], Awaitable[None]],
        reserved: Collection[int] = (),
    ) -> None:
        self._site, self._records, self._carry, self._reserved = site, records, carry, frozenset(reserved)
        self._is_full = False
        self._addresses: dict[str, tuple[str, int]] = {}
        self._forwarders: dict[str, StreamForwarder] = {}

    def restore(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        for attempt_id, (host, port) in list(addresses.items())[:MAX_TUNNELS]:
            if port != self._local_port(port):  # it was not reserved before
                continue
            try:
                self._listen(attempt_id, socket.create_server((host, port)))
            except OSError as error:
                _log.warning("attempt %s is not reached at %s:%s any more: %s", attempt_id, host, port, error)

    def url(self, attempt_id: str, url: str) -> str | None:
        """The address here that leads to this address of the attempt on its site; None if none is free."""
        parts = urlsplit(url)
        port = self._local_port(parts.port or (443 if parts.scheme == "https" else 80))
        known = self._addresses.get(attempt_id)
        if known is None or known[1] != port:
            self.end(attempt_id)
            if not self._has_room():
                return None
            listening = self._free(attempt_id, port)
            if listening is None:
                _log.error("attempt %s cannot be reached: port %s is taken at all addresses tried", attempt_id, port)
                return None
            known = self._listen(attempt_id, listening)
            self._records.keep_address(attempt_id, *known)
        return parts._replace(netloc=f"{known[0]}:{port}").geturl()

    def end(self, attempt_id: str) -> None:
        if self._addresses.pop(attempt_id, None) is not None:
            self._records.drop_address(attempt_id)
            self._forwarders.pop(attempt_id).close()

    def close(self) -> None:
        for forwarder in self._forwarders.values():
            forwarder.close()

    def _local_port(self, port: int) -> int:
        while port < _FIRST_PORT or port in self._reserved:
            port = (port + _MOVED_BY) % 65_536
        return port

    def _has_room(self) -> bool:
        is_full = len(self._addresses) >= MAX_TUNNELS
        if is_full and not self._is_full:
            _log.warning("site %s: no more than %s attempts have an address here at once", self._site, MAX_TUNNELS)
        self._is_full = is_full
        return not is_full

    def _free(self, attempt_id: str, port: int) -> socket.socket | None:
        for number in range(_TRIES):
            _, middle, low, last = hashlib.sha256(f"{self._site} {attempt_id} {number}".encode()).digest()[:4]
            try:
                return socket.create_server((f"127.{64 + middle % 64}.{low}.{1 + last % 254}", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    _log.warning("attempt %s: %s", attempt_id, error)
                    return None
        return None

    def _listen(self, attempt_id: str, listening: socket.socket) -> tuple[str, int]:
        host, port = listening.getsockname()[:2]
        self._addresses[attempt_id] = (host, port)
        forwarder = StreamForwarder(f"tunnel to {attempt_id}", partial(self._carry, attempt_id))
        self._forwarders[attempt_id] = forwarder
        forwarder.listen(listening)
        return host, port
