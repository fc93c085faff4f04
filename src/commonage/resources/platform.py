"""Derives the resources in force from those that are declared, and checks that they fit together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TypeVar

from commonage.domain.errors import InvalidInput
from commonage.domain.images import Environment
from commonage.domain.resources import Platform
from commonage.domain.workloads import Kind
from commonage.resources.classes import ClassEntry
from commonage.resources.documents import Forms
from commonage.resources.fields import Form
from commonage.resources.scheduling import (
    PlatformRoleEntry,
    PricesEntry,
    PriorityClassEntry,
    SiteEntry,
    TenantEntry,
)
from commonage.resources.workloads import EnvironmentEntry, NodePoolEntry, ProfileEntry, VolumeEntry

F = TypeVar("F", bound=Form)
T = TypeVar("T")

_UNKNOWN_SITE = " Let it join first (`commonage site token NAME`), or declare a resource of kind Site."


def platform_of(forms: Forms, builtin: Platform) -> Platform:
    """Those of `forms` together with the built-in ones, which a declared one of the same name replaces."""
    classes = _over(builtin.priority_classes, (one.priority_class() for one in _all(forms, PriorityClassEntry)))
    prices = [one.prices() for one in _all(forms, PricesEntry)]
    sites = _over(builtin.sites, (one.site() for one in _all(forms, SiteEntry)))
    return Platform(
        tenants=_over(builtin.tenants, (one.tenant() for one in _all(forms, TenantEntry))),
        priority_classes=tuple(sorted(classes, key=lambda one: (one.priority, one.name))),
        environments=_over(
            builtin.environments, (_with_server(one.entry(), builtin) for one in _all(forms, EnvironmentEntry))
        ),
        volumes=_over(builtin.volumes, (one.volume() for one in _all(forms, VolumeEntry))),
        node_pools=_over(builtin.node_pools, (one.node_pool() for one in _all(forms, NodePoolEntry)), _pool_name),
        sites=tuple(sorted(sites, key=lambda one: (one.order, one.name))),
        roles=(*builtin.roles, *(bound for one in _all(forms, PlatformRoleEntry) for bound in one.bindings())),
        classes=tuple(one.made() for one in _all(forms, ClassEntry)),
        profiles=tuple(
            sorted((one.profile() for one in _all(forms, ProfileEntry)), key=lambda one: (one.order, one.name))
        ),
        prices=prices[0] if prices else builtin.prices,
    )


def _with_server(environment: Environment, builtin: Platform) -> Environment:
    """One with kernels and no requirements gets those of the built-in environment for sessions."""
    if environment.requirements or not environment.kernels:
        return environment
    server = (one.requirements for one in builtin.environments if Kind.SESSION in one.kinds)
    return replace(environment, requirements=next(server, ()))


def check_references(forms: Forms, platform: Platform, sites: Collection[str], default_tenant: str) -> None:
    """Raises InvalidInput if a resource names another one that does not exist. `sites` are those with an engine."""
    environments = {one.name for one in platform.environments}
    known_sites = {*sites, *(one.name for one in platform.sites)}
    tenants = {default_tenant, *(one.name for one in platform.tenants)}
    for tenant in _all(forms, TenantEntry):
        # Images are pushed and removed while the server runs; their names have a slash.
        fixed = [name for name in tenant.environments if "/" not in name]
        _check(f"the tenant {tenant.name}: environments", fixed, environments)
        bounded = [name for name in tenant.per_environment if "/" not in name]
        _check(f"the tenant {tenant.name}: per_environment", bounded, environments)
        _check(f"the tenant {tenant.name}: sites", tenant.sites, known_sites, _UNKNOWN_SITE)
        _check_open(tenant, platform)
    for site in _all(forms, SiteEntry):
        _check(f"the site {site.name}: tenants", site.tenants, tenants)
    for environment in _all(forms, EnvironmentEntry):
        _check(
            f"the environment {environment.name}: tenant", [environment.tenant] if environment.tenant else [], tenants
        )
    for volume in _all(forms, VolumeEntry):
        _check(f"the volume {volume.name}: tenants", volume.tenants, tenants)
        _check(f"the volume {volume.name}: sites", volume.sites, known_sites, _UNKNOWN_SITE)
    for profile in _all(forms, ProfileEntry):
        named = [profile.environment] if profile.environment and "/" not in profile.environment else []
        _check(f"the profile {profile.name}: environment", named, environments)
        _check(f"the profile {profile.name}: tenants", profile.tenants, tenants)
    for one in _all(forms, ClassEntry):
        _check_class(one, platform, tenants, environments)


def _check_class(one: ClassEntry, platform: Platform, tenants: Collection[str], environments: Collection[str]) -> None:
    _check(f"the class {one.name}: tenant", [one.tenant], tenants)
    if one.environment is not None and "/" not in one.environment:
        _check(f"the class {one.name}: environment", [one.environment], environments)
    volumes = [volume.name for volume in platform.volumes if volume.is_for(one.tenant)]
    if one.material:
        _check(f"the class {one.name}: material", [one.material], volumes)


def _check_open(tenant: TenantEntry, platform: Platform) -> None:
    closed = [site.name for site in platform.sites if site.name in tenant.sites and not site.is_for(tenant.name)]
    if closed:
        raise InvalidInput(
            f"the tenant {tenant.name}: sites: {closed[0]!r} is a site of other tenants. Add {tenant.name} to the "
            "tenants of the site, or remove the site from the tenant.",
            code="unknown-reference",
        )


def _check(what: str, names: Iterable[str], known: Collection[str], remedy: str = "") -> None:
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        there = ", ".join(sorted(known)) or "none"
        raise InvalidInput(f"{what}: {missing!r} does not exist. Known: {there}.{remedy}", code="unknown-reference")


def _all(forms: Forms, kind: type[F]) -> list[F]:
    return [one for one in forms.values() if isinstance(one, kind)]


def _name(value: object) -> str:
    return str(value.name)  # type: ignore[attr-defined]  # every resource has a name


def _pool_name(pool: object) -> str:
    return str(pool.policy.name)  # type: ignore[attr-defined]  # only called with node pools


def _over(builtin: Iterable[T], declared: Iterable[T], name: Callable[[T], str] = _name) -> tuple[T, ...]:
    return tuple(({name(one): one for one in builtin} | {name(one): one for one in declared}).values())
