"""Users, and the renaming and removal of users and tenants."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import PlainText, Strict

Name = Annotated[PlainText, Field(min_length=1, max_length=128)]
OtherName = Annotated[PlainText, Field(max_length=128)]


class WantedOut(BaseModel):
    """The renaming or removal of a user or a tenant, as it was asked for."""

    subject: str = Field(description="`user` or `tenant`.")
    change: str = Field(description="`rename` or `remove`.")
    name: str
    to: str = Field(description="The new name of a rename.")
    heir: str = Field(description="The user or tenant that gets what is handed over.")
    workloads: str = Field(description="`stop`, `finish` or `hand-over`.")
    data: str = Field(description="`hand-over`, `archive`, `keep` or `delete`.")
    keep_account: bool


class OffboardingPlanIn(Strict):
    """A user or a tenant to rename or to remove."""

    subject: Literal["user", "tenant"]
    change: Literal["rename", "remove"]
    name: Name
    to: OtherName = Field("", description="The new name. Only of a rename.")
    heir: OtherName = Field("", description="The user or tenant that gets what is handed over. Only of a removal.")
    workloads: Literal["stop", "finish", "hand-over"] = Field(
        "stop",
        description="Live jobs and services stop now, end by themselves, or are requeued for the new name or the heir. "
        "Sessions always stop. Of a rename, what waits keeps its place in the queue.",
    )
    data: Literal["hand-over", "archive", "keep", "delete"] = Field(
        "archive", description="The home and folders of volumes of a removed user or tenant. A rename moves them."
    )
    keep_account: bool = Field(False, description="Leave the user, or the tenant's group, in JupyterHub as it is.")


class OffboardingIn(OffboardingPlanIn):
    """A renaming or removal to carry out as planned."""

    version: str = Field(max_length=64, description="The `version` of the plan: refused if something changed since.")


class OffboardingPlanOut(BaseModel):
    """The steps of a renaming or removal, in order. Nothing is done while there are obstacles."""

    wanted: WantedOut
    version: str
    items: list[ReasonOut]
    obstacles: list[ReasonOut]


class OffboardingOut(BaseModel):
    """A renaming or removal. Its steps follow each other by themselves, also after a restart of the server."""

    id: str
    wanted: WantedOut
    version: str = Field(description="That of the plan.")
    by: str
    at: float
    done: list[str] = Field(description="The steps that are done.")
    next_step: str | None
    last_error: str = Field(description="Why the next step could not be done the last time. It is repeated.")
    ended_at: float | None = Field(description="When the last step was done. Null: not yet.")
    released_at: float | None = Field(description="When an admin permitted others to take the name. Null: retired.")
    released_by: str


class OffboardingList(BaseModel):
    """Renamings and removals, newest first."""

    items: list[OffboardingOut]


class UserOut(BaseModel):
    """A user of JupyterHub, or one that owns work or whose name is retired."""

    name: str
    admin: bool
    in_hub: bool = Field(description="Whether JupyterHub has this user.")
    groups: list[str]
    roles: list[str] = Field(description="Roles on the platform, then roles in tenants as `TENANT: ROLE`.")
    live: int = Field(description="Workloads that have not ended.")
    home_mib: int | None = Field(description="Size of the home, null before it is measured.")
    offboarding: OffboardingOut | None = Field(description="The change that gives this name up, or takes it.")


class UserList(BaseModel):
    """Users by name."""

    items: list[UserOut]
