"""Why a request is refused: it could never start here, or a limit is reached."""

from __future__ import annotations

from enum import StrEnum

from commonage.domain.reasons.base import Reason
from commonage.domain.reasons.waiting import QuotaScope, Resource


class PermissionMissing(Reason):
    """No role of the user permits this. `roles` are those that do; the tenant is empty if it concerns the platform."""

    user: str
    permission: str
    tenant: str
    roles: tuple[str, ...]


class NoSuchAttempt(Reason):
    """The workload has no attempt of this number, or none yet."""

    workload_id: str
    attempt: int | None


class NoGpus(Reason):
    """A GPU was requested, and no node has one that takes work."""


class GpuModelNotFound(Reason):
    """No node has a GPU of the requested model. `models` are those of all nodes."""

    model: str
    models: tuple[str, ...]


class TooManyGpus(Reason):
    """More whole GPUs were requested than any node has."""

    requested: int
    most: int


class TooMuchGpuMemory(Reason):
    """More GPU memory was requested than any GPU has."""

    requested_mib: int
    max_mib: int


class RequestTooLarge(Reason):
    """No node could run it with everything free. `shortfalls` are those of some nodes."""

    request: str
    shortfalls: tuple[Reason, ...]


class SiteNotFound(Reason):
    """No site of this name has nodes for the tenant. `sites` are those that have."""

    site: str
    tenant: str
    sites: tuple[str, ...]


class VolumeAtNoSite(Reason):
    """No site has the requested volumes, and nodes for the tenant."""

    volumes: tuple[str, ...]
    tenant: str


class NoSiteForTenant(Reason):
    """No site with nodes is open to the tenant."""

    tenant: str


class TooFewNodes(Reason):
    """The gang has more members than there are nodes that could run one."""

    requested: int
    nodes: int
    request: str


class UserQuotaTooSmall(Reason):
    """The request is larger than one member of the tenant may ever use."""

    tenant: str
    resource: Resource
    limit: int
    requested: int


class QuotaTooSmall(Reason):
    """The request is larger than the tenant may ever use. `borrowed`: how much of the limit would be borrowed."""

    tenant: str
    resource: Resource
    limit: int
    borrowed: int
    requested: int


class QuotaLimitTooSmall(Reason):
    """The request is larger than a fixed limit of the tenant's quota. `name`: the user, environment or device model."""

    tenant: str
    scope: QuotaScope
    name: str
    resource: Resource
    limit: int
    requested: int


class TooManyQueued(Reason):
    """The quota for queued workloads leaves no room. `name` is the tenant, user or environment."""

    tenant: str
    scope: QuotaScope
    name: str
    queued: int
    submitted: int
    limit: int


class StorageQuotaExceeded(Reason):
    """Files take more than the quota allows, and the file system does not enforce the limit. Only sessions start."""

    tenant: str
    scope: QuotaScope
    name: str
    used_mib: int
    limit_mib: int
    measured_at: float


class LimitOf(StrEnum):
    """The owner of the live workloads that a limit counts."""

    USER = "user"
    TENANT = "tenant"
    EVERYBODY = "everybody"


class TooManyWorkloads(Reason):
    """A limit on live workloads is reached. `name` is the user or tenant."""

    of: LimitOf
    name: str
    sessions: bool
    live: int
    submitted: int
    limit: int


class MountsNotSupported(Reason):
    """A volume was requested with a mount path, and the engine mounts nothing."""

    volume: str
    name: str
    target: str


class ReservationTooLarge(Reason):
    """All nodes together have room for fewer places than were requested."""

    count: int
    request: str
    room: int


class ReservationBlocked(Reason):
    """Not all places can be kept then. `workloads` may still run, `endless` of them without a time limit; with none,
    other reservations hold the rest."""

    count: int
    request: str
    places: int
    workloads: int
    endless: int


class ReservationCollides(Reason):
    """It would leave no room for earlier reservations."""


class ReservationRefused(Reason):
    """One window cannot be reserved."""

    starts_at: float
    ends_at: float
    cause: Reason


class EnvironmentNotOffered(Reason):
    """The environment does not exist, or workloads of this kind or tenant may not run in it. `removed`: why it is gone,
    if it was there. `offered` are those to choose from."""

    environment: str
    kind: str
    tenant: str
    exists: bool
    removed: Reason | None
    offered: tuple[str, ...]


# --- files --------------------------------------------------------------------------------------------------------


class FilesGap(StrEnum):
    """Why the files of a volume cannot be seen outside of workloads."""

    SCRATCH = "scratch"
    """It belongs to one attempt, and ends with it."""
    DOCKER = "docker"
    """The Docker daemon of each node keeps its own content."""
    ELSEWHERE = "elsewhere"
    """It is only at sites elsewhere."""
    POD = "pod"
    """Homes of the cluster are space of each Pod, and end with it."""
    NOT_MADE = "not-made"
    """The cluster makes it when the first workload needs it."""
    NO_IMAGE = "no-image"
    """The admin named no image for the Pods that open it."""


class FilesNotHere(Reason):
    """The control plane does not see these files. `volume` is empty for the home; `sites` are those where it is."""

    volume: str
    gap: FilesGap
    sites: tuple[str, ...] = ()


class UploadTooLarge(Reason):
    """The upload is larger than what a limit on storage leaves. `volume` is empty for the home."""

    volume: str
    requested_mib: int
    left_mib: int


# --- keeping and giving back --------------------------------------------------------------------------------------


class TimeLimitBeyondMaxAge(Reason):
    """A session requests a longer time limit than sessions may have."""

    requested_s: int
    max_age_s: int


class MaxAgeReached(Reason):
    """A session cannot be extended beyond the longest time that it may run."""

    max_age_s: int


class RoomReserved(Reason):
    """A workload cannot be extended into a reservation that needs its room."""

    starts_at: float


class GpuHoursLimit(Reason):
    """A workload cannot be extended beyond the GPU-hours that its quota leaves."""

    left_s: float


class NothingToExtend(Reason):
    """The workload has no limit that could be extended."""


class NoGpuToRelease(Reason):
    """The workload has no GPU, or is not a session."""

    is_session: bool


class EnvironmentNeedsGpu(Reason):
    """The session cannot continue without a GPU in its environment."""

    environment: str
