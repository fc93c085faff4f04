"""Maps the daemon's description of a container to its status and its end. Pure; used by `container_client`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commonage.domain.reasons.attempts import (
    ContainerStartFailed,
    DaemonRestarted,
    EndedFromOutside,
    ExitCodeLoss,
    ExitCodeLost,
    ExternalActor,
    NodeRestarted,
)
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.daemon.descriptions import instant
from commonage.engines.containers.files.control_folder import Claim
from commonage.engines.containers.program.program import PORT
from commonage.engines.containers.status_reader import STOPPED_EARLY, TERMINATED
from commonage.engines.rundir.runs import Exit

_KILLED = 137
# Exit code that a daemon assigns to a container that ended while both the daemon and its containerd were down.
_NOBODY_KNOWS = 255
_LOOKS_AFTER_S = 30.0
_LIVES = ("running", "paused", "restarting")


@dataclass(frozen=True, slots=True)
class EndContext:
    """Context for reading an end: the control folder, and the start times of daemon and node.

    `from_outside`: another party sent it a terminating signal shortly before the end.
    """

    claim: Claim
    restarted: bool
    from_outside: bool
    booted_at: float
    daemon_started_at: float | None
    live_restore: bool
    now: float


def lives(state: Mapping[str, Any]) -> bool:
    return state["Status"] in _LIVES


def has_ended(state: Mapping[str, Any]) -> bool:
    """True if it ran, or was to run, and has ended."""
    return state["Status"] in ("exited", "dead", "removing")


def url_of(request: StartRequest, found: Mapping[str, Any]) -> str | None:
    if not request.wants_port:
        return None
    networks = found["NetworkSettings"]["Networks"] or {}
    address = next((one["IPAddress"] for one in networks.values() if one.get("IPAddress")), None)
    return None if address is None else f"http://{address}:{PORT}"


def may_be_oom_yet(state: Mapping[str, Any]) -> bool:
    """True if it was killed, and the daemon may still learn that this was for lack of memory."""
    return bool(state["ExitCode"] == _KILLED and not state["OOMKilled"])


def end_of(state: Mapping[str, Any], context: EndContext) -> Exit:
    """Return how a container ended. `code` is None if the program's own is unknown."""
    started_at = instant(state["StartedAt"])
    ended_at = instant(state["FinishedAt"]) or context.now
    code = int(state["ExitCode"])
    if context.claim is Claim.NEVER:
        return Exit(TERMINATED, STOPPED_EARLY, ended_at)
    if context.claim is Claim.NOBODY:
        # The entry did not start: a broken image, or a full disk.
        why = str(state["Error"]) or f"its first process ended with {code}"
        return Exit(code or 1, ContainerStartFailed(error=why), ended_at)
    if context.restarted:
        return Exit(None, ExitCodeLost(why=ExitCodeLoss.STARTED_TWICE), ended_at)
    if started_at is not None and _fell_with_the_node(started_at, ended_at, context):
        return Exit(None, NodeRestarted(), ended_at)
    if started_at is not None and _fell_with_the_daemon(started_at, ended_at, context):
        return Exit(None, DaemonRestarted(), ended_at)
    if (
        started_at is not None
        and code == _NOBODY_KNOWS
        and _ended_before_the_daemon_came(started_at, ended_at, context)
    ):
        return Exit(None, ExitCodeLost(why=ExitCodeLoss.DAEMON_AWAY), ended_at)
    oom = bool(state["OOMKilled"]) and code != 0
    if context.from_outside and not oom:
        return Exit(None, EndedFromOutside(by=ExternalActor.DOCKER), ended_at)
    return Exit(code, None, ended_at, oom)


def _fell_with_the_node(started_at: float, ended_at: float, context: EndContext) -> bool:
    return started_at < context.booted_at - 1 and ended_at >= context.booted_at - 1


def _fell_with_the_daemon(started_at: float, ended_at: float, context: EndContext) -> bool:
    """Without live-restore a starting daemon ends every container that its predecessor had started."""
    born = context.daemon_started_at
    return born is not None and not context.live_restore and started_at < born <= ended_at


def _ended_before_the_daemon_came(started_at: float, ended_at: float, context: EndContext) -> bool:
    """With live-restore a starting daemon handles its predecessor's containers at once."""
    born = context.daemon_started_at
    return born is not None and started_at < born and born - 1 <= ended_at < born + _LOOKS_AFTER_S
