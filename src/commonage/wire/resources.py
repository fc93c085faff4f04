"""Platform resources: documents, plans, and the resources as they are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from commonage.wire.reasons import ReasonOut
from commonage.wire.types import PlainText, Strict

Documents = Annotated[list[dict[str, Any]], Field(max_length=10_000)]


class ResourceOut(BaseModel):
    """A declared resource."""

    kind: str
    name: str
    version: int = Field(description="Grows with every change. The `ETag`, and `If-Match` of a change.")
    managed_by: str = Field(description="The source that declares it, such as `git:REPO@BRANCH`. Empty: none.")
    changed_by: str
    changed_at: float
    document: dict[str, Any] = Field(description="The resource as in a `commonage.yml` file.")


class ResourceList(BaseModel):
    """Declared resources in the order of their kinds."""

    items: list[ResourceOut]


class ResourceIn(Strict):
    """The fields of a resource, as in a `commonage.yml` file. `kind` and `name` may be left out."""

    document: dict[str, Any]


class PlanIn(Strict):
    """Documents to compare with the present resources."""

    documents: Documents
    managed_by: Annotated[PlainText, Field(max_length=512)] = Field(
        "", description="The source that declares them, and alone changes them from then on."
    )
    prune: bool = Field(False, description="Delete resources of the same source that the documents lack.")
    take_over: bool = Field(False, description="Change resources that another source manages, too.")


class ApplyIn(PlanIn):
    """Documents to put in force: all of them, or none if one is invalid."""

    revision: int | None = Field(None, description="The `revision` of the plan: refused if something changed since.")


class FieldChangeOut(BaseModel):
    """A changed field; null stands for its default."""

    path: str
    before: Any
    after: Any


class AffectedWorkloadOut(BaseModel):
    """A live workload that a change affects."""

    id: str
    name: str
    owner: str
    state: str


class AffectedOut(BaseModel):
    """Live workloads and people that a change affects, and how."""

    reason: ReasonOut
    workloads: list[AffectedWorkloadOut]
    people: list[str]


class ResourceChangeOut(BaseModel):
    """The change of one resource."""

    kind: str
    name: str
    action: str = Field(description="`create`, `change`, `delete` or `unchanged`.")
    version: int
    managed_by: str
    fields: list[FieldChangeOut]
    affected: list[AffectedOut]
    refusal: ReasonOut | None = Field(None, description="Why `apply` refuses this change, and all others with it.")


class PlanOut(BaseModel):
    """The difference between documents and the present resources."""

    revision: int = Field(description="Grows with every change of any resource.")
    changes: list[ResourceChangeOut]


class ExportOut(BaseModel):
    """All declared resources as documents."""

    revision: int
    documents: list[dict[str, Any]]


class GitSourceIn(Strict):
    """The state of a git branch, from its reconciler."""

    state: Literal["applied", "refused", "unreachable"]
    commit: Annotated[str, StringConstraints(pattern="^([0-9a-f]{40}|[0-9a-f]{64})?$")] = ""
    message: Annotated[str, Field(max_length=4000)] = Field("", description="Why it was refused, or what was changed.")


class GitSourceOut(BaseModel):
    """A git branch that manages resources."""

    name: str = Field(description="The `managed_by` of its resources, `git:REPO@BRANCH`.")
    state: str = Field(description="`applied`, `refused` (the resources are as before) or `unreachable`.")
    commit: str
    message: str
    at: float = Field(description="When it was last reported, in unix seconds.")


class GitSourceList(BaseModel):
    """Git branches that manage resources. After a restart of the server, each is listed once it reports again."""

    items: list[GitSourceOut]
