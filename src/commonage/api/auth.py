"""Authentication: hub tokens, and two secrets of the server. Called for every route except health.

The secrets belong to the hub's spawner and to the operator, the command line on the server's machine. Only the
Authorization header counts. Cookies do not, so that pages of other sites cannot make a browser act here.
"""

from __future__ import annotations

import hmac
import re

from commonage.control.workloads.workloads import HUB
from commonage.domain.errors import Forbidden, Unauthenticated
from commonage.domain.principals import OPERATOR, Principal, Scope
from commonage.ports.identity import Identity

# Visible ASCII, with room for the longest token.
_HEADER = re.compile(r"\s*(?:token|bearer)\s+([\x21-\x7e]{1,4096})\s*", re.IGNORECASE)


class Auth:
    """Finds the principal of an Authorization header. The identity port caches tokens."""

    def __init__(self, identity: Identity, spawner_token: str | None = None, operator_token: str | None = None) -> None:
        self._identity = identity
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
