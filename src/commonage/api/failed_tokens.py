"""Limits requests with invalid tokens by client address, which bounds guessing and the load on the hub.

A token that was valid recently is never limited, because several users may share an address (a lab's router).
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from commonage.control.request_limits import RateLimit
from commonage.domain.errors import CommonageError, Unauthenticated
from commonage.ports.clock import Clock

_BURST = 200  # after a restart, all tokens behind an address are unknown and are checked at the same time
_MAX_REMEMBERED = 10_000
_IPV6_PREFIX = 64  # the usual prefix of one customer


class FailedTokens:
    """Counts invalid tokens by address."""

    def __init__(self, clock: Clock, per_s: float) -> None:
        self._rate = RateLimit(clock, "Too many requests without a valid token from", per_s=per_s, burst=_BURST)
        self._valid: OrderedDict[bytes, None] = OrderedDict()  # digests: the tokens themselves are not kept

    @contextmanager
    def counted(self, header: str | None, address: str) -> Iterator[None]:
        """Wraps the check of a token. After too many failures it raises TooMany without a check."""
        digest, key = hashlib.sha256((header or "").encode()).digest(), _network(address)
        was_valid = digest in self._valid
        if not was_valid:
            self._rate.take(key)  # taken before the check, because of concurrent requests
        try:
            yield
        except Unauthenticated:
            self._valid.pop(digest, None)
            raise
        except CommonageError:
            self._refund(key, was_valid)
            raise
        self._refund(key, was_valid)
        self._valid[digest] = None
        self._valid.move_to_end(digest)
        while len(self._valid) > _MAX_REMEMBERED:
            self._valid.popitem(last=False)

    def _refund(self, key: str, was_valid: bool) -> None:
        if not was_valid:
            self._rate.give_back(key)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False)) if found.version == 6 else address
