"""What passes between the core and an engine: orders down, sightings up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from commonage.domain.environments import Environment
from commonage.domain.fleet import Lease
from commonage.domain.reasons import Reason
from commonage.domain.volumes import Mount
from commonage.domain.workloads import Kind


@dataclass(frozen=True, slots=True)
class Order:
    """Everything an engine needs to run one attempt. Starting it twice is starting it once.

    `variables` and `secrets` are complete (GPU variables included) but for `{port}`, which the engine fills in when
    `wants_port`. `bundle_path` is an archive (tar.gz) on the control plane's disk to unpack into the working directory.
    `mounts` are the volumes it is given.
    """

    attempt_id: str
    workload_id: str
    kind: Kind
    name: str
    owner: str
    tenant: str
    environment: Environment
    command: tuple[str, ...]
    lease: Lease
    variables: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    wants_port: bool = False
    bundle_path: str | None = None
    mounts: tuple[Mount, ...] = ()


class Seen(StrEnum):
    """What an engine can see of an attempt: it only moves forward."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class LastUse:
    """What an attempt used in all, by the kernel's own account: CPU seconds, and the most memory in MiB."""

    cpu_s: float
    memory_peak_mib: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """What an engine says it sees of an attempt right now.

    `exit_code` of an ended one is None when nobody can know it any more (its machine went away: it is lost).
    `reason` says what a starting one is doing, what the owner of a running one should know, or why an ended one ended
    if its exit code does not say it. `oom`: ended for want of memory. `used` is of an ended one, where the engine can
    still read it.
    """

    attempt_id: str
    seen: Seen
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
    """What an attempt uses now: CPU seconds so far, memory in MiB, and the ids of its processes."""

    attempt_id: str
    cpu_s: float
    memory_mib: int
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """Whose a process is, and what it is called. `attempt_id` None: it belongs to no attempt.

    `started_at` (unix seconds) tells it from an earlier one of the same number.
    """

    pid: int
    attempt_id: str | None
    name: str
    started_at: float


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of an attempt's output. `offset` is the byte behind it, to resume from; no line ending in `text`."""

    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, so that the core need not ask what it is.

    `mounts`: volumes are mounted where it is asked, and read-only ones cannot be written to. Else they are links.
    `bounded_on` are the machines where no more than its size goes into a volume on disk, `unbounded_on` those where
    more does; of machines that take no work nothing is said.
    """

    name: str
    places_itself: bool = False
    isolates_users: bool = False
    limits_memory: bool = False
    limits_cpu: bool = False
    ports: bool = True
    mounts: bool = False
    bounded_on: tuple[str, ...] = ()
    unbounded_on: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what an admin should know, in words
