"""The settings of scheduling: tenants and quotas, priorities, fair share, placement; and prices."""

from __future__ import annotations

from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, Field

from commonage.domain.sites import SitePolicy
from commonage.resources.fields import (
    UNIQUE_NAMES,
    NotNegative,
    Seconds,
    SecondsOrZero,
)
from commonage.resources.scheduling import BindingEntry, PricesEntry, PriorityClassEntry, TenantEntry
from commonage.scheduler.policies import registry
from commonage.server.settings.fields import (
    setting,
)
from commonage.wire.hub import docs_page


class PlatformBindingEntry(BindingEntry):
    role: Literal["operator", "admin"]


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("no such time zone; write it like Europe/Berlin or UTC") from None
    return name


def _policy(name: str) -> str:
    if name not in registry.POLICIES:
        raise ValueError("no such policy")
    return name


class SchedulingSettings(BaseModel):
    tenants: Annotated[tuple[TenantEntry, ...], UNIQUE_NAMES] = setting(
        (), f"Tenants that share the nodes, each with a weight and a quota ({docs_page('operate/tenants')})."
    )
    quota_time_zone: Annotated[str, AfterValidator(_time_zone)] = setting(
        "UTC",
        "Time zone in which the calendar months of GPU-hour quotas begin.",
        "a name of the IANA database, like Europe/Berlin",
    )
    platform_roles: tuple[PlatformBindingEntry, ...] = setting(
        (),
        "Roles in all tenants, `operator` or `admin`, each for a `user` or a `group` of JupyterHub "
        f"({docs_page('operate/roles')}). Admins of JupyterHub are admins without an entry.",
    )
    priority_classes: Annotated[tuple[PriorityClassEntry, ...], UNIQUE_NAMES] = setting(
        (),
        "Priority classes in addition to `scavenger`, `low`, `normal`, `high` and `urgent`. A class with one of these "
        "names replaces it.",
    )
    policy: Annotated[str, AfterValidator(_policy)] = setting(
        registry.DEFAULT,
        "Placement policy: chooses among several places in which a workload fits.",
        ", ".join(registry.POLICIES),
    )
    site_policy: SitePolicy = setting(
        SitePolicy.FIRST_FREE,
        "Chooses among several sites that could start a workload now, for tenants without a `site_policy`.",
        "first-free, least-used or cheapest",
    )
    half_life: Seconds = setting(
        7 * 86400,
        "Fair share: time after which past usage counts half. A shorter time forgets past usage sooner.",
        "a duration, like 7d",
    )
    entry_penalty: SecondsOrZero = setting(
        600,
        "Fair share: run time that is charged when a workload starts, so that many short workloads gain no advantage.",
    )
    age_credit: Annotated[NotNegative, Field(le=1000)] = setting(
        0.01,
        "Fair share: credit for an hour of waiting, in hours of usage of the whole cluster. Larger favours workloads "
        "that wait longer.",
        "a number from 0 to 1000",
    )
    guaranteed_runtime: SecondsOrZero = setting(600, "Time that a workload runs before it can be preempted.")
    head_of_queue_timeout: SecondsOrZero = setting(
        600,
        "How long the head of the queue may wait without a start estimate before a node is reserved for it.",
    )


class PriceSettings(BaseModel):
    """Prices for the usage of workloads. With 0 no cost is shown."""

    price_gpu_gib_hour: NotNegative = setting(0.0, "Price of 1 GiB of VRAM, allocated for an hour.")
    price_cpu_hour: NotNegative = setting(0.0, "Price of a core, allocated for an hour.")
    price_memory_gib_hour: NotNegative = setting(0.0, "Price of 1 GiB of memory, allocated for an hour.")
    currency: Annotated[str, Field(max_length=12)] = setting(
        "", "Currency of the prices, as it is shown.", "at most 12 characters, like EUR"
    )

    @property
    def prices(self) -> PricesEntry:
        return PricesEntry(
            gpu_gib_hour=self.price_gpu_gib_hour,
            cpu_hour=self.price_cpu_hour,
            memory_gib_hour=self.price_memory_gib_hour,
            currency=self.currency,
        )
