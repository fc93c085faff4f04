"""How states and other words of the domain are shown: label, tone and sign. Colour alone never tells a state."""

from __future__ import annotations

from dataclasses import dataclass

from commonage.domain.environments import EnvironmentState
from commonage.domain.fleet import Isolation, NodeState
from commonage.domain.workloads import Kind, State, Workload
from commonage.wire.origins import session_url


@dataclass(frozen=True, slots=True)
class Sign:
    """A label with an icon and a tone: `good`, `info`, `wait`, `bad` or `quiet`."""

    label: str
    icon: str
    tone: str


STATES: dict[State, Sign] = {
    State.HELD: Sign("Held", "pause", "wait"),
    State.QUEUED: Sign("Queued", "clock", "wait"),
    State.STARTING: Sign("Starting", "spinner", "info"),
    State.RUNNING: Sign("Running", "play", "good"),
    State.SUCCEEDED: Sign("Succeeded", "check", "done"),
    State.FAILED: Sign("Failed", "cross", "bad"),
    State.STOPPED: Sign("Stopped", "stop", "quiet"),
    State.TIMED_OUT: Sign("Timed out", "hourglass", "bad"),
    State.LOST: Sign("Lost", "question", "bad"),
}
STOPPING = Sign("Stopping", "spinner", "quiet")

NODES: dict[NodeState, Sign] = {
    NodeState.READY: Sign("Ready", "check", "good"),
    NodeState.DRAINING: Sign("Draining", "pause", "wait"),
    NodeState.FAULTY: Sign("Faulty", "warning", "bad"),
    NodeState.LOST: Sign("Lost", "question", "bad"),
}


ENVIRONMENTS: dict[EnvironmentState, Sign] = {
    EnvironmentState.ABSENT: Sign("Made on first use", "clock", "quiet"),
    EnvironmentState.BUILDING: Sign("Being made", "spinner", "info"),
    EnvironmentState.READY: Sign("Ready", "check", "good"),
    EnvironmentState.FAILED: Sign("Failed", "cross", "bad"),
}

IMAGES: dict[EnvironmentState, Sign] = {
    EnvironmentState.ABSENT: Sign("Fetched on first use", "clock", "quiet"),
    EnvironmentState.BUILDING: Sign("Being fetched", "spinner", "info"),
    EnvironmentState.READY: Sign("Ready", "check", "good"),
    EnvironmentState.FAILED: Sign("Failed", "cross", "bad"),
}

KINDS: dict[Kind, Sign] = {
    Kind.SESSION: Sign("Session", "session", "quiet"),
    Kind.JOB: Sign("Job", "job", "quiet"),
    Kind.SERVICE: Sign("Service", "service", "quiet"),
}

ISOLATION: dict[Isolation, str] = {
    Isolation.DRIVER_LIMIT: "the driver refuses more VRAM than the share has",
    Isolation.MIG: "the share is a slice of the card of its own (MIG)",
    Isolation.MPS: "the share has pinned limits of memory and threads (MPS)",
    Isolation.COOPERATIVE: (
        "the share is kept by agreement: frameworks are told their part, nothing stops a program that takes more"
    ),
}


def sign_of(workload: Workload) -> Sign:
    """The sign of a workload: its state's, or that it is being stopped."""
    if workload.stop is not None and workload.state.holds_lease:
        return STOPPING
    return STATES[workload.state]


def title_of(workload: Workload) -> str:
    """What to call it: its name, or what it is."""
    name = workload.spec.name or ("Session" if workload.spec.kind is Kind.SESSION else workload.id)
    return name if workload.array_index is None else f"{name} [{workload.array_index}]"


def session_link(workload: Workload, session_origin: str) -> str | None:
    """Where a running session or service is opened (see `wire.origins`); None while there is nothing to open."""
    if workload.spec.kind is Kind.JOB or workload.state is not State.RUNNING or workload.stop is not None:
        return None
    return session_url(session_origin, workload.spec.owner, workload.spec.name)
