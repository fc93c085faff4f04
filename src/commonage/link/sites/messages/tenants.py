"""Messages by which a site keeps the objects of each tenant, such as its namespace."""

from __future__ import annotations

from dataclasses import dataclass

from commonage.domain.reasons import Reason
from commonage.domain.tenants import Quota
from commonage.link.messages import RequestType


@dataclass(frozen=True, slots=True)
class SiteTenant:
    """No more of a tenant than the site needs."""

    name: str
    quota: Quota


@dataclass(frozen=True, slots=True)
class SiteTenants:
    """All tenants that may use the site."""

    tenants: tuple[SiteTenant, ...] = ()


@dataclass(frozen=True, slots=True)
class TenantsWaiting:
    """The tenants whose work cannot start at the site yet, and why."""

    tenants: tuple[tuple[str, Reason], ...] = ()


KEEP_TENANTS = RequestType("keep-tenants", SiteTenants, TenantsWaiting, 120.0)
"""From the control plane, to sites that report `keeps_tenants`."""
