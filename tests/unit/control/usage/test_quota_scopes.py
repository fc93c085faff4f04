"""Every resource of a quota in every scope: bounded, shown and told, or refused as a bound that makes no sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError
from tests.unit.control.world import ANN, Site, job, submit

from commonage.control.control import Control
from commonage.domain.errors import TooMany
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason, refusals, waiting
from commonage.domain.reasons.notes import QuotaUse
from commonage.domain.reasons.waiting import QuotaScope, Resource
from commonage.domain.requests import parse_gpus
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.volumes import Volume
from commonage.ports.homes import Enforcement, FolderSize
from commonage.resources.scheduling import TenantEntry
from commonage.testing import factories

pytestmark = pytest.mark.anyio
MEMBER = Principal("ann", ANN.scopes, ("lab",))
ASK: Mapping[str, Any] = {"cpus_milli": 1000, "memory_mib": 1024, "gpu": parse_gpus("1")}
BOUNDS: Mapping[str, tuple[object, Resource]] = {
    "cpus": (1, Resource.CPU),
    "memory": ("1GiB", Resource.MEMORY),
    "gpus": (1, Resource.GPU),
    "vram": ("24GiB", Resource.GPU_MEMORY),
    "running": (1, Resource.RUNNING),
    "queued": (1, Resource.QUEUED),
    "storage": ("1GiB", Resource.STORAGE),
    "gpu_hours_month": (0.01, Resource.GPU_HOURS),
}
LENT = ("cpus", "memory", "gpus", "vram")
SCOPES = {
    QuotaScope.TENANT: ("nominal", "lab", set(BOUNDS)),
    QuotaScope.USER: ("per_user", "ann", set(BOUNDS)),
    QuotaScope.ENVIRONMENT: ("per_environment", "base", set(BOUNDS) - {"storage"}),
    QuotaScope.MODEL: ("per_model", "A30", {"gpus", "vram", "running", "gpu_hours_month"}),
}
ALL = list(product(SCOPES, BOUNDS))


class Stored:
    """2 GiB in the home of ann, and in her folder of the tenant."""

    async def measure(self) -> Mapping[str, int]:
        return {"ann": 2048}

    async def measure_volumes(self, _volumes: Sequence[Volume]) -> Sequence[FolderSize]:
        return [FolderSize("labs", "lab", "ann", 2048)]

    async def enforce(self, *_: object) -> Enforcement:
        return Enforcement()


def declared(scope: QuotaScope, bound: str) -> Tenant:
    field, name, _ = SCOPES[scope]
    bounds: dict[str, Any] = {bound: BOUNDS[bound][0]}
    entry: dict[str, Any] = {"name": "lab", field: bounds}
    if scope in (QuotaScope.ENVIRONMENT, QuotaScope.MODEL):
        entry[field] = {name: bounds}
    elif scope is QuotaScope.TENANT and bound in LENT:
        entry["borrowing"] = {bound: 0}
    return TenantEntry.model_validate(entry).tenant()


@pytest.mark.parametrize(("scope", "bound"), [one for one in ALL if one[1] not in SCOPES[one[0]][2]])
def test_bound_without_a_meaning_is_refused(scope: QuotaScope, bound: str) -> None:
    field, name, allowed = SCOPES[scope]
    with pytest.raises(ValidationError) as raised:
        declared(scope, bound)
    (error,) = raised.value.errors()
    assert f"{field}.{name}.{bound}: it bounds " in error["msg"]
    assert set(error["msg"].partition("it bounds ")[2].split(", ")) == allowed


def whom(reason: Reason) -> tuple[QuotaScope, str, Resource]:
    """The scope, name and resource of the bound that a reason names."""
    match reason:
        case waiting.QuotaExceeded():
            return QuotaScope.TENANT, reason.tenant, reason.resource
        case waiting.UserQuotaExceeded():
            return QuotaScope.USER, reason.user, reason.resource
        case waiting.QuotaLimitReached():
            return reason.scope, reason.name, reason.resource
        case waiting.GpuHoursSpent():
            return reason.scope, reason.name, Resource.GPU_HOURS
        case refusals.TooManyQueued():
            return reason.scope, reason.name, Resource.QUEUED
        case refusals.StorageQuotaExceeded():
            return reason.scope, reason.name, Resource.STORAGE
    raise AssertionError(f"{reason} names no bound")


async def refused(site: Site, control: Control, bound: str) -> Reason:
    """Use the bound up; return the reason of the next workload, which its dry run gives, too."""
    if bound == "storage":
        await site.clock.advance(10)  # the first measurement
    else:
        await submit(control, job(**ASK), MEMBER)
        await site.clock.advance(40)
    if bound == "queued":
        await submit(control, job(**ASK), MEMBER)
        await site.clock.advance(1)
    if bound in ("queued", "storage"):
        for asking in (control.workloads.dry_run(MEMBER, job(**ASK)), submit(control, job(**ASK), MEMBER)):
            with pytest.raises(TooMany) as raised:
                await asking
        assert raised.value.reason is not None
        return raised.value.reason
    (tried,) = (await control.workloads.dry_run(MEMBER, job(**ASK))).reasons
    waits = await submit(control, job(**ASK), MEMBER)
    await site.clock.advance(1)
    found = control.queries.details(site.there(waits)).reason
    assert whom(tried) == whom(found)
    return found


@pytest.mark.parametrize(("scope", "bound"), [one for one in ALL if one[1] in SCOPES[one[0]][2]])
async def test_bound_is_enforced_shown_and_told(scope: QuotaScope, bound: str) -> None:
    _, name, _ = SCOPES[scope]
    gpus = 1 if bound == "queued" else 4
    site = Site([factories.node("gpu-1", gpus)], rules=Rules((declared(scope, bound),)))
    site.homes = Stored()
    async with site.open() as control:
        assert whom(await refused(site, control, bound)) == (scope, name, BOUNDS[bound][1])
        (use,) = control.quota_uses.visible(MEMBER, "lab")
        assert (use.scope, use.name, use.resource, use.remains, use.percent) == (
            scope, name, BOUNDS[bound][1], 0, 100,
        )  # fmt: skip
        await control.quota_notices.check()
        await control.quota_notices.check()
        told = [one for one in await control.store.events() if isinstance(one.reason, QuotaUse)]
        assert [one.reason.percent for one in told if isinstance(one.reason, QuotaUse)][-1] == 100
        assert len({one.reason.percent // 100 for one in told if isinstance(one.reason, QuotaUse)}) == len(told)
        assert {(one.owner, one.tenant) for one in told} == {("ann" if scope is QuotaScope.USER else None, "lab")}
