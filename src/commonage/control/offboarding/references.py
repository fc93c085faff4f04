"""Platform resources that name a user or a tenant, and their changes when it is renamed or removed. Pure."""

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

    `roles` are tenants whose roles change, `platform_roles` those on the platform. `volumes` and `sites` get other
    tenants. `deleted` are volumes that are deleted, and `opened` sites that would be open to all tenants.
    `environments` get another tenant, `deleted_environments` go with theirs. `rosters` are classes that change,
    `classes` those that are deleted.
    """

    documents: list[Document] = field(default_factory=list)
    gone: list[Key] = field(default_factory=list)
    managed: list[StoredResource] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    platform_roles: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    environments: list[str] = field(default_factory=list)
    deleted_environments: list[str] = field(default_factory=list)
    rosters: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    declares: bool = False  # the tenant itself

    @property
    def is_empty(self) -> bool:
        return not self.documents and not self.gone

    def items(self, wanted: Wanted) -> Iterator[Reason]:
        if self.declares and wanted.to:
            yield reasons.TenantRenamed(name=wanted.name, to=wanted.to)
        elif self.declares:
            yield reasons.TenantRemoved(name=wanted.name)
        yield from self._roles(wanted.to)
        yield from self._tenants(wanted.receiver)
        if self.rosters:
            yield reasons.ClassesChange(classes=tuple(self.rosters))
        if self.classes:
            yield reasons.ClassesDeleted(classes=tuple(self.classes))
        if self.deleted:
            yield reasons.VolumesDeleted(volumes=tuple(self.deleted))
        if self.environments:
            yield reasons.EnvironmentsFollow(environments=tuple(self.environments), receiver=wanted.receiver)
        if self.deleted_environments:
            yield reasons.EnvironmentsDeleted(environments=tuple(self.deleted_environments))

    def _roles(self, to: str) -> Iterator[Reason]:
        tenants, roles = tuple(self.roles), tuple(self.platform_roles)
        if tenants:
            yield reasons.RolesMove(tenants=tenants, receiver=to) if to else reasons.RolesEnd(tenants=tenants)
        if roles:
            yield reasons.PlatformRolesMove(roles=roles, receiver=to) if to else reasons.PlatformRolesEnd(roles=roles)

    def _tenants(self, to: str) -> Iterator[Reason]:
        volumes, sites = tuple(self.volumes), tuple(self.sites)
        if volumes:
            yield reasons.VolumesFollow(volumes=volumes, receiver=to) if to else reasons.VolumesShared(volumes=volumes)
        if sites:
            yield reasons.SitesFollow(sites=sites, receiver=to) if to else reasons.SitesShared(sites=sites)


def revision_of(present: Sequence[StoredResource], wanted: Wanted) -> Revision:
    """The changes of the resources that name the user or tenant. Repeated after they are made, it is empty."""
    revision = Revision()
    for one in present:
        if one.kind == "Tenant":
            _tenant(one, wanted, revision)
        elif one.kind == "PlatformRole":
            _platform_role(one, wanted, revision)
        elif one.kind == "Class":
            _class(one, wanted, revision)
        elif wanted.subject is Subject.TENANT and one.fields.get("tenant") == wanted.name:
            _environment(one, wanted, revision)
        elif wanted.subject is Subject.TENANT and wanted.name in one.fields.get("tenants", ()):
            if one.managed_by:
                revision.managed.append(one)
            {"Volume": _volume, "Site": _site}[one.kind](one, wanted, revision)
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


def _platform_role(one: StoredResource, wanted: Wanted, revision: Revision) -> None:
    field_name = f"{_MEMBER[wanted.subject]}s"
    before: list[str] = one.fields.get(field_name, [])
    if wanted.name not in before:
        return
    revision.platform_roles.append(one.name)
    if one.managed_by:
        revision.managed.append(one)
    revision.documents.append({**one.document, field_name: _replaced(before, wanted.name, wanted.to)})


def _class(one: StoredResource, wanted: Wanted, revision: Revision) -> None:
    """Students leave the roster or get their new name. A class goes with its tenant."""
    fields = dict(one.fields)
    if wanted.subject is Subject.USER:
        before: list[str] = fields.get("users", [])
        if wanted.name not in before:
            return
        fields["users"] = _replaced(before, wanted.name, wanted.to)
        fields.setdefault("seats", len(before))  # as many as before, also without any user
        revision.rosters.append(one.name)
    else:
        if fields["tenant"] != wanted.name and wanted.name not in fields.get("groups", ()):
            return
        fields["groups"] = _replaced(fields.get("groups", []), wanted.name, wanted.to)
        if fields["tenant"] == wanted.name and not wanted.receiver:
            revision.classes.append(one.name)
            revision.gone.append(one.key)
        else:
            if fields["tenant"] == wanted.name:
                fields["tenant"] = wanted.receiver
            revision.rosters.append(one.name)
    if one.managed_by:
        revision.managed.append(one)
    if one.key not in revision.gone:
        revision.documents.append({"kind": one.kind, "name": one.name, **fields})


def _site(one: StoredResource, wanted: Wanted, revision: Revision) -> None:
    left = _replaced(one.fields["tenants"], wanted.name, wanted.receiver)
    if left:
        revision.sites.append(one.name)
        revision.documents.append({**one.document, "tenants": left})
    else:
        revision.opened.append(one.name)


def _environment(one: StoredResource, wanted: Wanted, revision: Revision) -> None:
    """It keeps its name, as images do."""
    if one.managed_by:
        revision.managed.append(one)
    if wanted.receiver:
        revision.environments.append(one.name)
        revision.documents.append({**one.document, "tenant": wanted.receiver})
    else:
        revision.deleted_environments.append(one.name)
        revision.gone.append(one.key)


def _replaced(names: Sequence[str], name: str, by: str) -> list[str]:
    """With another name (empty: without one) in place of this, each once."""
    return [one for one in dict.fromkeys(by if one == name else one for one in names) if one]


def _volume(one: StoredResource, wanted: Wanted, revision: Revision) -> None:
    others = _replaced(one.fields["tenants"], wanted.name, wanted.receiver)
    if others:
        revision.volumes.append(one.name)
        revision.documents.append({**one.document, "tenants": others})
    else:  # without tenants, everybody could use it
        revision.deleted.append(one.name)
        revision.gone.append(one.key)
