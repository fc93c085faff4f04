"""Tenants, their members and what these may use: combines the hub's groups with the tenants of the settings.

Called by submission and by the modules that show tenants. Stores nothing: groups come with each principal from the hub.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from commonage.control.settings import ControlSettings
from commonage.domain.errors import Forbidden, InvalidInput
from commonage.domain.images import Environment
from commonage.domain.principals import Principal
from commonage.domain.tenants import Tenant


def tenants(settings: ControlSettings) -> Sequence[Tenant]:
    """All tenants; an undeclared default tenant comes first."""
    declared = settings.rules.tenants
    if any(one.name == settings.default_tenant for one in declared):
        return declared
    return (Tenant(settings.default_tenant), *declared)


def tenants_of(groups: Collection[str], settings: ControlSettings) -> Sequence[Tenant]:
    """Tenants of a user in these groups: those named like a group, and the default tenant, which has all users."""
    return [one for one in tenants(settings) if one.name in groups or one.name == settings.default_tenant]


def tenant_of(asked: str | None, who: Principal, groups: Collection[str], settings: ControlSettings) -> Tenant:
    """The tenant for work of an owner in these groups, requested by `who`.

    The requested tenant; otherwise the owner's only tenant apart from the default one; otherwise the default. Admins
    may request any. Raises Forbidden or InvalidInput, which list the possible tenants.
    """
    mine = tenants_of(groups, settings)
    if asked is None:
        own = [one for one in mine if one.name != settings.default_tenant]
        return own[0] if len(own) == 1 else next(one for one in mine if one.name == settings.default_tenant)
    choice = tenants(settings) if who.is_admin else mine
    for one in choice:
        if one.name == asked:
            return one
    there = ", ".join(one.name for one in choice)
    if who.is_admin:
        raise InvalidInput(
            f"there is no tenant {asked[:60]!r}; there are: {there}", field="tenant", code="unknown-tenant"
        )
    raise Forbidden(f"{who.name} is no member of {asked[:60]!r}; there is to choose from: {there}", code="not-a-member")


def may_use(tenant: Tenant, environment: Environment) -> bool:
    """True if the tenant's members may use it: it is their own, or global and permitted by the tenant's list.

    In that list, an image's name stands for all of its kernels.
    """
    if environment.tenant is not None:
        return environment.tenant == tenant.name
    listed, name = tenant.environments, environment.name
    return not listed or name in listed or name.rpartition("/")[0] in listed


def within_sites(labels: tuple[tuple[str, str], ...], tenant: Tenant) -> tuple[tuple[str, str], ...]:
    """The labels of a request, restricted to the tenant's sites if it has some. Raises Forbidden for another site."""
    asked = dict(labels).get("site")
    if not tenant.sites or (asked is not None and set(asked.split("|")) <= set(tenant.sites)):
        return labels
    if asked is not None:
        raise Forbidden(f"members of {tenant.name} use the sites {', '.join(tenant.sites)}, not {asked!r}")
    return tuple(sorted([*labels, ("site", "|".join(tenant.sites))]))
