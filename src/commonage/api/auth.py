"""Authentication: hub tokens, and two secrets of the server. Called for every route except health.

The secrets belong to the hub's spawner and to the operator, the command line on the server's machine. Only the
Authorization header counts. Cookies do not, so that pages of other sites cannot make a browser act here.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from commonage.control.request_limits import RateLimit
from commonage.control.workloads.workloads import HUB
from commonage.domain.errors import CommonageError, Forbidden, Unauthenticated
from commonage.domain.principals import OPERATOR, Principal, Scope
from commonage.ports.clock import Clock
from commonage.ports.identity import Identity

# Visible ASCII, with room for the longest token.
_HEADER = re.compile(r"\s*(?:token|bearer)\s+([\x21-\x7e]{1,4096})\s*", re.IGNORECASE)


class Auth:
    """Finds the principal of an Authorization header. The identity port caches tokens.

    `admit` raises Forbidden for a user whose name was given up.
    """

    def __init__(
        self,
        identity: Identity,
        spawner_token: str | None = None,
        operator_token: str | None = None,
        admit: Callable[[Principal], None] = lambda _principal: None,
    ) -> None:
        self._identity, self._admit = identity, admit
        self._spawner, self._operator = Principal(HUB, frozenset(Scope)), Principal(OPERATOR, frozenset(Scope))
        own = ((spawner_token, self._spawner), (operator_token, self._operator))
        self._own = [(token.encode(), principal) for token, principal in own if token]

    async def identify(self, header: str | None) -> Principal:
        """The principal that sends this header. Raises Unauthenticated, Forbidden, Unavailable."""
        token = _token(header)
        for known, own in self._own:
            if hmac.compare_digest(token.encode(), known):
                return own
        principal = await self._identity.whois(token)
        if principal is None:
            raise Unauthenticated(
                "the hub does not know this token, or it has expired; log in again with `commonage login`"
            )
        if principal.name in (HUB, OPERATOR):
            raise Forbidden(
                f"the user name {principal.name!r} is reserved for the server; an admin must rename the user",
                code="reserved-name",
            )
        self._admit(principal)
        return principal

    async def expires_at(self, header: str | None, principal: Principal) -> float | None:
        """When the principal's token in this header expires, in unix seconds; None if never."""
        return None if self.is_own(principal) else await self._identity.expires_at(_token(header))

    def is_spawner(self, principal: Principal) -> bool:
        """True for the hub's spawner, the only one that sees the internal URLs of sessions."""
        return principal is self._spawner

    def is_own(self, principal: Principal) -> bool:
        """True for the hub's spawner and the operator, which are not users of the hub."""
        return principal is self._spawner or principal is self._operator


def _token(header: str | None) -> str:
    if header is None:
        raise Unauthenticated(
            "a token is required: send the header 'Authorization: Bearer TOKEN'; "
            "get a token with `commonage login` or on the hub's token page"
        )
    match = _HEADER.fullmatch(header)
    if match is None:
        raise Unauthenticated("the Authorization header must be 'Bearer TOKEN' or 'token TOKEN'")
    return match[1]


_BURST = 200  # after a restart, all tokens behind an address are unknown and are checked at the same time
_MAX_REMEMBERED = 10_000
_IPV6_PREFIX = 64  # the usual prefix of one customer


class FailedTokens:
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
