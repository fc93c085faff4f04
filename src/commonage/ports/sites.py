"""Sites elsewhere: which may connect, and whether they do. Implemented in `commonage.link.sites`, used by the API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class SiteState(StrEnum):
    INVITED = "invited"
    """It has a token, and has not joined yet."""
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class SiteView:
    """One site. Times are unix seconds; None if unknown.

    `since`: connected since then; `last_seen` is known since the start of the server. `token_until`: the end of a
    token that was not used yet. `clock_offset_s`: the site's clock is this much behind the control plane's. `version`
    and `protocol` are of the site agent; they, `address` and `certificate_until` are known while it is connected.
    """

    name: str
    state: SiteState
    joined_at: float | None = None
    since: float | None = None
    last_seen: float | None = None
    token_until: float | None = None
    certificate_until: float | None = None
    address: str = ""
    version: str = ""
    protocol: int | None = None
    clock_offset_s: float | None = None


@dataclass(frozen=True, slots=True)
class SiteToken:
    """A token with which one machine may join as this site until `expires_at` (unix seconds).

    `command` is what users type on that machine; it contains no secret.
    """

    site: str
    token: str
    expires_at: float
    command: str


@dataclass(frozen=True, slots=True)
class JoinedSite:
    """The answer to a machine that joins as `site`: its certificate (PEM), its end, and the port of the link."""

    site: str
    certificate: str
    until: float
    port: int


class Sites(Protocol):
    """Every method may raise Unavailable, with nothing done, when the disk is full."""

    async def sites(self) -> Sequence[SiteView]: ...

    async def token(self, name: str, for_s: int) -> SiteToken:
        """Create a token, which replaces an earlier one of this site. Raises InvalidInput."""

    async def join(self, token: str, csr_pem: str) -> JoinedSite:
        """Sign the key of a machine that has this token. The same machine may repeat it.

        Raises Forbidden for a token that is not valid, InvalidInput.
        """

    async def revoke(self, name: str) -> None:
        """Revoke certificate and token of the site, and end its link. It stays listed. Raises NotFound."""

    async def remove(self, name: str) -> None:
        """As `revoke`, and forget the site. Raises NotFound."""
