"""Whose request it is: the hub's tokens, and two secrets of the server. Called for every route but health.

The secrets are those of the hub's own spawner and of the command line on the server's node (the operator).

Only the Authorization header counts. A cookie never does, so no foreign page can make a browser act here.
"""

from __future__ import annotations

import hmac
import re

from commonage.control.workloads.work import HUB
from commonage.domain.errors import Forbidden, Unauthenticated
from commonage.domain.principals import OPERATOR, Principal, Scope
from commonage.ports.identity import Identity

# What a header may carry: visible ASCII. Longer than any token that was ever made.
_HEADER = re.compile(r"\s*(?:token|bearer)\s+([\x21-\x7e]{1,4096})\s*", re.IGNORECASE)


class Auth:
    """Turns an Authorization header into a principal. Tokens are remembered by the identity port, not here."""

    def __init__(self, identity: Identity, spawner_token: str | None = None, operator_token: str | None = None) -> None:
        self._identity = identity
        self._spawner, self._operator = Principal(HUB, frozenset(Scope)), Principal(OPERATOR, frozenset(Scope))
        own = ((spawner_token, self._spawner), (operator_token, self._operator))
        self._own = [(token.encode(), who) for token, who in own if token]

    async def identify(self, header: str | None) -> Principal:
        """Who sends this header. Raises Unauthenticated, Forbidden, Unavailable."""
        token = _token(header)
        for known, own in self._own:
            if hmac.compare_digest(token.encode(), known):
                return own
        who = await self._identity.whois(token)
        if who is None:
            raise Unauthenticated("the hub does not know this token (any more); get a new one with `commonage login`")
        if who.name in (HUB, OPERATOR):
            raise Forbidden(
                f"a user cannot be called {who.name!r}: it is a name of the server's own", code="reserved-name"
            )
        return who

    async def expires_at(self, header: str | None, who: Principal) -> float | None:
        """When the token in this header, which is `who`'s, expires, in unix seconds; None if never."""
        return None if self.is_own(who) else await self._identity.expires_at(_token(header))

    def is_spawner(self, who: Principal) -> bool:
        """True for the hub's spawner itself, which alone is told where sessions answer."""
        return who is self._spawner

    def is_own(self, who: Principal) -> bool:
        """True for the hub's spawner and the operator, who are no users of the hub."""
        return who is self._spawner or who is self._operator


def _token(header: str | None) -> str:
    if header is None:
        raise Unauthenticated(
            "this needs a token: send the header 'Authorization: Bearer TOKEN'; "
            "`commonage login` or the hub's token page gives one"
        )
    match = _HEADER.fullmatch(header)
    if match is None:
        raise Unauthenticated("the Authorization header is not of the form 'Bearer TOKEN' or 'token TOKEN'")
    return match[1]
