"""Visitors of sessions: users who open the session of another user."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from commonage.wire.types import Name, Strict


class OpenedOut(BaseModel):
    """The address of a session that the caller may open now."""

    url: str


class VisitorIn(Strict):
    """A user whom JupyterHub has let into the session of somebody else."""

    name: Name
    groups: Annotated[list[Name], Field(max_length=10_000)] = Field(default_factory=list)
    admin: bool = False


class VisitorsIn(Strict):
    """The visitors of a session, as JupyterHub knows them now."""

    visitors: Annotated[list[VisitorIn], Field(max_length=10_000)]


class VisitorsOut(BaseModel):
    """Names of the visitors who may stay."""

    names: list[str]
