"""Whose request it is: the hub's tokens, and the secret of the hub's own spawner. Called for every route but health.

Only the Authorization header counts. A cookie never does, so no foreign page can make a browser act here.
"""

from __future__ import annotations

import hmac
import re

from commonage.control.work import HUB
from commonage.domain.errors import Forbidden, Unauthenticated
from commonage.domain.principals import Principal, Scope
from commonage.ports.identity import Identity

# What a header may carry: visible ASCII. Longer than any token that was ever made.
_HEADER = re.compile(r"\s*(?:token|bearer)\s+([\x21-\x7e]{1,4096})\s*", re.IGNORECASE)


class Auth:
    """Turns an Authorization header into a principal. Tokens are remembered by the identity port, not here."""

    def __init__(self, identity: Identity, spawner_token: str | None = None) -> None:
        self._identity = identity
        self._spawner_token = spawner_token.encode() if spawner_token else None
        self._spawner = Principal(HUB, frozenset(Scope))

    async def identify(self, header: str | None) -> Principal:
        """Who sends this header. Raises Unauthenticated, Forbidden, Unavailable."""
        if header is None:
            raise Unauthenticated(
                "this needs a token: send the header 'Authorization: Bearer TOKEN'; "
                "`commonage login` or the hub's token page gives one"
            )
        match = _HEADER.fullmatch(header)
        if match is None:
            raise Unauthenticated("the Authorization header is not of the form 'Bearer TOKEN' or 'token TOKEN'")
        token = match[1]
        if self._spawner_token is not None and hmac.compare_digest(token.encode(), self._spawner_token):
            return self._spawner
        who = await self._identity.whois(token)
        if who is None:
            raise Unauthenticated("the hub does not know this token (any more); get a new one with `commonage login`")
        if who.name == HUB:
            raise Forbidden(f"a user cannot be called {HUB!r}: it is the hub's own name here", code="reserved-name")
        return who

    def is_spawner(self, who: Principal) -> bool:
        """True for the hub's spawner itself, which alone is told where sessions answer."""
        return who is self._spawner
