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


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the hub. `tokens` counts the API tokens that it made, `sessions` are the names of its servers."""

    name: str
    groups: tuple[str, ...] = ()
    admin: bool = False
    tokens: int = 0
    sessions: tuple[str, ...] = ()


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

    async def is_open(self, user: str, name: str) -> bool:
        """Whether that session's address leads into it. False for an unknown session. Raises Unavailable."""

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

    async def account(self, user: str) -> Account | None:
        """The hub's user of this name, with its tokens counted; None if there is none."""

    async def accounts(self) -> Sequence[Account]:
        """All users of the hub by name, without their tokens."""

    async def revoke_tokens(self, user: str) -> None:
        """Revoke all API tokens of a user, those of sign-ins included. An unknown user is no error."""

    async def rename_user(self, user: str, to: str) -> None:
        """Rename the hub's user. Repeating it is no error. Raises Conflict if `to` is another user, InvalidInput."""

    async def remove_user(self, user: str) -> None:
        """Remove the hub's user and its tokens. An unknown user is no error. Raises Conflict while a server stops."""

    async def group(self, name: str) -> Sequence[str] | None:
        """The users in the hub's group of this name; None if there is no such group."""

    async def rename_group(self, name: str, to: str) -> None:
        """Put all members of a group into a group of another name, and remove it. An unknown group is no error."""

    async def remove_group(self, name: str) -> None:
        """Remove a group of the hub, not its users. An unknown group is no error."""
