"""What Swarm says of a task, and how it ended."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from commonage.domain.quantities import format_memory
from commonage.domain.sightings import Order
from commonage.engines.common.runs import Exit
from commonage.engines.containers.box import Claim, End
from commonage.engines.containers.looking import STOPPED_EARLY, TERMINATED
from commonage.engines.dockerd.connection import Json
from commonage.engines.dockerd.errors import failure_of
from commonage.engines.dockerd.times import instant
from commonage.engines.dockerd.words import LABEL
from commonage.engines.swarm.translate import vram_of

_log = logging.getLogger(__name__)
_PORT_TAKEN = re.compile(r"port is already allocated|address already in use")
_WITHDRAWN = "no longer meets constraints"
_ENDED = ("complete", "failed", "shutdown", "rejected", "remove", "orphaned")
_BEFORE = {
    "new": "waiting for Docker Swarm",
    "allocated": "waiting for Docker Swarm",
    "pending": "waiting for Docker Swarm",
    "assigned": "given to {node}",
    "accepted": "given to {node}",
    "preparing": "preparing on {node}: its image and network",
    "ready": "starting on {node}",
    "starting": "starting on {node}",
}


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else one has to know to read an end: what the box says, and whether we had it end. `node` is its machine."""

    node: str
    claim: Claim
    run_again: bool
    end: End | None
    could_not_write: bool
    wished: bool
    now: float


def attempt_of(task: Json) -> str:
    """The attempt's id; empty for a task that is none of ours."""
    return str((task["Spec"]["ContainerSpec"].get("Labels") or {}).get(f"{LABEL}.attempt", ""))


def state_of(task: Json) -> str:
    """Swarm's own word."""
    return str(task["Status"]["State"])


def has_ended(task: Json) -> bool:
    """True if it does not run any more, or never will."""
    return state_of(task) in _ENDED


def is_orphaned(task: Json) -> bool:
    """True if Swarm has not heard of its machine for a day, and keeps no account of it any more: it may run on."""
    return state_of(task) == "orphaned"


def ended_by_itself(task: Json) -> bool:
    """True if its container ended, whatever for, and Swarm knows: nothing of it is left on its machine."""
    return state_of(task) in ("complete", "failed")


def runs(task: Json) -> bool:
    """True while it is said to run."""
    return state_of(task) == "running"


def is_refused_room(task: Json) -> bool:
    """True while Swarm finds no room for it on its machine."""
    return state_of(task) == "pending" and "no suitable node" in str(task["Status"].get("Err", ""))


def waiting_detail(task: Json, order: Order, *, declares_vram: bool) -> str:
    """What a task that does not run yet is waiting for, in words."""
    if not is_refused_room(task):
        return _BEFORE.get(state_of(task), "starting").format(node=order.lease.node)
    said = str(task["Status"]["Err"])
    if "insufficient resources" not in said:
        return f"Docker Swarm does not start it on {order.lease.node}: {said}"
    vram = vram_of(order.lease, declared=declares_vram)
    if vram and not declares_vram:
        return (
            f"{order.lease.node} has cards, but its Docker declares no VRAM that Docker Swarm could reserve: an admin "
            "must run `commonage node join` for that machine again"
        )
    wanted = format_memory(order.lease.memory_mib) + " of memory"
    if vram:
        wanted += f" and {format_memory(vram)} of VRAM"
    return (
        f"Docker Swarm sees no room on {order.lease.node} for {wanted}: others than Commonage hold it there "
        f"(insufficient resources)"
    )


def changed_at(task: Json) -> float | None:
    """When its state became what it is, by its machine's clock."""
    return instant(task["Status"]["Timestamp"])


def end_of(task: Json, about: Circumstances) -> Exit:
    """How a task ended. `code` is None where nobody knows the program's own.

    When is Swarm's to say: what is in the box may be of its owner's making.
    """
    ended_at = changed_at(task) or about.now
    status = task["Status"]
    code = int((status.get("ContainerStatus") or {}).get("ExitCode", 0))
    if about.claim is Claim.NEVER:
        return Exit(TERMINATED, STOPPED_EARLY, ended_at)
    if about.claim is Claim.NOBODY and state_of(task) != "complete":
        return _never_started(task, code, about.node, ended_at)
    if about.run_again:
        return Exit(None, "Docker started it a second time, which was refused; its exit code is lost", ended_at)
    if about.end is not None and (about.wished or about.end.oom or not about.end.outside):
        return Exit(about.end.code, "", ended_at, about.end.oom and about.end.code != 0)
    if about.wished or (about.could_not_write and ended_by_itself(task)):
        return Exit(code, "", ended_at)
    if state_of(task) == "complete" and about.end is None:
        return Exit(0, "", ended_at)
    why = "its machine was drained in Docker Swarm, or its service changed"
    if ended_by_itself(task):
        why = "through Docker on its machine, or as the daemon there stopped or was started anew"
    return Exit(None, f"it was ended from outside on {about.node}: {why}", ended_at)


def _never_started(task: Json, code: int, node: str, ended_at: float) -> Exit:
    said = str(task["Status"].get("Err") or f"its first process ended with {code}")
    if state_of(task) in ("shutdown", "orphaned", "remove"):
        return Exit(None, f"Docker Swarm gave it up before it started on {node}: {said}", ended_at)
    if _WITHDRAWN in said:
        _log.warning("Docker Swarm took a task back before it started on %s: %s", node, said)
        return Exit(None, f"Docker Swarm took it back before it started on {node}", ended_at)
    if "bind source path does not exist" in said:
        path = said.rpartition(": ")[2]
        words = (
            f"{node} does not see the folder {path}; the folder of the site must be mounted on every machine under the "
            f"same path (`commonage doctor` tells which it is)"
        )
        return Exit(None, words, ended_at)
    if _PORT_TAKEN.search(said):
        _log.warning("a port is taken on %s: %s", node, said)
        return Exit(None, f"the port that was chosen for it is taken on {node}", ended_at)
    failure = failure_of(400, said)
    _log.warning("a container could not be started on %s: %s", node, failure)
    words = f"its container could not be started on {node}: {failure.message}"
    return Exit(None if failure.is_retryable else code or 1, words, ended_at)
