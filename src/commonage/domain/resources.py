"""Platform resources: what admins declare about the installation, and its stored form.

`commonage.resources` reads and checks the documents; `control.resources` is the only writer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from commonage.domain.classes import Class
from commonage.domain.images import Environment
from commonage.domain.nodes import NodePoolPolicy
from commonage.domain.permissions import RoleBinding
from commonage.domain.profiles import Profile
from commonage.domain.sites import Site
from commonage.domain.tenants import PRIORITY_CLASSES, PriorityClass, Tenant
from commonage.domain.usage import Prices
from commonage.domain.volumes import Volume

Document = dict[str, Any]
"""`kind`, `name` and the fields of the kind, as in a `commonage.yml` file."""


@dataclass(frozen=True, slots=True)
class StoredResource:
    """One resource. `version` grows by one with each change, also over deletion: a deleted one has no `body`.

    `managed_by` is empty, or the source that declares it (`git:REPO@BRANCH`): then nothing else changes it. `body` is
    the JSON text of its fields, without kind and name.
    """

    kind: str
    name: str
    version: int
    body: str | None
    managed_by: str = ""
    changed_by: str = ""
    changed_at: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name

    @property
    def fields(self) -> Document:
        found: Document = {} if self.body is None else json.loads(self.body)
        return found

    @property
    def document(self) -> Document:
        return {"kind": self.kind, "name": self.name, **self.fields}


@dataclass(frozen=True, slots=True)
class NodePool:
    """A node pool, and what it asks a cloud for: see `clouds.Rental`. Credentials are never declared."""

    policy: NodePoolPolicy
    provider: str
    size: str
    image: str
    location: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Platform:
    """The resources in force, in the form that control reads."""

    tenants: tuple[Tenant, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = PRIORITY_CLASSES
    environments: tuple[Environment, ...] = ()
    volumes: tuple[Volume, ...] = ()
    node_pools: tuple[NodePool, ...] = ()
    sites: tuple[Site, ...] = ()
    roles: tuple[RoleBinding, ...] = ()
    classes: tuple[Class, ...] = ()
    profiles: tuple[Profile, ...] = ()
    prices: Prices = field(default_factory=Prices)


class Action(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """`path` is dotted. A value is None where the field has its default."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """`version` is the present one, 0 if it never existed. `fields` only of a change."""

    kind: str
    name: str
    action: Action
    version: int = 0
    managed_by: str = ""
    fields: tuple[FieldChange, ...] = ()


class GitState(StrEnum):
    """`refused`: the commit is invalid. `unreachable`: the repository cannot be read. Neither changes resources."""

    APPLIED = "applied"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class GitSource:
    """A git branch that manages resources, as its reconciler last reported. `name` is their `managed_by`."""

    name: str
    state: GitState
    commit: str = ""
    message: str = ""
    at: float = 0.0
