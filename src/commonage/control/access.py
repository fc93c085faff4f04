"""Permissions of a principal, by its roles and the scopes of its token. Asked by use cases, queries, API and portal.

Roles come from the hub (an admin, a group named like a tenant), from the bindings of tenants and platform, and from
`domain.permissions`, which lists the permissions of each role. Nothing else decides about access.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from commonage.control.settings import ControlSettings
from commonage.domain.errors import Forbidden
from commonage.domain.nodes import Node
from commonage.domain.permissions import OWN, PERMISSIONS, Permission, Role, RoleBinding, SubjectKind
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.refusals import PermissionMissing
from commonage.domain.tenants import Tenant
from commonage.ports.store import Visible


def tenants(settings: ControlSettings) -> Sequence[Tenant]:
    """All tenants; an undeclared default tenant comes first."""
    declared = settings.rules.tenants
    if any(tenant.name == settings.default_tenant for tenant in declared):
        return declared
    return (Tenant(settings.default_tenant), *declared)


@dataclass(frozen=True, slots=True)
class Access:
    """The answers for one principal. A tenant of None stands for every tenant, or for the platform."""

    principal: Principal
    settings: ControlSettings
    platform: frozenset[Role]
    _roles: dict[str, frozenset[Role]] = field(default_factory=dict)
    _sites: dict[str, bool] = field(default_factory=dict)

    def roles_in(self, tenant: str) -> frozenset[Role]:
        """The roles in this tenant, without those of the platform."""
        found = self._roles.get(tenant)
        if found is None:
            user, groups = self.principal.name, self.principal.groups
            known = next((one for one in tenants(self.settings) if one.name == tenant), None)
            bound = set() if known is None else _bound(known.members, user, groups)
            if known is not None and (tenant in groups or tenant == self.settings.default_tenant):
                bound.add(Role.MEMBER)
            found = self._roles[tenant] = frozenset(bound)
        return found

    def all_roles(self) -> frozenset[tuple[str, Role]]:
        """All its roles, each with the tenant; "" for those of the platform."""
        there = [(one.name, role) for one in tenants(self.settings) for role in self.roles_in(one.name)]
        return frozenset(there) | {("", role) for role in self.platform}

    def may(self, permission: Permission, tenant: str | None = None) -> bool:
        return self.principal.holds(permission.scope) and self._is_permitted(permission, tenant)

    def need(self, permission: Permission, tenant: str | None = None) -> None:
        """Raise Forbidden unless a role permits it, and the token has the scope for it."""
        if not self._is_permitted(permission, tenant):
            roles = tuple(role.value for role, permitted in PERMISSIONS.items() if permission in permitted)
            missing = PermissionMissing(
                user=self.principal.name, permission=permission.value, tenant=tenant or "", roles=roles
            )
            raise Forbidden(missing, code="permission-missing")
        self.principal.need(permission.scope)

    def may_on(self, permission: Permission, owner: str, tenant: str) -> bool:
        """Whether it may be done with a workload of this owner, charged to this tenant."""
        if owner == self.principal.name and permission in OWN and self.principal.holds(OWN[permission]):
            return True
        return self.may(permission, tenant)

    def need_on(self, permission: Permission, owner: str, tenant: str) -> None:
        """Raise Forbidden unless it may be done with a workload of this owner, charged to this tenant."""
        if owner == self.principal.name and permission in OWN:
            self.principal.need(OWN[permission])
        else:
            self.need(permission, tenant)

    def tenants(self, permission: Permission) -> Sequence[Tenant]:
        """The tenants in which a role permits it; all, if a role of the platform does."""
        return [one for one in tenants(self.settings) if self._is_permitted(permission, one.name)]

    def own_tenants(self) -> Sequence[Tenant]:
        """The tenants in which the principal has a role of its own and may submit."""
        found = tenants(self.settings)
        return [one for one in found if any(role.permits(Permission.SUBMIT) for role in self.roles_in(one.name))]

    @property
    def visible(self) -> Visible | None:
        """The workloads and events that it may see, for the store; None: all."""
        if self.may(Permission.SEE_WORKLOADS):
            return None
        shared = tuple(one.name for one in self.tenants(Permission.SEE_TENANT))
        seen = tuple(one.name for one in self.tenants(Permission.SEE_WORKLOADS))
        return Visible(self.principal.name, seen, shared)

    @property
    def sees_others(self) -> bool:
        """Whether there are workloads of others that it may see."""
        visible = self.visible
        return visible is None or bool(visible.tenants)

    def sees_site(self, site: str) -> bool:
        """Whether the site belongs to the platform's roles, or to a tenant of the principal."""
        if site not in self._sites:
            own = self.tenants(Permission.SEE_TENANT)
            permitted = any(site in self.settings.rules.sites_of(one.name) for one in own)
            self._sites[site] = permitted or self.may(Permission.SEE_PLATFORM)
        return self._sites[site]

    def hidden_nodes(self, nodes: Iterable[Node]) -> frozenset[str]:
        """The labels of those nodes whose site it does not see."""
        return frozenset(node.key.label for node in nodes if not self.sees_site(node.site))

    def bindings(self, permission: Permission, tenant: str) -> Sequence[RoleBinding]:
        """The bindings that grant it in this tenant. Admins of the hub also have it."""
        known = next((one for one in tenants(self.settings) if one.name == tenant), None)
        bound = (*(() if known is None else known.members), *self.settings.platform_roles)
        return [one for one in bound if one.role.permits(permission)]

    def _is_permitted(self, permission: Permission, tenant: str | None) -> bool:
        if any(role.permits(permission) for role in self.platform):
            return True
        return tenant is not None and any(role.permits(permission) for role in self.roles_in(tenant))


def access_of(principal: Principal, settings: ControlSettings) -> Access:
    platform = _bound(settings.platform_roles, principal.name, principal.groups)
    if Scope.ADMIN in principal.scopes:
        platform.add(Role.ADMIN)
    return Access(principal, settings, frozenset(platform))


def _bound(bindings: Sequence[RoleBinding], user: str, groups: Collection[str]) -> set[Role]:
    return {
        one.role for one in bindings if (one.subject == user if one.kind is SubjectKind.USER else one.subject in groups)
    }
