"""Live workloads and people that a change of a resource affects, with the reason. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from commonage.control.state.live_state import LiveState, data_of
from commonage.control.tenants import may_use
from commonage.domain.nodes import NodeKey
from commonage.domain.permissions import RoleBinding, SubjectKind
from commonage.domain.reasons import Reason
from commonage.domain.reasons import resources as reasons
from commonage.domain.reasons.classes import ClassGone
from commonage.domain.resources import Action, Platform, ResourceChange
from commonage.domain.tenants import Amounts, Tenant
from commonage.domain.workloads import Workload

QUOTA_RESOURCES = ("cpus_milli", "memory_mib", "gpu_milli", "vram_mib")


@dataclass(frozen=True, slots=True)
class Affected:
    """`members`: users and groups whose roles change, in addition to the owners of the workloads."""

    reason: Reason
    workloads: tuple[Workload, ...] = ()
    members: tuple[str, ...] = ()

    @property
    def people(self) -> tuple[str, ...]:
        return tuple(sorted({*self.members, *(workload.spec.owner for workload in self.workloads)}))


@dataclass(frozen=True, slots=True)
class Impact:
    """Computes the effect of changes that lead from `before` to `after`."""

    live_state: LiveState
    before: Platform
    after: Platform

    def of(self, change: ResourceChange) -> list[Affected]:
        """The people and workloads that the change affects. A new resource affects only those who get a role by it."""
        if change.action is Action.UNCHANGED:
            return []
        find = None if change.action is Action.CREATE else _FINDERS.get(change.kind)
        found = [] if find is None else [Affected(reason, tuple(some)) for reason, some in find(self, change)]
        if change.kind == "Tenant":
            found.append(self._members(change.name))
        if change.kind == "PlatformRole":
            found.append(self._platform_role(change.name))
        return [one for one in found if one.people]

    def _members(self, tenant: str) -> Affected:
        """Users and groups with another role than before."""
        before, after = (
            {one for known in platform.tenants if known.name == tenant for one in known.members}
            for platform in (self.before, self.after)
        )
        return Affected(reasons.RolesDiffer(tenant=tenant), members=_subjects(before ^ after))

    def _platform_role(self, role: str) -> Affected:
        before, after = ({one for one in platform.roles if one.role == role} for platform in (self.before, self.after))
        return Affected(reasons.PlatformRoleDiffers(role=role), members=_subjects(before ^ after))

    def _where(self, matches: Callable[[Workload], bool]) -> list[Workload]:
        return sorted((one for one in self.live_state if matches(one)), key=lambda one: one.id)

    def _tenant(self, change: ResourceChange) -> Iterator[tuple[Reason, Iterable[Workload]]]:
        work = self._where(lambda one: one.spec.tenant == change.name)
        after = next((one for one in self.after.tenants if one.name == change.name), None)
        if after is None:
            yield reasons.TenantGone(tenant=change.name), work
            return
        yield from self._sites(after, work)
        environments = {one.name: one for one in self.before.environments}
        for name in sorted({one.spec.environment for one in work}):
            known = environments.get(name)
            if known is not None and not may_use(after, known):
                using = [one for one in work if one.spec.environment == name]
                yield reasons.EnvironmentNotAllowed(tenant=after.name, environment=name), using
        yield from self._quota(after, work)

    def _sites(self, tenant: Tenant, work: list[Workload]) -> Iterator[tuple[Reason, Iterable[Workload]]]:
        by_site: dict[str, list[Workload]] = {}
        for workload in work:
            site = _site_of(workload)
            if site and tenant.sites and site not in tenant.sites:
                by_site.setdefault(site, []).append(workload)
        for site, workloads in sorted(by_site.items()):
            yield reasons.SiteNotAllowed(tenant=tenant.name, site=site), workloads

    def _quota(self, tenant: Tenant, work: list[Workload]) -> Iterator[tuple[Reason, Iterable[Workload]]]:
        holding = [one for one in work if one.attempt is not None and not one.state.waits]
        total = Amounts()
        for workload in holding:
            if workload.attempt is not None:
                total = total.plus(Amounts.of(workload.attempt.allocation))
        before = next((one for one in self.before.tenants if one.name == tenant.name), Tenant(tenant.name))
        for name in QUOTA_RESOURCES:
            quota, was = getattr(tenant.quota.nominal, name), getattr(before.quota.nominal, name)
            allocated = getattr(total, name)
            if quota is not None and (was is None or quota < was) and quota < allocated:
                reason = reasons.QuotaBelowAllocation(
                    tenant=tenant.name, resource=name, quota=quota, allocated=allocated
                )
                yield reason, holding

    def _environment(self, change: ResourceChange) -> Iterator[tuple[Reason, Iterable[Workload]]]:
        using = self._where(lambda one: one.spec.environment == change.name)
        if any(one.name == change.name for one in self.after.environments):  # changed, or a built-in one is back
            yield reasons.EnvironmentDiffers(environment=change.name), using
        else:
            yield reasons.EnvironmentGone(environment=change.name), using

    def _volume(self, change: ResourceChange) -> Iterator[tuple[Reason, Iterable[Workload]]]:
        using = self._where(lambda one: change.name in data_of(one.spec))
        gone = change.action is Action.DELETE
        reason = reasons.VolumeGone(volume=change.name) if gone else reasons.VolumeDiffers(volume=change.name)
        yield reason, using

    def _node_pool(self, change: ResourceChange) -> Iterator[tuple[Reason, Iterable[Workload]]]:
        if change.action is Action.DELETE:
            pool = next(one.policy for one in self.before.node_pools if one.policy.name == change.name)
            nodes = self.live_state.nodes.values()  # a label of the name is what the node says
            there = {one.key for one in nodes if one.site == pool.site and pool.owns(one.name)}
            on_them = self._where(lambda one: _node_of(one) in there)
            yield reasons.NodePoolGone(node_pool=change.name), on_them

    def _class(self, change: ResourceChange) -> Iterator[tuple[Reason, Iterable[Workload]]]:
        before = next((one for one in self.before.classes if one.name == change.name), None)
        if change.action is Action.DELETE and before is not None:
            sessions = self._where(lambda one: before.has(one.spec))
            yield ClassGone(class_name=change.name), sessions

    def _site(self, change: ResourceChange) -> Iterator[tuple[Reason, Iterable[Workload]]]:
        there = self._where(lambda one: _site_of(one) == change.name)
        if change.action is Action.DELETE:
            yield reasons.SiteGone(site=change.name), there
            return
        after = next(one for one in self.after.sites if one.name == change.name)
        for tenant in sorted({one.spec.tenant for one in there}):
            if not after.is_for(tenant):
                excluded = [one for one in there if one.spec.tenant == tenant]
                yield reasons.SiteNotAllowed(tenant=tenant, site=change.name), excluded


def _subjects(bindings: Iterable[RoleBinding]) -> tuple[str, ...]:
    return tuple(sorted({f"group {one.subject}" if one.kind is SubjectKind.GROUP else one.subject for one in bindings}))


def _node_of(workload: Workload) -> NodeKey | None:
    return workload.attempt.allocation.node_key if workload.attempt is not None and not workload.state.waits else None


def _site_of(workload: Workload) -> str:
    node = _node_of(workload)
    return "" if node is None else node.site


_Finder = Callable[[Impact, ResourceChange], Iterator[tuple[Reason, Iterable[Workload]]]]
_FINDERS: dict[str, _Finder] = {
    "Tenant": Impact._tenant,
    "Environment": Impact._environment,
    "Volume": Impact._volume,
    "NodePool": Impact._node_pool,
    "Site": Impact._site,
    "Class": Impact._class,
}
