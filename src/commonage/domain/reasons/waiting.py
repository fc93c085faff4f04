"""Why a workload waits, and what an estimate of its start rests on.

Durations count from the moment at which the reason was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.reasons.base import Reason


class Resource(StrEnum):
    """A resource that a quota limits. Amounts are thousandths of CPUs and GPUs, MiB of memory, GPU memory and storage,
    numbers of workloads, and GPU-seconds in a month.
    """

    CPU = "cpu"
    MEMORY = "memory"
    GPU = "gpu"
    GPU_MEMORY = "gpu-memory"
    RUNNING = "running"
    QUEUED = "queued"
    STORAGE = "storage"
    GPU_HOURS = "gpu-hours"


class QuotaScope(StrEnum):
    """The scope of a bound of a quota: the tenant as a whole, each member, an environment, a device model."""

    TENANT = "tenant"
    USER = "user"
    ENVIRONMENT = "environment"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts of the requested resources, free on a node or allocated to a workload."""

    cpus_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_memory_mib: int = 0


_NOTHING = Resources()


@dataclass(frozen=True, slots=True)
class Other:
    """Another workload, as far as its dependents may know it."""

    id: str
    name: str
    state: str


# --- held ---------------------------------------------------------------------------------------------------------


class DependencyNotMet(Reason):
    """A dependency has not reached the state that this workload waits for."""

    others: tuple[Other, ...]


class EnvironmentNotFound(Reason):
    """The environment is not in the catalogue any more."""

    environment: str


class EnvironmentNotInImage(Reason):
    """The image that brought the environment was replaced by one without it."""

    environment: str
    image: str
    environments: tuple[str, ...]


class ImageRemoved(Reason):
    """The image of the environment was removed from the catalogue."""

    image: str
    by: str
    removed_at: float


class RetryScheduled(Reason):
    """The last attempt failed or was lost, and the retry policy allows another one after a pause."""

    retry: int
    retries: int
    pause_s: float
    attempt: int
    state: str
    cause: Reason


class PlacementRetryScheduled(Reason):
    """The site did not run the last attempt, and the workload queues again after a pause."""

    pause_s: float
    attempt: int
    cause: Reason


# --- queued -------------------------------------------------------------------------------------------------------


class InQueue(Reason):
    """The workload is queued. `explain` says what it waits for."""


class Requeued(Reason):
    """An attempt was taken away from its node, or lost with it, and the workload queues again."""

    cause: Reason


class ResourcesFree(Reason):
    """Resources have become free since the last pass of the scheduler. The next pass starts at once."""


class NoNodes(Reason):
    """No node has reported yet."""


class GangIncomplete(Reason):
    """Fewer members of the gang are queued than must start together."""

    size: int
    queued: int


class InsufficientNodes(Reason):
    """Fewer nodes have room than the gang has members."""

    size: int
    nodes: int


class NoCandidateSite(Reason):
    """No site has nodes, may be used by the tenant, was requested, and has the volumes."""

    tenant: str


class InsufficientNodesAtSite(Reason):
    """Enough nodes have room, but not at one site."""

    size: int


class NodeRequested(Reason):
    """A node that could run it was requested from a cloud. It is expected within `expected_in_s`, or in about that time
    if it `is_measured`. None: it is overdue, and was requested `requested_s` ago.
    """

    pool: str
    expected_in_s: float | None = None
    is_measured: bool = False
    requested_s: float | None = None


# --- quotas -------------------------------------------------------------------------------------------------------


class UserQuotaExceeded(Reason):
    """The user uses as much as one member of the tenant may use."""

    tenant: str
    user: str
    resource: Resource
    used: int
    limit: int


class QuotaExceeded(Reason):
    """The tenant uses all of its quota. `borrowing`: how much more it may borrow (None: any amount), of which `unused`
    is unused now.
    """

    tenant: str
    resource: Resource
    used: int
    quota: int
    borrowing: int | None
    unused: int


class QuotaLent(Reason):
    """The request is within the tenant's quota, but other tenants borrowed the unused part."""

    tenant: str
    resource: Resource
    used: int
    quota: int
    left: int


class QuotaLimitReached(Reason):
    """A fixed limit of the tenant's quota is reached. `name` is the tenant, user, environment or device model."""

    tenant: str
    scope: QuotaScope
    name: str
    resource: Resource
    used: int
    limit: int


class GpuHoursSpent(Reason):
    """The GPU-hours of this month are spent. Running workloads continue; no workload starts on a GPU before
    `resets_at`.
    """

    tenant: str
    scope: QuotaScope
    name: str
    used_s: int
    limit_s: int
    resets_at: float


# --- sites --------------------------------------------------------------------------------------------------------


class SiteHasRoom(Reason):
    """The site has room for the workload now. Limits outside the site may still delay it."""


class SiteUnavailable(Reason):
    """All nodes of the site are lost."""


class SiteWithoutNodes(Reason):
    """No node of the site has reported."""


class SiteNotRequested(Reason):
    """The workload was pinned to other sites."""


class VolumeNotAtSite(Reason):
    """The site lacks a volume that the workload mounts or must be near."""

    volume: str


class SiteOfOtherTenants(Reason):
    """The site belongs to other tenants, or the tenant is limited to other sites."""

    tenant: str


# --- what a node lacks --------------------------------------------------------------------------------------------


class NodeShortfall(Reason, abstract=True):
    """A node does not fit. `node` is the one that is closest to fitting, of `nodes` with the same shortfall, out of
    `total`.
    """

    node: str
    nodes: int = 1
    total: int = 1


class SiteExcluded(NodeShortfall):
    """The node is at a site where the workload may not run."""


class NodeDraining(NodeShortfall):
    """The node is draining and starts nothing new."""

    by: str


class NodeFaulty(NodeShortfall):
    """The node has a fault and starts nothing new. Admins find it among the nodes."""


class NodeUnavailable(NodeShortfall):
    """The node is lost: it does not report, or its engine has given it up."""


class InsufficientDisk(NodeShortfall):
    """The disk of the node is nearly full: only sessions start, so that their users can delete files."""

    cause: Reason


class NodeLabelsMismatch(NodeShortfall):
    """The node lacks labels that were requested."""

    labels: tuple[tuple[str, str], ...]


class NoMatchingGpu(NodeShortfall):
    """The node has no healthy GPU of the requested model."""

    model: str | None


class GpuIsPartitioned(NodeShortfall):
    """Whole GPUs were requested, and those of the node are split into MIG instances."""

    model: str | None


class InsufficientGpus(NodeShortfall):
    """Fewer whole GPUs are free than were requested."""

    model: str | None
    requested: int
    free: int
    present: int


class InsufficientGpusOnNumaNode(NodeShortfall):
    """Enough whole GPUs are free, but not on one NUMA node."""

    model: str | None
    requested: int
    free: int
    together: int


class InsufficientGpuMemory(NodeShortfall):
    """No GPU has the requested memory free. `gpu` is the one that has most."""

    gpu: str
    model: str | None
    requested_mib: int
    free_mib: int
    total_mib: int


class InsufficientGpuCompute(NodeShortfall):
    """No GPU has the requested part of its compute free. `gpu` is the one that has most."""

    gpu: str
    model: str | None
    requested_milli: int
    free_milli: int


class InsufficientCpu(NodeShortfall):
    """Fewer CPUs are free than were requested."""

    requested_cpus_milli: int
    free_cpus_milli: int
    total_cpus_milli: int


class InsufficientMemory(NodeShortfall):
    """Less memory is free than was requested."""

    requested_mib: int
    free_mib: int
    total_mib: int


# --- what is free and yet not available ---------------------------------------------------------------------------


class FreeButKept(Reason, abstract=True):
    """Resources are free on `node` and on others (`nodes` in all), but this workload may not have them."""

    node: str = ""
    nodes: int = 1
    free: Resources = _NOTHING


class TenantQuotaExceededThere(FreeButKept):
    """The GPUs that are free are larger than what the quota of the tenant leaves."""

    tenant: str


class ReservedForOthers(FreeButKept):
    """A reservation keeps them. `user` is set if it is for one member of the tenant.

    All three names are empty if it is for another tenant than that of the workload.
    """

    tenant: str
    user: str | None = None
    title: str = ""
    begins_in_s: float | None = None
    ends_in_s: float | None = None


class ReservedForHeadOfQueue(FreeButKept):
    """They are kept for a workload further ahead whose start cannot be estimated from time limits, until enough has
    ended there.
    """


class PreemptingForOthers(FreeButKept):
    """Other workloads are being preempted there for a workload further ahead."""


class PromisedToOthers(FreeButKept):
    """A workload further ahead starts there in `starts_in_s`, and this one could still be running then."""

    starts_in_s: float


class KeptForQueue(FreeButKept):
    """They are kept for workloads further ahead. Only workloads that end within `for_s` may use them."""

    for_s: float | None = None


# --- when it starts -----------------------------------------------------------------------------------------------


class StartsNow(Reason):
    """The request fits now."""

    node: str
    gpus: str = ""


class EstimateFromTimeLimits(Reason):
    """The estimate rests on the time limits of running workloads and of those ahead in the queue."""


class EstimateFromHistory(Reason):
    """The estimate rests on how long similar workloads usually take."""


class EstimateFromFewRuns(Reason):
    """The estimate rests on the few similar workloads that ended before."""


class EstimateFromTotalWork(Reason):
    """The estimate spreads all work ahead over all nodes."""


class EstimateFromQuotaReset(Reason):
    """The estimate is the start of the next month, when GPU-hours are counted from zero. Other workloads may be ahead
    then.
    """


class NoTimeLimitAhead(Reason):
    """No estimate: the workload that it waits for has no time limit. `kind` and `owner` name one such workload."""

    kind: str = ""
    owner: str = ""


class NoNodeLargeEnough(Reason):
    """No estimate: no schedulable node is large enough."""


class TooManyAhead(Reason):
    """No estimate: more workloads are ahead than the estimate follows."""

    ahead: int


class NoRoomFromNextEnds(Reason):
    """No estimate: the workloads that end next make no room for it."""
