"""How often one address may come with a token that is not valid: guessing is bounded, and so is what it costs the hub.

A token that was valid lately is never held up: others behind the same address (a lab's router, the loopback of a
node) must not be locked out by one who guesses.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from commonage.control.tenants.rates import RateLimit
from commonage.domain.errors import CommonageError, Unauthenticated
from commonage.ports.clock import Clock

_BURST = 200  # after a restart all tokens behind an address are unknown, and asked about at the same time
_MOST_REMEMBERED = 10_000
_IPV6_PREFIX = 64  # what one customer has


class FailedTokens:
    """Counts failures by address."""

    def __init__(self, clock: Clock, per_s: float) -> None:
        what = "Too many requests without a valid token from"
        self._rate = RateLimit(clock, what, per_s=per_s, burst=_BURST)
        self._valid: OrderedDict[bytes, None] = OrderedDict()  # digests: the tokens themselves are not kept

    @contextmanager
    def counted(self, header: str | None, address: str) -> Iterator[None]:
        """Around finding out whose token it is. Raises TooMany instead of asking, after too many failures."""
        digest, key = hashlib.sha256((header or "").encode()).digest(), _network(address)
        was_valid = digest in self._valid
        if not was_valid:
            self._rate.take(key)  # before: many at the same time must not all get through
        try:
            yield
        except Unauthenticated:
            self._valid.pop(digest, None)
            raise
        except CommonageError:
            self._give_back(key, was_valid)
            raise
        self._give_back(key, was_valid)
        self._valid[digest] = None
        self._valid.move_to_end(digest)
        while len(self._valid) > _MOST_REMEMBERED:
            self._valid.popitem(last=False)

    def _give_back(self, key: str, was_valid: bool) -> None:
        if not was_valid:
            self._rate.give_back(key)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False)) if found.version == 6 else address
