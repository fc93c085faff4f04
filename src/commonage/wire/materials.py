"""Materials: volumes kept in sync with git repositories, and the caller's copies of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import PlainText, Strict


class MaterialCopyOut(BaseModel):
    """Your copy, in your home. Files are listed by their path in it, 200 of each kind at most."""

    commit: str = Field(description="The commit that it has.")
    is_current: bool = Field(description="It has the version in force.")
    at: float = Field(description="When it got this version, in unix seconds.")
    edited: list[str] = Field(description="Files that you edited. They are never overwritten.")
    offered: list[str] = Field(description="New versions of files that you edited, next to them.")
    deleted: list[str] = Field(description="Files that you deleted. A reset brings them back.")
    withdrawn: list[str] = Field(description="Files that are no longer in the repository. They stay.")
    blocked: list[str] = Field(description="Files that cannot be written: a link or folder is in their place.")
    error: ReasonOut | None = Field(description="Why the copy is not complete.")


class MaterialOut(BaseModel):
    """A material, its sync and your copy."""

    name: str
    title: str
    description: str
    state: Literal["waiting", "current", "failing"] = Field(
        description="`waiting`: not read yet; `failing`: the last sync failed, and the version before stays in force."
    )
    branch: str
    folder: str
    repository: str | None = Field(description="Address of the repository, for those who may manage the material.")
    commit: str | None = Field(description="The commit in force.")
    published_at: float | None = Field(description="When this content came into force, in unix seconds.")
    synced_at: float | None = Field(description="When the repository was last read, since the server started.")
    syncing: ReasonOut | None = Field(description="Step and progress of the running sync.")
    error: ReasonOut | None = Field(description="Why the last sync failed.")
    files: int = Field(description="Files of the version in force.")
    size_bytes: int
    skipped: int = Field(description="Links and submodules of the version, which are left out.")
    pending: int = Field(description="Running sessions that do not have the version in force yet.")
    place: str = Field(description="Your copy: a folder in your home.")
    may_manage: bool = Field(description="You may sync it and see its credentials.")
    mine: MaterialCopyOut | None = Field(description="Your copy. Null before your first session with the material.")


class MaterialList(BaseModel):
    """The materials of your tenants."""

    items: list[MaterialOut]


class ResetIn(Strict):
    """Files to reset."""

    files: Annotated[list[str], Field(max_length=1000)] = Field(
        default_factory=list, description="Paths in the material. Empty: all files."
    )


class MaterialTokenIn(Strict):
    """A token with which the platform reads the repository over HTTPS."""

    user: Annotated[PlainText, Field(max_length=128)] = Field("", description="User name; most servers accept any.")
    token: Annotated[str, Field(max_length=4096, pattern=r"^[\x21-\x7e]*$")] = Field(
        description="The token. Empty: remove it."
    )


class MaterialAccessOut(BaseModel):
    """Credentials of a material."""

    deploy_key: str = Field(description="Public SSH key. Add it to the repository as a deploy key, read-only.")
    has_token: bool = Field(description="A token for HTTPS is set. It is never shown.")
    webhook_path: str = Field(description="Address of the webhook, below that of the installation.")
    webhook_secret: str = Field(description="The webhook's secret (GitHub) or secret token (GitLab).")
