"""Builds start requests for engines from a workload, its allocation, environment and share variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.settings import ControlSettings
from commonage.control.workloads.bundles import UserBundles
from commonage.domain.builds import ORDER
from commonage.domain.errors import EngineFailure, Forbidden, InvalidInput
from commonage.domain.nodes import LOCAL_SITE, Allocation
from commonage.domain.statuses import StartRequest
from commonage.domain.volumes import Mount, mounts_of, volume_near
from commonage.domain.workloads import Attempt, Kind, Spec, State, Workload
from commonage.files.kernels import VARIABLE, packages_folder
from commonage.ports.devices import Devices


@dataclass(frozen=True, slots=True)
class StartRequests:
    """`gang_of` returns all members of a workload's gang, by their rank. `settings` has the volumes in force."""

    catalogue: Catalogue
    bundles: UserBundles
    devices: Devices
    gang_of: Callable[[Workload], Sequence[Workload]]
    settings: ControlSettings

    def of(self, workload: Workload) -> StartRequest:
        """Build the request of a workload with an allocation. Raises EngineFailure; NotFound if its bundle is gone."""
        return self._of(workload, with_shares=True)

    def template(self, spec: Spec, site: str) -> StartRequest:
        """The request of a job that starts once at this site, without ids, allocation and share variables.

        Raises like `of`.
        """
        allocation = Allocation("", site, "", spec.request.cpus_milli, spec.request.memory_mib, (), 0.0)
        attempt = Attempt("", "", 1, State.STARTING, allocation)
        return self._of(Workload("", spec, State.STARTING, 0.0, 0.0, attempt=attempt), with_shares=False)

    def _of(self, workload: Workload, *, with_shares: bool) -> StartRequest:
        spec, attempt = workload.spec, workload.attempt
        environment = self.catalogue.get(spec.environment)
        if environment is None or attempt is None:
            raise EngineFailure(self.catalogue.shortfall(spec.environment) or "it has not been given a node")
        variables = {
            **dict(environment.variables),
            **self._own_packages(spec),
            "COMMONAGE_WORKLOAD_ID": workload.id,
            "COMMONAGE_ATTEMPT": str(attempt.number),
            "COMMONAGE_CPUS": f"{spec.request.cpus_milli / 1000:g}",
            "COMMONAGE_MEMORY_MIB": str(spec.request.memory_mib),
            **(self.devices.environment(attempt.allocation.shares) if with_shares else {}),
            **dict(spec.variables),
            **({ORDER: spec.build} if spec.build else {}),
        }
        if workload.array_index is not None:
            variables["COMMONAGE_ARRAY_INDEX"] = str(workload.array_index)
            variables["COMMONAGE_ARRAY_SIZE"] = str(spec.array_size)
            variables["COMMONAGE_ARRAY_ID"] = spec.array_id or workload.id
        gang = self._gang(workload) if spec.gang else ()
        if gang:
            variables["COMMONAGE_GANG_SIZE"] = str(len(gang))
            variables["COMMONAGE_GANG_RANK"] = str(workload.array_index or 0)
            variables["COMMONAGE_GANG_NODES"] = ",".join(one.allocation.node for one in gang)
        archive = self.bundles.path(spec)
        return StartRequest(
            attempt_id=attempt.id,
            workload_id=workload.id,
            kind=spec.kind,
            name=spec.name,
            owner=spec.owner,
            tenant=spec.tenant,
            environment=environment,
            command=spec.command,
            allocation=attempt.allocation,
            variables=tuple(variables.items()),
            secrets=spec.secrets,
            wants_port=spec.kind is not Kind.JOB,
            bundle_path=None if archive is None else str(archive),
            mounts=self._mounts(spec, attempt.allocation.site),
            cron_job=spec.cron_job or "",
            port=spec.port,
            gang=tuple(one.id for one in gang),
            home_mib=self.settings.rules.tenant(spec.tenant).quota.per_user.storage_mib,
        )

    def _own_packages(self, spec: Spec) -> dict[str, str]:
        """For sessions, the folder of the packages that their user adds, where the tenant allows that."""
        tenant = self.settings.rules.tenant(spec.tenant)
        return (
            {VARIABLE: packages_folder(spec.environment)} if spec.kind is Kind.SESSION and tenant.own_packages else {}
        )

    def _mounts(self, spec: Spec, site: str) -> tuple[Mount, ...]:
        """Checks each volume again: it may have been removed, or made read-only, while the workload waited."""
        volumes = self.settings.volumes
        try:
            if spec.near:
                volume_near(spec.near, volumes, spec.tenant)
            mounts = mounts_of(spec.volumes, volumes, spec.owner, spec.tenant, site)
        except (InvalidInput, Forbidden) as error:
            raise EngineFailure(f"its volumes have changed since it was submitted: {error.message}") from error
        if site != LOCAL_SITE or self.settings.materials_mounted:
            return mounts
        # Then the copy in the home is all that workloads have.
        materials = {one.name for one in volumes if one.material is not None}
        return tuple(one for one in mounts if one.name not in materials)

    def _gang(self, workload: Workload) -> Sequence[Attempt]:
        """The attempts of its gang by rank, as one pass allocates for the whole gang."""
        attempts = [one.attempt for one in self.gang_of(workload) if one.attempt and not one.state.waits]
        if len(attempts) < workload.spec.array_size:
            missing = workload.spec.array_size - len(attempts)
            raise EngineFailure(f"{missing} of its gang have no node yet", retryable=True)
        return attempts
