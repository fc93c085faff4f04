"""Messages between the core and an engine: start requests to it, and statuses from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.images import Environment
from commonage.domain.nodes import Allocation
from commonage.domain.reasons import Reason
from commonage.domain.volumes import Mount
from commonage.domain.workloads import Kind


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A start request: everything an engine needs to run one attempt. Starting it twice has no further effect.

    `variables` and `secrets` are complete (GPU variables included) except for `{port}`, which the engine fills in
    when `wants_port`; `port` is the one that its program insists on. `bundle_path` is an archive (tar.gz) on the
    control plane's disk to unpack into the working directory. `mounts` are its volumes. `cron_job`: it is a run of
    this cron job. `gang`: the attempts of its gang by rank, itself among them; the engine tells them how to reach each
    other. `home_mib`: what its owner may store in the home, where the tenant's quota bounds it.
    `traceparent`: of the span that starts it, if its submission is traced.
    """

    attempt_id: str
    workload_id: str
    kind: Kind
    name: str
    owner: str
    tenant: str
    environment: Environment
    command: tuple[str, ...]
    allocation: Allocation
    variables: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    wants_port: bool = False
    bundle_path: str | None = None
    mounts: tuple[Mount, ...] = ()
    cron_job: str = ""
    port: int | None = None
    gang: tuple[str, ...] = ()
    home_mib: int | None = None
    traceparent: str = ""

    @property
    def rank(self) -> int:
        """Its rank in its gang. Raises ValueError without a gang."""
        return self.gang.index(self.attempt_id)


class Phase(StrEnum):
    """The phase of an attempt as an engine reports it: it only moves forward."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class LastUse:
    """The total use of an attempt, from the kernel's accounting: CPU seconds, and the peak memory in MiB."""

    cpu_s: float
    memory_peak_mib: int


@dataclass(frozen=True, slots=True)
class Status:
    """The status of an attempt that an engine reports.

    `exit_code` of an ended one is None if it can no longer be known (its node went away: it is lost). `reason` is the
    present step of a starting one, a warning for the owner of a running one, or the cause of an end that the exit code
    does not tell. `oom`: ended for lack of memory. `used` is set for an ended one if the engine can still read it.
    """

    attempt_id: str
    phase: Phase
    at: float
    node: str = ""
    reason: Reason | None = None
    progress: float | None = None
    exit_code: int | None = None
    oom: bool = False
    url: str | None = None
    started_at: float | None = None
    used: LastUse | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The present use of an attempt: CPU seconds so far, memory in MiB, and the ids of its processes."""

    attempt_id: str
    cpu_s: float
    memory_mib: int
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """The owner and name of a process. `attempt_id` None: it belongs to no attempt.

    `started_at` (unix seconds) distinguishes it from an earlier process with the same id.
    """

    pid: int
    attempt_id: str | None
    name: str
    started_at: float


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of an attempt's output. `offset` is the byte after it, to resume from; `text` has no line ending."""

    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of an engine, so that the core need not know its type.

    `mounts`: volumes are mounted where requested, and read-only ones cannot be written to. Otherwise they are links.
    `bounded_on` are the nodes that enforce the size of a volume on disk, `unbounded_on` those that do not; nodes that
    take no work are in neither.
    """

    name: str
    isolates_users: bool = False
    limits_memory: bool = False
    limits_cpu: bool = False
    ports: bool = True
    mounts: bool = False
    bounded_on: tuple[str, ...] = ()
    unbounded_on: tuple[str, ...] = ()
    notes: tuple[Reason, ...] = ()  # for an admin
