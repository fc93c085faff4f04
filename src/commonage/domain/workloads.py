"""Workloads that users run, and their attempts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Allocation
from commonage.domain.reasons import Reason, waiting
from commonage.domain.requests import Request
from commonage.domain.volumes import VolumeRequest

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TAIL = 32**4
WORKLOAD_ID_LENGTH = 13


def encode_id(number: int) -> str:
    """A workload id of this number: milliseconds since 1970 times 32**4, and the part that makes them differ."""
    digits = []
    for _ in range(WORKLOAD_ID_LENGTH):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


class IdSequence:
    """Makes ids that only rise, even when the clock stands still or goes back. One for each process.

    A workload's id is 13 characters of Crockford's base 32: nine for milliseconds since 1970, four that make ids of one
    millisecond differ and rise.
    """

    def __init__(self) -> None:
        self._last = -1

    def follow(self, last: str | None) -> None:
        if last:
            self._last = max(self._last, _decode(last))

    def next(self, now: float, chance: int) -> str:
        """A new id at `now` (unix seconds). `chance` is any integer that differs between processes."""
        fresh = int(now * 1000) * _TAIL + chance % (_TAIL // 2)
        self._last = max(fresh, self._last + 1)
        return encode_id(self._last)


def _decode(identifier: str) -> int:
    number = 0
    for character in identifier:
        number = number * 32 + _ALPHABET.index(character)
    return number


def is_workload_id(text: str) -> bool:
    return len(text) == WORKLOAD_ID_LENGTH and all(character in _ALPHABET for character in text)


def attempt_id(workload_id: str, number: int) -> str:
    return f"{workload_id}-{number}"


def workload_of(attempt: str) -> str:
    """The workload id inside an attempt id. Raises InvalidInput if the text is not an attempt id."""
    workload, dash, number = attempt.rpartition("-")
    if not dash or not (number.isascii() and number.isdigit()) or len(workload) != WORKLOAD_ID_LENGTH:
        raise InvalidInput(f"{attempt!r} is not the id of an attempt")
    return workload


class Kind(StrEnum):
    """`session`: a Jupyter server; `job`: one-shot batch; `service`: long-running, with a port."""

    SESSION = "session"
    JOB = "job"
    SERVICE = "service"


class State(StrEnum):
    """The state of a workload, in order of life. See docs/concepts/states.md."""

    HELD = "held"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    TIMED_OUT = "timed_out"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL

    @property
    def holds_allocation(self) -> bool:
        return self in (State.STARTING, State.RUNNING)

    @property
    def waits(self) -> bool:
        """True while it has no attempt and could still get one."""
        return self in (State.HELD, State.QUEUED)


_IN_QUEUE = waiting.InQueue()
TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED, State.TIMED_OUT, State.LOST})


MAX_LOSSES = 5
"""The number of times that a workload is requeued after losing its node; after that, the workload may be the cause."""


class Condition(StrEnum):
    """The condition of a dependency: the other workload succeeded, failed, ended in any way, or started."""

    AFTER_OK = "afterok"
    AFTER_NOT_OK = "afternotok"
    AFTER_ANY = "afterany"
    AFTER_START = "after"


@dataclass(frozen=True, slots=True)
class Dependency:
    workload_id: str
    condition: Condition = Condition.AFTER_OK


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of retries of a failed or lost attempt, and the first pause in seconds (doubling, at most an hour)."""

    retries: int = 0
    backoff_s: float = 10.0

    def pause_before(self, retry: int) -> float:
        """Seconds before the `retry`-th retry, from 1."""
        return min(3600.0, self.backoff_s * 2.0 ** min(retry - 1, 20))


@dataclass(frozen=True, slots=True)
class Spec:
    """The request as it was submitted; it never changes. Members of an array share one.

    `command` is the argument vector; empty means the environment's own (a session's Jupyter server). `variables` are
    shown to their owner, `secrets` to nobody. The values of secrets are removed when the workload ends; then
    `dropped_secrets` has their names. `{port}` in command, variables or secrets becomes the assigned port. `bundle` is
    the digest of uploaded files, unpacked into the working directory.
    """

    kind: Kind
    name: str
    owner: str
    tenant: str
    environment: str
    command: tuple[str, ...]
    request: Request
    variables: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    dropped_secrets: tuple[str, ...] = ()
    priority: int = 0
    time_limit_s: int | None = None
    grace_s: int = 10
    retry: RetryPolicy = RetryPolicy()
    depends_on: tuple[Dependency, ...] = ()
    bundle: str | None = None
    array_id: str | None = None
    array_size: int = 0
    key: str | None = None  # the client's own key: submitting it again gives the same workload
    preemptible: bool = False  # others may evict it; it is then requeued
    volumes: tuple[VolumeRequest, ...] = ()
    gang: bool = False  # the members of its array start together, on different nodes, or not at all
    near: str = ""  # a volume: it runs at a site that has it
    requeue: bool = False  # if its node is lost or drained: jobs and services are requeued, sessions restart
    cron_job: str | None = None  # it is a run of this cron job
    due_at: float | None = None  # the time of the schedule that it runs for; None if a user triggered it
    port: int | None = None  # the port on which a service listens; None: the engine's choice, in `{port}`
    health_path: str = ""  # what a health check of a service requests; empty: any answer of its front page counts
    health_interval_s: int = 10
    build: str = ""  # the order of a build; set by control.catalogue.builds, never by users
    traceparent: str = ""  # of the request that submitted it, if that is traced
    class_meeting: str = ""  # of the class that this session was started for: CLASS@START; CLASS@ by its owner

    @property
    def class_name(self) -> str:
        """The class that this session was started for, also after it was deleted; empty: none."""
        return self.class_meeting.partition("@")[0]

    @property
    def secret_names(self) -> tuple[str, ...]:
        return (*(name for name, _ in self.secrets), *self.dropped_secrets)

    def without_secrets(self) -> Spec:
        return replace(self, secrets=(), dropped_secrets=self.secret_names)


class StopCause(StrEnum):
    """The cause of a stop request: it decides the final state."""

    USER = "user"
    TIME_LIMIT = "time-limit"
    DEPENDENCY = "dependency"
    ADMIN = "admin"
    OVER_SHARE = "over-share"  # it used more VRAM than its share
    EVICTION = "eviction"  # its place is needed or goes away: it is requeued
    IDLE = "idle"  # nothing happened in the session for long
    GPU_RELEASE = "gpu-release"  # a session continues without its GPU, as another workload


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to stop a workload: its author (`by`), time, and reason. `reason` None: only the author is known."""

    by: str
    at: float
    cause: StopCause = StopCause.USER
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to run a workload. `state` is never held or queued. Instants are unix seconds.

    `url` is that of a session or service on the site's own network.
    """

    id: str
    workload_id: str
    number: int
    state: State
    allocation: Allocation
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    reason: Reason | None = None
    url: str | None = None

    @property
    def occupied_s(self) -> tuple[float, float | None]:
        """The time span (end None: still running) in which its allocation counts as used."""
        return self.allocation.at, self.ended_at


def is_notebook(kind: Kind, command: Sequence[str]) -> bool:
    """Whether a job runs a notebook: its command begins with one instead of a program."""
    return kind is Kind.JOB and bool(command) and command[0].endswith(".ipynb")


def name_of_command(command: Sequence[str]) -> str:
    """The name of a workload that was submitted without one."""
    return " ".join(shlex.join(command).split())[:60].strip()


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload and its state. `attempt` is the newest one, None before the first.

    `reason` says why it is in this state; for a queued one the scheduler's newest explanation is fresher. `retried`
    counts the retries that its retry policy allowed after a failure or a loss, `losses` the requeues after a lost node.
    `since` is when it entered `state`. `version` counts the writes, for optimistic locking. `kept_until`: an extension
    holds until then; `idle_warned_at`: its owner was told then that it will be stopped as idle.
    """

    id: str
    spec: Spec
    state: State
    submitted_at: float
    since: float
    reason: Reason = _IN_QUEUE
    array_index: int | None = None
    stop: StopRequest | None = None
    attempt: Attempt | None = None
    not_before: float | None = None
    warned: bool = False
    retried: int = 0
    losses: int = 0
    kept_until: float | None = None
    idle_warned_at: float | None = None
    version: int = 1

    @property
    def attempts(self) -> int:
        return self.attempt.number if self.attempt else 0

    @property
    def deadline(self) -> float | None:
        limit, attempt = self.spec.time_limit_s, self.attempt
        if limit is None or attempt is None or not self.state.holds_allocation:
            return None
        return max((attempt.started_at or attempt.allocation.at) + limit, self.kept_until or 0.0)


class EventKind(StrEnum):
    """The kind of an event; stable, part of the API."""

    SUBMITTED = "submitted"
    HELD = "held"
    QUEUED = "queued"
    STARTING = "starting"
    PROGRESS = "progress"
    RUNNING = "running"
    STOPPING = "stopping"
    WARNING = "warning"
    RETRYING = "retrying"
    ENDED = "ended"
    NODE = "node"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class Event:
    """`seq` rises by one with every event of an installation (0 until it is written); `at` is unix seconds."""

    kind: EventKind
    at: float
    reason: Reason
    workload_id: str | None = None
    attempt_id: str | None = None
    owner: str | None = None
    tenant: str | None = None
    state: str | None = None
    seq: int = 0
