"""Labels, tones and icons for states and kinds. Every state has a label and an icon, so that none depends on color."""

from __future__ import annotations

from dataclasses import dataclass

from commonage.control.access import Access
from commonage.control.classes.meetings import Meetings
from commonage.control.materials import MaterialState
from commonage.control.settings import ControlSettings
from commonage.domain.classes import SeatState
from commonage.domain.images import EnvironmentState
from commonage.domain.nodes import Isolation, NodeState
from commonage.domain.permissions import Permission, RoleBinding, SubjectKind
from commonage.domain.workloads import Kind, State, Workload
from commonage.portal.auth import Visitor
from commonage.ports.sites import SiteState
from commonage.wire.origins import service_url, session_url


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


SITES: dict[SiteState, Sign] = {
    SiteState.INVITED: Sign("Invited", "clock", "wait"),
    SiteState.CONNECTED: Sign("Connected", "check", "good"),
    SiteState.DISCONNECTED: Sign("Disconnected", "question", "bad"),
    SiteState.REVOKED: Sign("Revoked", "cross", "quiet"),
}

ENVIRONMENTS: dict[EnvironmentState, Sign] = {
    EnvironmentState.ABSENT: Sign("Built on first use", "clock", "quiet"),
    EnvironmentState.BUILDING: Sign("Building", "spinner", "info"),
    EnvironmentState.READY: Sign("Ready", "check", "good"),
    EnvironmentState.FAILED: Sign("Failed", "cross", "bad"),
}

IMAGES: dict[EnvironmentState, Sign] = {
    EnvironmentState.ABSENT: Sign("Pulled on first use", "clock", "quiet"),
    EnvironmentState.BUILDING: Sign("Pulling", "spinner", "info"),
    EnvironmentState.READY: Sign("Ready", "check", "good"),
    EnvironmentState.FAILED: Sign("Failed", "cross", "bad"),
}

KINDS: dict[Kind, Sign] = {
    Kind.SESSION: Sign("Session", "session", "quiet"),
    Kind.JOB: Sign("Job", "job", "quiet"),
    Kind.SERVICE: Sign("Service", "service", "quiet"),
}

SEATS: dict[SeatState, Sign] = {
    SeatState.NOT_STARTED: Sign("Not started", "clock", "quiet"),
    SeatState.STARTED: Sign("Started", "play", "info"),
    SeatState.WORKING: Sign("Working", "check", "good"),
    SeatState.STUCK: Sign("Stuck", "question", "wait"),
    SeatState.OUT_OF_MEMORY: Sign("Out of memory", "warning", "bad"),
}

ISOLATION: dict[Isolation, str] = {
    Isolation.DRIVER_LIMIT: "hard: the driver refuses allocations above the share's VRAM",
    Isolation.MIG: "hard: the share is a separate MIG instance",
    Isolation.MPS: "hard for each process: MPS limits its memory and threads",
    Isolation.PRELOAD: "soft: an interposer refuses memory above the share, and a program can switch it off",
    Isolation.ACCOUNTED: "accounted: the cluster adds up shares so that they fit; nothing enforces them",
    Isolation.COOPERATIVE: (
        "cooperative: frameworks are configured to stay within the share; nothing stops a program that takes more"
    ),
}


def sign_of(workload: Workload) -> Sign:
    if workload.stop is not None and workload.state.holds_allocation:
        return STOPPING
    return STATES[workload.state]


def title_of(workload: Workload) -> str:
    """The workload's name, or a description if it has none."""
    name = workload.spec.name or ("Session" if workload.spec.kind is Kind.SESSION else workload.id)
    return name if workload.array_index is None else f"{name} [{workload.array_index}]"


def link_to(workload: Workload, visitor: Visitor, settings: ControlSettings) -> str | None:
    """The address where the owner opens a running session or service; None if this browser cannot open it."""
    if (
        workload.spec.owner != visitor.principal.name
        or workload.state is not State.RUNNING
        or workload.stop is not None
    ):
        return None
    if workload.spec.kind is Kind.SESSION:
        return session_url(settings.session_origin, workload.spec.owner, workload.spec.name)
    if workload.spec.kind is Kind.SERVICE:
        return service_url(settings.session_origin, workload.id)
    return None


def may_enter(workload: Workload, access: Access, meetings: Meetings) -> bool:
    """Whether its role, and in a class the student, lets the visitor into the workload."""
    permitted = access.may_on(Permission.ENTER_WORKLOADS, workload.spec.owner, workload.spec.tenant)
    return permitted and meetings.consent_missing(access.principal, workload) is None


def may_visit(workload: Workload, visitor: Visitor, access: Access, meetings: Meetings) -> bool:
    """True for a running session of somebody else that the visitor may open, if it has an origin of its own."""
    spec = workload.spec
    return (
        spec.kind is Kind.SESSION
        and workload.state is State.RUNNING
        and workload.stop is None
        and spec.owner != visitor.principal.name
        and bool(access.settings.session_origin)
        and may_enter(workload, access, meetings)
    )


def binding_text(binding: RoleBinding) -> str:
    group = "group " if binding.kind is SubjectKind.GROUP else ""
    return f"{group}{binding.subject} ({binding.role})"


def service_address(workload: Workload) -> str | None:
    """The address of a running service on the network of its site, as `commonage ps` shows it."""
    if workload.spec.kind is not Kind.SERVICE or workload.state is not State.RUNNING or workload.attempt is None:
        return None
    return workload.attempt.url


MATERIAL_SIGNS = {
    MaterialState.WAITING: Sign("Not read yet", "hourglass", "wait"),
    MaterialState.CURRENT: Sign("In sync", "check", "good"),
    MaterialState.FAILING: Sign("Sync fails", "warning", "bad"),
}
