"""Sites elsewhere, as clients see them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from commonage.wire.types import Strict


class SiteOut(BaseModel):
    """A site that connects over the site link, and its link. Times are unix seconds."""

    name: str
    state: Literal["invited", "connected", "disconnected", "revoked"] = Field(
        description="`invited`: it has a token, and has not joined yet."
    )
    joined_at: float | None
    since: float | None = Field(description="Connected since then.")
    last_seen: float | None = Field(description="Last time it was connected, since the server started.")
    token_until: float | None = Field(description="End of a token that was not used yet.")
    certificate_until: float | None = Field(description="End of its certificate, while connected.")
    address: str = Field(description="Address that it connects from.")
    version: str = Field(description="Version of its site agent.")
    protocol: int | None = Field(description="Version of the protocol that both sides speak.")
    clock_offset_s: float | None = Field(description="The site's clock is this much behind, in seconds.")


class SiteList(BaseModel):
    items: list[SiteOut]


class SiteTokenIn(Strict):
    """Properties of the new token."""

    for_s: Annotated[int, Field(ge=60, le=604_800, description="Lifetime in seconds.")] = 3600


class SiteTokenOut(BaseModel):
    """A token with which one machine may join as this site; it is shown only once."""

    site: str
    token: str
    expires_at: float
    command: str = Field(description="Command for the machine that joins. It reads the token.")
