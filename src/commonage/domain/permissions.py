"""Roles and what they permit: the one table from which API, portal, streams and the reference page are made.

Roles of a tenant hold in that tenant, roles of the platform in every tenant. Users and groups are the hub's; only the
bindings of roles to their names are kept here. `control.access` answers questions with this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.principals import Scope


class Permission(StrEnum):
    """An action on the things of one tenant, or on the platform."""

    SEE_TENANT = "see-tenant"
    SUBMIT = "submit"
    SEE_WORKLOADS = "see-workloads"
    READ_OUTPUT = "read-output"
    STOP_WORKLOADS = "stop-workloads"
    ENTER_WORKLOADS = "enter-workloads"
    TEACH = "teach"
    MANAGE_IMAGES = "manage-images"
    WRITE_VOLUMES = "write-volumes"
    MANAGE_ENVIRONMENTS = "manage-environments"
    MANAGE_MATERIALS = "manage-materials"
    SEE_PLATFORM = "see-platform"
    DRAIN_NODES = "drain-nodes"
    SUBMIT_FOR_OTHERS = "submit-for-others"
    RAISE_PRIORITY = "raise-priority"
    RESERVE = "reserve"
    PUBLISH_IMAGES = "publish-images"
    MANAGE_PLATFORM = "manage-platform"
    ISSUE_TOKENS = "issue-tokens"

    @property
    def of_platform(self) -> bool:
        """True if it concerns the platform as a whole, so that no role of a tenant has it."""
        return self in _OF_PLATFORM

    @property
    def scope(self) -> Scope:
        """The scope that a token needs for it, except on the caller's own workloads (see `OWN`)."""
        return _SCOPES.get(self, Scope.MANAGE)


_P = Permission
_OF_PLATFORM = frozenset(
    {
        _P.SEE_PLATFORM,
        _P.DRAIN_NODES,
        _P.SUBMIT_FOR_OTHERS,
        _P.RAISE_PRIORITY,
        _P.RESERVE,
        _P.PUBLISH_IMAGES,
        _P.MANAGE_PLATFORM,
        _P.ISSUE_TOKENS,
    }
)
_SCOPES = {
    _P.SEE_TENANT: Scope.READ,
    _P.SEE_WORKLOADS: Scope.READ,
    _P.READ_OUTPUT: Scope.READ,
    _P.SEE_PLATFORM: Scope.READ,
    _P.SUBMIT: Scope.SUBMIT,
    _P.WRITE_VOLUMES: Scope.SUBMIT,
}

OWN: Mapping[Permission, Scope] = {
    _P.SEE_WORKLOADS: Scope.READ,
    _P.READ_OUTPUT: Scope.READ,
    _P.STOP_WORKLOADS: Scope.SUBMIT,
    _P.ENTER_WORKLOADS: Scope.SUBMIT,
    _P.MANAGE_IMAGES: Scope.SUBMIT,
    _P.ISSUE_TOKENS: Scope.TOKENS,
}
"""Permissions of all users on their own workloads, images and tokens, without a role, and the scopes they need."""


class Role(StrEnum):
    """A set of permissions. A subject may have several roles; what they permit adds up."""

    VIEWER = "viewer"
    MEMBER = "member"
    TEACHER = "teacher"
    MANAGER = "manager"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def of_platform(self) -> bool:
        return self in (Role.OPERATOR, Role.ADMIN)

    def permits(self, permission: Permission) -> bool:
        return permission in PERMISSIONS[self]


_VIEWER = frozenset({_P.SEE_TENANT, _P.SEE_WORKLOADS})
_MEMBER = frozenset({_P.SEE_TENANT, _P.SUBMIT})
_TEACHER = _VIEWER | _MEMBER | {_P.READ_OUTPUT, _P.STOP_WORKLOADS, _P.ENTER_WORKLOADS, _P.MANAGE_MATERIALS, _P.TEACH}

PERMISSIONS: Mapping[Role, frozenset[Permission]] = {
    Role.VIEWER: _VIEWER,
    Role.MEMBER: _MEMBER,
    Role.TEACHER: _TEACHER,
    Role.MANAGER: _TEACHER | {_P.MANAGE_IMAGES, _P.MANAGE_ENVIRONMENTS, _P.WRITE_VOLUMES},
    Role.OPERATOR: _VIEWER | {_P.READ_OUTPUT, _P.STOP_WORKLOADS, _P.SEE_PLATFORM, _P.DRAIN_NODES},
    Role.ADMIN: frozenset(Permission),
}


class SubjectKind(StrEnum):
    USER = "user"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class RoleBinding:
    """A role for a user, or for all users of a group, of the hub."""

    kind: SubjectKind
    subject: str
    role: Role
