"""Who is who: the hub, as the control plane sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from commonage.domain.principals import Principal, Scope


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token; `id` is what the hub calls it, `expires_at` is in unix seconds."""

    id: str
    text: str
    expires_at: float


class Identity(Protocol):
    """Sign-in, tokens and the hub's session servers. Raises Unavailable while the hub does not answer."""

    async def whois(self, token: str) -> Principal | None:
        """Whose token this is; None if nobody's."""
        ...

    def authorize_url(self, state: str) -> str:
        """Where to send a browser to sign in; it comes back to the portal's callback with `code` and `state`."""
        ...

    async def exchange(self, code: str) -> str:
        """The user's token for an OAuth code. Raises Unauthenticated for a code that is not (or no longer) good."""
        ...

    async def start_session(self, user: str, name: str, options: Mapping[str, Any]) -> None:
        """Have the hub start `user`'s session server `name` ("" for the default one) with these spawn options.

        Returns once the hub has taken it up; the session itself then arrives as a workload from the spawner.
        """
        ...

    async def stop_session(self, user: str, name: str) -> None:
        """Have the hub end that server and forget its route. Unknown is no error."""
        ...

    async def expires_at(self, token: str) -> float | None:
        """When this token expires, in unix seconds; None if never. Raises Unauthenticated if it is nobody's."""
        ...

    async def mint_token(self, user: str, scopes: Sequence[Scope], note: str, expires_s: int | None) -> IssuedToken:
        """A new API token for `user`, known to the hub from now on. Without `expires_s` it lasts as long as any may."""
        ...

    async def revoke_token(self, user: str, token_id: str) -> None:
        """End a token of `user`. Unknown is no error."""
        ...

    async def ensure_user(self, user: str) -> None:
        """Have the hub know this user."""
        ...
