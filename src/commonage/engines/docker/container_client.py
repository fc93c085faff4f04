"""Implements `AttemptBackend` for containers of the local daemon, and interprets their state.

`launcher.py` creates them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from commonage.domain.reasons.attempts import (
    ContainerStartFailed,
    DaemonRestarted,
    EndedFromOutside,
    ExitCodeLoss,
    ExitCodeLost,
    ExternalActor,
    NodeRestarted,
    RemovedFromOutside,
)
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.attempt_backend import Absent, ContainerState, Created, Ended, Run, Running, Signal
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.containers.daemon.descriptions import instant
from commonage.engines.containers.daemon.images import Images
from commonage.engines.containers.files.control_folder import StartDecision
from commonage.engines.containers.program import PORT
from commonage.engines.containers.status_reader import (
    INTERPOSER_NOT_LOADED,
    NOT_LOADED,
    STOPPED_EARLY,
    TERMINATED,
    is_interposed,
)
from commonage.engines.docker.client import Client
from commonage.engines.docker.daemon import Daemon
from commonage.engines.docker.launcher import Launcher, is_ours, is_warm
from commonage.engines.docker.translate import container_name
from commonage.engines.rundir.proc import booted_at
from commonage.engines.rundir.runs import Exit
from commonage.engines.rundir.tasks import InThread
from commonage.ports.agents import OnProgress

_KILLED = 137
# Exit code that a daemon assigns to a container that ended while both the daemon and its containerd were down.
_NOBODY_KNOWS = 255
_LOOKS_AFTER_S = 30.0
_LIVES = ("running", "paused", "restarting")


@dataclass(frozen=True, slots=True)
class EndContext:
    """Context for reading an end: the control folder, and the start times of daemon and node.

    `signalled`: another party sent it a terminating signal shortly before the end. `is_interposed`: its image must load
    an interposer.
    """

    decision: StartDecision
    restarted: bool
    signalled: bool
    booted_at: float
    daemon_started_at: float | None
    live_restore: bool
    now: float
    is_interposed: bool = False


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
    return None if address is None else f"http://{address}:{request.port or PORT}"


def may_be_oom_yet(state: Mapping[str, Any]) -> bool:
    """True if it was killed, and the daemon may still learn that this was for lack of memory."""
    return bool(state["ExitCode"] == _KILLED and not state["OOMKilled"])


def end_of(state: Mapping[str, Any], context: EndContext) -> Exit:
    """Return how a container ended. `code` is None if the program's own is unknown."""
    started_at = instant(state["StartedAt"])
    ended_at = instant(state["FinishedAt"]) or context.now
    code = int(state["ExitCode"])
    if context.decision is StartDecision.FORBIDDEN:
        return Exit(TERMINATED, STOPPED_EARLY, ended_at)
    if context.decision is StartDecision.UNDECIDED:
        if context.is_interposed and not state["Error"] and code in NOT_LOADED:
            return Exit(code, INTERPOSER_NOT_LOADED, ended_at)
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
    if context.signalled and not oom:
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


_OOM_NEWS_S = 0.3
_OOM_LOOKS = 10
# If a program ends so soon after a signal from outside, that signal ended it, whatever its exit code says.
_SIGNAL_TELLS_S = 60.0


@dataclass(eq=False)
class DockerContainerClient:
    client: Client
    daemon: Daemon
    images: Images
    launcher: Launcher
    in_thread: InThread
    installation: str

    def node_of(self, request: StartRequest) -> str:
        return self.daemon.node

    def port_for(self, request: StartRequest, taken: Collection[int]) -> int | None:
        """None: each container has its own address, and so all ports."""
        return None

    async def launch(self, run: Run, on_progress: OnProgress) -> None:
        await self.images.ensure(run.request.environment, on_progress)
        await self.launcher.launch(run, on_progress)

    async def inspect(self, run: Run) -> ContainerState:
        found = await self.client.inspect(container_name(run.id))
        if found is None or not is_ours(found, run.id, self.installation):
            return Absent(RemovedFromOutside())
        state = found["State"]
        if state["Status"] == "created":
            return Created()
        started_at = instant(state["StartedAt"])
        if is_warm(found):
            started_at = await self.in_thread(run.control_folder.ran_at)
            if started_at is None:  # it waits, or ended before it was the attempt's
                return Created()
        run.container, run.pid = str(found["Id"]), int(state["Pid"]) or None
        if lives(state):
            return Running(started_at, url_of(run.request, found))
        return Ended(started_at, partial(self._end, run, found)) if has_ended(state) else Created()

    async def _end(self, run: Run, found: Json) -> Exit:
        state = found["State"]
        signalled = time.monotonic() - run.signalled_at < _SIGNAL_TELLS_S
        for _ in range(_OOM_LOOKS):
            if not may_be_oom_yet(state) or run.ending is not None or signalled:
                break
            # The kernel's out-of-memory event may arrive after the end.
            await asyncio.sleep(_OOM_NEWS_S)
            again = await self.client.inspect(str(found["Id"]))
            state = again["State"] if again is not None else state
        decision, restarted = await self.in_thread(
            lambda: (run.control_folder.decision(), run.control_folder.was_restarted())
        )
        context = EndContext(
            decision=decision,
            restarted=restarted,
            signalled=time.monotonic() - run.signalled_at < _SIGNAL_TELLS_S,
            booted_at=booted_at(),
            daemon_started_at=self.daemon.started_at,
            live_restore=self.daemon.live_restore,
            now=time.time(),
            is_interposed=is_interposed(run.request),
        )
        return end_of(state, context)

    async def signal(self, run: Run, signal: Signal) -> None:
        await self.client.kill(container_name(run.id), signal)

    async def remove(self, run: Run) -> None:
        """Remove it if this installation created it."""
        found = await self.client.inspect(container_name(run.id))
        if found is not None and is_ours(found, run.id, self.installation):
            await self.client.remove(str(found["Id"]))

    async def release(self, run: Run) -> None:
        await self.launcher.release(run)
