"""Identity: the hub as the control plane sees it. Used by control, API and portal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from commonage.domain.principals import Principal, Scope


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token; `id` is the hub's id of it, `expires_at` is in unix seconds."""

    id: str
    text: str
    expires_at: float


class Identity(Protocol):
    """Sign-in, tokens and the hub's session servers. Raises Unavailable while the hub does not answer."""

    async def whois(self, token: str) -> Principal | None:
        """The principal of this token; None for an unknown token."""

    def authorize_url(self, state: str) -> str:
        """URL that signs a browser in; it returns to the portal's callback with `code` and `state`."""

    async def exchange(self, code: str) -> str:
        """The user's token for an OAuth code. Raises Unauthenticated for a code that is not (or no longer) valid."""

    async def start_session(self, user: str, name: str, options: Mapping[str, Any]) -> None:
        """Have the hub start `user`'s session server `name` ("" for the default one) with these spawn options.

        Returns once the hub has accepted it; the spawner then submits the session as a workload.
        """

    async def stop_session(self, user: str, name: str) -> None:
        """Have the hub stop that server and remove its route. An unknown server is no error."""

    async def share_session(self, user: str, name: str, visitor: str) -> None:
        """Let `visitor` open that running session, until it ends or the visitor may no longer. Raises NotFound."""

    async def expires_at(self, token: str) -> float | None:
        """When this token expires, in unix seconds; None if never. Raises Unauthenticated for an unknown token."""

    async def mint_token(self, user: str, scopes: Sequence[Scope], note: str, expires_s: int | None) -> IssuedToken:
        """A new API token for `user`, created by the hub. Without `expires_s` it lasts as long as permitted."""

    async def revoke_token(self, user: str, token_id: str) -> None:
        """Revoke a token of `user`. An unknown token is no error."""

    async def ensure_user(self, user: str) -> None:
        """Create this user in the hub if necessary."""
