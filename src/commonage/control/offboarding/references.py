"""Platform resources that name a user or a tenant, and what they become when it is renamed or removed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commonage.domain.offboarding import Change, Subject, Wanted
from commonage.domain.reasons import Reason
from commonage.domain.reasons import offboarding as reasons
from commonage.domain.resources import Document, StoredResource

Key = tuple[str, str]
_MEMBER = {Subject.USER: "user", Subject.TENANT: "group"}  # the hub has a group of the tenant's name


@dataclass(slots=True)
class Revision:
    """`documents` are the changed resources, `gone` those to delete; `managed` are the ones of them in git.

    `roles` are tenants whose roles change. `following`, `shared` and `deleted` are volumes, by what happens to them.
    """

    documents: list[Document] = field(default_factory=list)
    gone: list[Key] = field(default_factory=list)
    managed: list[StoredResource] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    following: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    declares: bool = False  # the tenant itself

    @property
    def is_empty(self) -> bool:
        return not self.documents and not self.gone

    def items(self, wanted: Wanted) -> Iterator[Reason]:
        if self.declares and wanted.change is Change.RENAME:
            yield reasons.TenantRenamed(name=wanted.name, to=wanted.to)
        elif self.declares:
            yield reasons.TenantRemoved(name=wanted.name)
        if self.roles and wanted.change is Change.RENAME:
            yield reasons.RolesMove(tenants=tuple(self.roles), receiver=wanted.to)
        elif self.roles:
            yield reasons.RolesEnd(tenants=tuple(self.roles))
        if self.following:
            yield reasons.VolumesFollow(volumes=tuple(self.following), receiver=wanted.receiver)
        if self.shared:
            yield reasons.VolumesShared(volumes=tuple(self.shared))
        if self.deleted:
            yield reasons.VolumesDeleted(volumes=tuple(self.deleted))


def revision_of(present: Sequence[StoredResource], wanted: Wanted) -> Revision:
    """The changes of the resources that name the user or tenant. Repeated after they are made, it is empty."""
    revision = Revision()
    for one in present:
        if one.kind == "Tenant":
            _tenant(one, wanted, revision)
        elif one.kind == "Volume" and wanted.subject is Subject.TENANT:
            _volume(one, wanted, revision)
    return revision


def _tenant(one: StoredResource, wanted: Wanted, revision: Revision) -> None:
    fields = dict(one.fields)
    before: list[Mapping[str, Any]] = fields.get("members", [])
    kind, after = _MEMBER[wanted.subject], list[Mapping[str, Any]]()
    for member in before:
        if member.get(kind) != wanted.name:
            after.append(member)
        elif wanted.change is Change.RENAME:
            after.append({**member, kind: wanted.to})
    fields["members"] = after
    itself = wanted.subject is Subject.TENANT and one.name == wanted.name
    if before != after and not (itself and wanted.change is Change.REMOVE):
        revision.roles.append(one.name)
    if itself:
        revision.declares = True
        revision.gone.append(one.key)
        if wanted.change is Change.RENAME:
            revision.documents.append({"kind": one.kind, "name": wanted.to, **fields})
    elif before != after:
        revision.documents.append({"kind": one.kind, "name": one.name, **fields})
    if (itself or before != after) and one.managed_by:
        revision.managed.append(one)


def _volume(one: StoredResource, wanted: Wanted, revision: Revision) -> None:
    tenants: list[str] = one.fields.get("tenants", [])
    if wanted.name not in tenants:
        return
    others = [name for name in tenants if name != wanted.name]
    if wanted.receiver:
        others = list(dict.fromkeys(wanted.receiver if name == wanted.name else name for name in tenants))
    if one.managed_by:
        revision.managed.append(one)
    if others:
        (revision.following if wanted.receiver else revision.shared).append(one.name)
        revision.documents.append({**one.document, "tenants": others})
    else:  # without tenants, everybody could use it
        revision.deleted.append(one.name)
        revision.gone.append(one.key)
