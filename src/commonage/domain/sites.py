"""Sites as admins declare them, the choice among several, and sets of sites."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SitePolicy(StrEnum):
    """Selects the site if several could start a workload: by the order of the sites, by use, or by GPU price."""

    FIRST_FREE = "first-free"
    LEAST_USED = "least-used"
    CHEAPEST = "cheapest"


@dataclass(frozen=True, slots=True)
class Site:
    """`order`: sites with a lower one are preferred. `price_per_gpu_h` is compared by the site policy `cheapest`.

    `tenants`, if not empty, are those whose members may use it; a site without tenants is shared.
    """

    name: str
    title: str = ""
    price_per_gpu_h: float = 0.0
    order: int = 0
    tenants: tuple[str, ...] = ()

    def is_for(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants


@dataclass(frozen=True, slots=True)
class SiteSet:
    """The sites of these sorted names; `inverted`: all others, also those that are not known yet."""

    names: tuple[str, ...] = ()
    inverted: bool = False

    def __contains__(self, site: str) -> bool:
        return (site in self.names) is not self.inverted

    def __and__(self, other: SiteSet) -> SiteSet:
        if self.inverted and other.inverted:
            return SiteSet(tuple(sorted({*self.names, *other.names})), inverted=True)
        listed, rest = (other, self) if self.inverted else (self, other)
        return SiteSet(tuple(name for name in listed.names if name in rest))

    @property
    def is_everywhere(self) -> bool:
        return self.inverted and not self.names


EVERYWHERE = SiteSet(inverted=True)


def only(sites: tuple[str, ...]) -> SiteSet:
    """These sites; all, if there are none."""
    return SiteSet(tuple(sorted(set(sites)))) if sites else EVERYWHERE
