"""Events for users and admins, and notes on nodes, GPUs, reservations, images and sessions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.reasons.base import Reason
from commonage.domain.reasons.waiting import QuotaScope, Resource

# --- workloads ----------------------------------------------------------------------------------------------------


class Submitted(Reason):
    """Workloads were submitted."""

    count: int
    request: str


class CommandStarted(Reason):
    """A user runs a command in a workload. `program` is empty for a shell."""

    by: str
    program: str
    workload: str


class SessionOpened(Reason):
    """Another user opened a session in the browser. `session` is its name, empty for the default one."""

    by: str
    session: str


class ServiceAnswers(Reason):
    """A service answers its health check."""

    path: str


class ServiceNotAnswering(Reason):
    """A service that answered before fails its health checks. `why` is the last failure."""

    path: str
    why: str


class ServiceOpened(Reason):
    """Another user opened a service in the browser."""

    by: str
    service: str


class OverGpuShareFollows(StrEnum):
    """The site's policy for a workload over its GPU share."""

    STOP = "stop"
    STOP_WHEN_NEEDED = "stop-when-needed"
    NOTHING = "nothing"


class OverGpuShareWarning(Reason):
    """A workload holds more GPU memory than its share."""

    gpu: str
    used_mib: int
    share_mib: int
    lasted_s: float
    follows: OverGpuShareFollows
    left_s: float = 0.0


class GpuUnused(Reason):
    """A session leaves its GPU unused while others wait for one: members of its tenant, and `others`, unnamed."""

    gpu: str
    unused_s: float
    waiting: tuple[str, ...]
    others: int = 0


class ActivityUnknown(Reason):
    """The session does not report its activity, so it counts as active."""


class NewerReason(Reason):
    """A site agent of a newer version gives a reason that this server does not know. `reason` is its code."""

    reason: str


class GpuWarning(Reason):
    """The driver or one of its daemons reports something about a workload. `detail` is what it says."""

    detail: str


class QuotaUse(Reason):
    """The used part of a limit of a quota. `may_borrow`: more is possible while other tenants do not use theirs."""

    tenant: str
    scope: QuotaScope
    name: str
    resource: Resource
    used: int
    limit: int
    may_borrow: bool = False
    resets_at: float | None = None

    @property
    def remains(self) -> int:
        return max(0, self.limit - self.used)

    @property
    def percent(self) -> int:
        return 100 if self.used >= self.limit else 100 * self.used // self.limit

    @property
    def is_near(self) -> bool:
        """Whether a notice is due: at 80 percent of a bound beyond which nothing can be borrowed."""
        return self.percent >= 80 and self.limit > 0 and not self.may_borrow


class HomeUsed(Reason):
    """Disk space that the user's home uses. `quota_mib` None: there is no quota. `site`: of a home elsewhere."""

    used_mib: int
    quota_mib: int | None
    is_enforced: bool = False
    site: str = ""


class StorageGap(StrEnum):
    """Why no file system enforces a limit on disk space."""

    NO_PROJECT_QUOTAS = "no-project-quotas"
    NOT_PERMITTED = "not-permitted"


class StorageNotEnforced(Reason):
    """Storage quotas hold for the volume, and its file system does not enforce them."""

    gap: StorageGap


# --- sessions that start again ------------------------------------------------------------------------------------


class RestartedAs(Reason):
    """The session ended with its node, and another one was started."""

    workload_id: str


class RestartOf(Reason):
    """The session replaces one that ended with its node."""

    workload_id: str
    cause: Reason


class RestartFailed(Reason):
    """The session could not be started again."""

    cause: Reason


class RestartedTooOften(Reason):
    """The session ended with its node too many times in a row."""

    times: int


class SessionNodeFaulty(Reason):
    """The node of the session has a problem."""

    name: str
    cause: Reason


class SessionWarned(Reason):
    """A notice about a running session."""

    name: str
    cause: Reason


class SessionRestarted(Reason):
    """The session was started again."""

    name: str
    cause: Reason


class SessionEnded(Reason):
    """The session ended with its node."""

    name: str
    cause: Reason
    is_restarting: bool


# --- nodes --------------------------------------------------------------------------------------------------------


class NodeStateChanged(Reason):
    """A node changed its state."""

    node: str
    state: str
    causes: tuple[Reason, ...] = ()


class NodeNotResponding(Reason):
    """The node of a workload does not answer. `fate` is what happens once it is lost."""

    node: str
    fate: Fate
    silent_s: float


class NodeUndecided(Reason):
    """The node does not answer, and an admin must decide about the workloads on it."""

    node: str
    cause: Reason
    silent_s: float | None = None
    workloads: int | None = None


class NodeHasFault(Reason):
    """The node of a workload has a fault. Admins find it among the nodes."""

    node: str
    fate: Fate


class NodeMustBeEmpty(Reason):
    """The node of a workload is drained, and must be empty by a deadline. `fate` is what happens then."""

    node: str
    by: str
    left_s: float
    leave_by_at: float | None = None
    fate: Fate | None = None


class Fate(StrEnum):
    """The next state of a workload whose node is lost or must be emptied."""

    SESSION_RESTARTS = "session-restarts"
    SESSION_ENDS = "session-ends"
    REQUEUED = "requeued"
    ENDS = "ends"


class SiteTokenCreated(Reason):
    """An admin created a token with which a machine may join as this site. A new site is listed from then on."""

    site: str
    by: str
    expires_at: float


class SiteJoined(Reason):
    """A machine joined as this site with a token, and received a certificate."""

    site: str


class SiteRevoked(Reason):
    """An admin revoked the certificate and the token of the site."""

    site: str
    by: str


class SiteRemoved(Reason):
    """An admin removed the site."""

    site: str
    by: str


class NodeTokenCreated(Reason):
    """An admin created a token with which nodes may join the site."""

    site: str
    by: str
    expires_at: float


class NodeTokensRevoked(Reason):
    """An admin revoked all tokens with which nodes may join the site."""

    site: str
    by: str


class PoolNodeAdded(Reason):
    """A node was requested from a cloud. Prices are per hour, of the whole pool; 0: not known."""

    node: str
    cause: Reason
    price_per_h: float = 0.0
    price_before_per_h: float = 0.0


class PoolNodeRemoved(Reason):
    """A node was given back to its cloud. Prices are per hour, of the whole pool; 0: not known."""

    node: str
    cause: Reason
    price_per_h: float = 0.0
    price_before_per_h: float = 0.0


# --- node pools: why they grow and shrink -------------------------------------------------------------------------


class PoolBelowMinimum(Reason):
    """The pool has fewer nodes than its minimum."""

    minimum: int


class PoolAboveMaximum(Reason):
    """The pool has more nodes than its maximum."""

    maximum: int


class PoolServesQueue(Reason):
    """Queued workloads would start on more nodes."""

    workloads: int
    nodes: int


class PoolNodesPending(Reason):
    """Nodes for queued workloads are being added."""

    nodes: int


class PoolAtMaximum(Reason):
    """Workloads wait, and the pool has its maximum of nodes. `leaving` of them are being removed."""

    maximum: int
    leaving: int


class PoolNodesLackGpus(Reason):
    """The newest node of the pool brought no GPUs, so more would not help. `gpus`: how many the pool declares."""

    node: str
    gpus: int


class PoolWaits(Reason):
    """Workloads wait, but not long enough for a node to be added."""

    wait_s: float


class PoolNodesIdle(Reason):
    """Nodes of the pool have been idle for long enough to be removed."""

    idle_s: float


class PoolIdle(Reason):
    """No workload waits for the pool."""


class PoolNodeFailed(Reason):
    """The cloud says that the node failed."""


class PoolNodeDidNotJoin(Reason):
    """The node did not join in time."""

    join_s: float


class PoolNodeLost(Reason):
    """The node was lost for a while."""

    causes: tuple[Reason, ...] = ()


class PoolNodeForgotten(Reason):
    """An admin removed the node from the site."""


class PoolNodeEmpty(Reason):
    """The node was drained, and nothing runs there."""

    by: str


# --- GPUs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process of no workload."""

    pid: int | None
    name: str


class GpuFault(Reason):
    """A GPU has a fault and takes no new work. `is_held`: the reader's workload holds a part of it."""

    node: str
    gpu: str
    model: str
    faults: tuple[Reason, ...]
    is_held: bool = False


class GpuRecovered(Reason):
    """A GPU has no fault any more."""

    node: str
    gpu: str
    model: str
    is_held: bool = False


class GpuMissing(Reason):
    """A GPU is not reported any more."""

    node: str
    gpu: str
    model: str
    is_held: bool = False


class UnattributedGpuMemory(Reason):
    """Processes that no workload started hold memory of a GPU. `used_mib` None: the driver does not say how much."""

    gpu: str
    model: str
    used_mib: int | None
    processes: tuple[ProcessInfo, ...]
    more: int = 0


class UnattributedGpuMemoryFreed(Reason):
    """No unattributed process holds memory of the GPU any more."""

    gpu: str
    model: str


# --- reservations and images --------------------------------------------------------------------------------------


class ReservationMade(Reason):
    """An admin reserved resources. `more`: how many like it were made with it."""

    by: str
    reservation: ReservationInfo
    more: int = 0


class ReservationRemoved(Reason):
    """An admin removed a reservation."""

    by: str
    reservation: ReservationInfo


class ReservationReassigned(Reason):
    """A reservation got another owner or tenant, because its own was renamed or removed."""

    by: str
    reservation: ReservationInfo


class ReservationOver(Reason):
    """A reservation has ended."""

    reservation: ReservationInfo


@dataclass(frozen=True, slots=True)
class ReservationInfo:
    """A reservation, as far as events tell of it."""

    id: str
    tenant: str
    user: str
    title: str
    count: int
    request: str
    starts_at: float
    ends_at: float


class ImageRegistered(Reason):
    """An image was registered, or put in the place of another one of its name."""

    by: str
    image: str
    digest: str
    is_replacement: bool = False


class EnvironmentBuilt(Reason):
    """A build registered an environment of its tenant, or put it in the place of another one of its name."""

    by: str
    environment: str


class EnvironmentNotRegistered(Reason):
    """A build succeeded, and its result cannot be registered."""

    environment: str
    error: str


class ImageReassigned(Reason):
    """An image got another owner or tenant, because its own was renamed or removed."""

    by: str
    image: str
    owner: str
    tenant: str


class ImageUnregistered(Reason):
    """An image was removed from the catalogue."""

    by: str
    image: str
