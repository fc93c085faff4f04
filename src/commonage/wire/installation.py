"""The installation: its properties, its health, and tokens of its users."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import PlainText, Strict

ScopeName = Literal[
    "custom:commonage:read",
    "custom:commonage:submit",
    "custom:commonage:manage",
    "custom:commonage:admin",
    "custom:commonage:tokens",
]


class InfoOut(BaseModel):
    """The installation, and the caller's identity in it."""

    name: str
    version: str
    user: str
    admin: bool
    platform_roles: list[str] = Field(
        default_factory=list, description="Your roles in all tenants: `operator`, `admin`."
    )
    scopes: list[str]
    token_expires_at: float | None = Field(
        None, description="When the token of this request expires, in unix seconds; null if never."
    )
    simulated_gpus: bool
    engines: list[str]
    counts: dict[str, int] = Field(description="Number of live workloads in each state.")
    queue_length: int
    notes: list[ReasonOut]


class HealthOut(BaseModel):
    """Health of the control plane."""

    status: str = Field(description="`ok`, or `stuck` if an iteration of a control loop takes too long.")
    version: str
    since_iteration_s: dict[str, float | None] = Field(
        description="Seconds since the last iteration of each control loop ended; null before the first."
    )
    stuck: list[str] = Field(description="Control loops with an iteration that takes too long.")


class TokenIn(Strict):
    """A new token for yourself, or for another user (admins only)."""

    note: Annotated[PlainText, Field(max_length=200)] = "made by the API"
    expires_s: int | None = Field(
        None, gt=0, le=2**31 - 1, description="Lifetime in seconds. Default: the longest allowed, see `expires_at`."
    )
    scopes: list[ScopeName] | None = Field(
        None, max_length=10, description="Some of your own scopes. Default: read and submit."
    )
    user: Annotated[PlainText, Field(min_length=1, max_length=128)] | None = Field(
        None, description="The user of the token; for admins only. Default: yourself."
    )


class TokenOut(BaseModel):
    """The new token; it is shown only once."""

    token: str
    user: str
    scopes: list[str]
    expires_at: float = Field(
        description="Unix seconds. Limited by the expiry of the token of the request and by `token_lifetime`."
    )
