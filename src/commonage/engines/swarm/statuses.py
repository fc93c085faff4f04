"""Tasks of our services, and what Swarm's description of a task means: its status and its end.

One call reads all tasks. Swarm's events do not include tasks, so the Swarm is polled: often while a change is expected,
else every few seconds. The control folders of attempts show changes first.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import (
    AssignedToNode,
    ContainerStartFailed,
    EndedFromOutside,
    ExitCodeLoss,
    ExitCodeLost,
    ExternalActor,
    PortTaken,
    PreparingOnNode,
    SharedFolderNotMounted,
    Starting,
    SwarmRefuses,
    SwarmSeesNoGpuMemory,
    SwarmSeesNoRoom,
    SwarmWithdrew,
    WaitingForSwarm,
)
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.daemon.connection import Json, failure_of
from commonage.engines.containers.daemon.descriptions import LABEL, installation_filter, instant
from commonage.engines.containers.files.control_folder import End, StartDecision
from commonage.engines.containers.status_reader import (
    INTERPOSER_NOT_LOADED,
    NOT_LOADED,
    STOPPED_EARLY,
    TERMINATED,
)
from commonage.engines.rundir.runs import Exit
from commonage.engines.swarm.client import Client
from commonage.engines.swarm.translate import vram_of

_log = logging.getLogger(__name__)
_PORT_TAKEN = re.compile(r"port is already allocated|address already in use")
_BY_ITSELF = "task: non-zero exit"
_WITHDRAWN = "no longer meets constraints"
_ENDED = ("complete", "failed", "shutdown", "rejected", "remove", "orphaned")
_WAITS = ("new", "allocated", "pending")
_BEFORE: dict[str, type[AssignedToNode | PreparingOnNode | Starting]] = {
    "assigned": AssignedToNode,
    "accepted": AssignedToNode,
    "preparing": PreparingOnNode,
}


@dataclass(frozen=True, slots=True)
class EndContext:
    """Facts that decide how the end of an attempt is reported. `node` is the attempt's node, `now` unix seconds.

    `is_interposed`: its image must load an interposer.
    """

    node: str
    decision: StartDecision
    restarted: bool
    end: End | None
    could_not_write: bool
    stop_requested: bool
    now: float
    is_interposed: bool = False


def attempt_of(task: Json) -> str:
    """The attempt's id; empty for a task that is not ours."""
    return str((task["Spec"]["ContainerSpec"].get("Labels") or {}).get(f"{LABEL}.attempt", ""))


def state_of(task: Json) -> str:
    """Swarm's own term."""
    return str(task["Status"]["State"])


def has_ended(task: Json) -> bool:
    """True if it no longer runs, or never will."""
    return state_of(task) in _ENDED


def is_orphaned(task: Json) -> bool:
    """True if Swarm has not heard from its node for a day, and no longer tracks it: it may still run."""
    return state_of(task) == "orphaned"


def ended_by_itself(task: Json) -> bool:
    """True if its container ended, for any reason, and Swarm knows: nothing of it is left on its node."""
    return state_of(task) in ("complete", "failed")


def runs(task: Json) -> bool:
    return state_of(task) == "running"


def is_refused_room(task: Json) -> bool:
    """True while Swarm finds no room for it on its node."""
    return state_of(task) == "pending" and "no suitable node" in str(task["Status"].get("Err", ""))


def waiting_reason(task: Json, request: StartRequest, *, declares_vram: bool) -> Reason:
    node = request.allocation.node
    if not is_refused_room(task):
        return WaitingForSwarm() if state_of(task) in _WAITS else _BEFORE.get(state_of(task), Starting)(node=node)
    said = str(task["Status"]["Err"])
    if "insufficient resources" not in said:
        return SwarmRefuses(node=node, error=said)
    vram = vram_of(request.allocation, declared=declares_vram)
    if vram and not declares_vram:
        return SwarmSeesNoGpuMemory(node=node)
    return SwarmSeesNoRoom(node=node, memory_mib=request.allocation.memory_mib, gpu_memory_mib=vram)


def changed_at(task: Json) -> float | None:
    """Time of its last state change, by its node's clock."""
    return instant(task["Status"]["Timestamp"])


def end_of(task: Json, context: EndContext) -> Exit:
    """Return how a task ended. `code` is None if the program's own is unknown.

    The time is Swarm's: the owner may have forged the contents of the control folder.
    """
    ended_at = changed_at(task) or context.now
    status = task["Status"]
    code = int((status.get("ContainerStatus") or {}).get("ExitCode", 0))
    if context.decision is StartDecision.FORBIDDEN:
        return Exit(TERMINATED, STOPPED_EARLY, ended_at)
    if context.decision is StartDecision.UNDECIDED and state_of(task) != "complete":
        return _never_started(task, code, context, ended_at)
    if context.restarted:
        return Exit(None, ExitCodeLost(why=ExitCodeLoss.STARTED_TWICE), ended_at)
    if context.end is not None and (context.stop_requested or context.end.oom or not context.end.signalled):
        return Exit(context.end.code, None, ended_at, context.end.oom and context.end.code != 0)
    if context.stop_requested or (context.could_not_write and ended_by_itself(task)):
        return Exit(code, None, ended_at)
    if state_of(task) == "complete" and context.end is None:
        return Exit(0, None, ended_at)
    by = ExternalActor.DAEMON if ended_by_itself(task) else ExternalActor.SWARM
    return Exit(None, EndedFromOutside(by=by, node=context.node), ended_at)


def _never_started(task: Json, code: int, context: EndContext, ended_at: float) -> Exit:
    node = context.node
    said = str(task["Status"].get("Err") or f"its first process ended with {code}")
    if context.is_interposed and said.startswith(_BY_ITSELF) and code in NOT_LOADED:
        return Exit(code, INTERPOSER_NOT_LOADED, ended_at)
    if state_of(task) in ("shutdown", "orphaned", "remove") or _WITHDRAWN in said:
        _log.warning("Docker Swarm gave a task up before it started on %s: %s", node, said)
        return Exit(None, SwarmWithdrew(node=node), ended_at)
    if "bind source path does not exist" in said:
        path = said.rpartition(": ")[2]
        return Exit(None, SharedFolderNotMounted(node=node, path=path), ended_at)
    if _PORT_TAKEN.search(said):
        _log.warning("a port is taken on %s: %s", node, said)
        return Exit(None, PortTaken(node=node), ended_at)
    # The end of the first process is the image's fault. A node that did not start one may do so the next time.
    failure = failure_of(400 if said.startswith(_BY_ITSELF) else 500, said)
    _log.warning("a container could not be started on %s: %s", node, failure)
    why = ContainerStartFailed(node=node, error=failure.message)
    return Exit(None if failure.is_retryable else code or 1, why, ended_at)


class Tasks:
    """Tasks of one installation's services: the first of each, because no second one runs its command."""

    def __init__(self, client: Client, installation: str) -> None:
        self._client = client
        self._label = installation_filter(installation)
        self._tasks: Mapping[str, Json] = {}
        self._asked_at = float("-inf")
        self.refresh_requested = asyncio.Event()

    def of(self, attempt_id: str) -> Json | None:
        """The task of an attempt; None if it had none at the last query."""
        return self._tasks.get(attempt_id)

    def is_newer_than(self, moment: float) -> bool:
        """True if Swarm was queried after this moment, by the loop's time."""
        return self._asked_at > moment

    def refresh_soon(self) -> None:
        """Query soon, because a change is expected."""
        self.refresh_requested.set()

    def forget(self, attempt_id: str) -> None:
        self._tasks = {attempt: task for attempt, task in self._tasks.items() if attempt != attempt_id}

    async def ask(self) -> set[str]:
        """Query all; return the attempts whose task has changed. Raises EngineFailure."""
        began = asyncio.get_running_loop().time()
        found: dict[str, Json] = {}
        for task in sorted(await self._client.tasks(self._label), key=lambda one: str(one["CreatedAt"])):
            found.setdefault(attempt_of(task), task)
        before = self._tasks
        self._tasks, self._asked_at = found, began
        return {one for one in found.keys() | before.keys() if _version(found.get(one)) != _version(before.get(one))}


def _version(task: Json | None) -> object:
    return None if task is None else (task["ID"], task["Version"]["Index"])
