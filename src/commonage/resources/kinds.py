"""The kinds of platform resources. To add a kind: its form, a row here, and its part of `Platform`."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from commonage.domain.errors import InvalidInput, NotFound
from commonage.resources.classes import ClassEntry
from commonage.resources.fields import Form
from commonage.resources.scheduling import (
    PlatformRoleEntry,
    PricesEntry,
    PriorityClassEntry,
    SiteEntry,
    TenantEntry,
)
from commonage.resources.workloads import EnvironmentEntry, NodePoolEntry, ProfileEntry, VolumeEntry


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """`title` is its plural, as a heading. `setting` is the table of `commonage.toml` that it is imported from."""

    name: str
    form: type[Form]
    title: str
    setting: str = ""


KINDS = {
    one.name: one
    for one in (
        ResourceKind("PlatformRole", PlatformRoleEntry, "Roles on the platform", "platform_roles"),
        ResourceKind("Site", SiteEntry, "Sites"),
        ResourceKind("Prices", PricesEntry, "Prices", "prices"),
        ResourceKind("PriorityClass", PriorityClassEntry, "Priority classes", "priority_classes"),
        ResourceKind("Environment", EnvironmentEntry, "Environments", "environments"),
        ResourceKind("Tenant", TenantEntry, "Tenants", "tenants"),
        ResourceKind("Volume", VolumeEntry, "Volumes", "volumes"),
        ResourceKind("NodePool", NodePoolEntry, "Node pools", "node_pools"),
        ResourceKind("Profile", ProfileEntry, "Launch profiles"),
        ResourceKind("Class", ClassEntry, "Classes"),
    )
}
"""In the order in which they are shown and exported: a resource comes after those that it names."""
ORDER = {name: number for number, name in enumerate(KINDS)}


def kind_named(name: str) -> ResourceKind:
    """The kind of this exact name. Raises NotFound, which lists all kinds."""
    found = KINDS.get(name)
    if found is None:
        raise NotFound(
            f"there is no kind of resource {name[:60]!r}; there are: {', '.join(KINDS)}", code="kind-not-found"
        )
    return found


def known_kind(name: object) -> ResourceKind:
    """The kind that a document names. Raises InvalidInput with the closest name."""
    if name is None:
        raise InvalidInput(f"The kind is missing. Kinds: {', '.join(KINDS)}.", field="kind", code="unknown-kind")
    found = KINDS.get(name) if isinstance(name, str) else None
    if found is None:
        close = difflib.get_close_matches(str(name), list(KINDS), n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]}?" if close else f"Kinds: {', '.join(KINDS)}."
        raise InvalidInput(f"{str(name)[:60]!r} is no kind of resource. {hint}", field="kind", code="unknown-kind")
    return found
