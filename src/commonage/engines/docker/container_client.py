"""Implements `AttemptBackend` for containers of the local daemon. `launcher.py` creates them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from functools import partial

from commonage.domain.reasons.attempts import RemovedFromOutside
from commonage.domain.statuses import StartRequest
from commonage.engines.containers.attempt_backend import Absent, ContainerState, Created, Ended, Running, Signal
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.containers.daemon.descriptions import instant
from commonage.engines.containers.daemon.images import Images
from commonage.engines.containers.files.prepare import check
from commonage.engines.containers.run import Run
from commonage.engines.containers.usage import booted_at
from commonage.engines.docker.client import Client
from commonage.engines.docker.daemon import Daemon
from commonage.engines.docker.launcher import Launcher, is_ours
from commonage.engines.docker.statuses import (
    EndContext,
    end_of,
    has_ended,
    lives,
    may_be_oom_yet,
    url_of,
)
from commonage.engines.docker.translate import container_name
from commonage.engines.rundir.runs import Exit
from commonage.engines.rundir.table import InThread
from commonage.ports.agents import OnProgress

_OOM_NEWS_S = 0.3
_OOM_LOOKS = 2
# If a program ends so soon after a signal from outside, that signal ended it, whatever its exit code says.
_SIGNAL_TELLS_S = 60.0


class DockerContainerClient:
    def __init__(
        self, client: Client, daemon: Daemon, images: Images, launcher: Launcher, in_thread: InThread, installation: str
    ) -> None:
        self._client = client
        self._daemon = daemon
        self._images = images
        self._launcher = launcher
        self._in_thread = in_thread
        self._installation = installation

    def check(self, request: StartRequest) -> None:
        check(request)

    def node_of(self, request: StartRequest) -> str:
        return self._daemon.node

    def port_for(self, request: StartRequest, taken: Collection[int]) -> int | None:
        """None: each container has its own address, and so all ports."""
        return None

    async def launch(self, run: Run, on_progress: OnProgress) -> None:
        await self._images.ensure(run.request.environment, on_progress)
        await self._launcher.launch(run, on_progress)

    async def inspect(self, run: Run) -> ContainerState:
        found = await self._client.inspect(container_name(run.id))
        if found is None or not is_ours(found, run.id, self._installation):
            return Absent(RemovedFromOutside())
        state = found["State"]
        if state["Status"] == "created":
            return Created()
        run.container, run.pid = str(found["Id"]), int(state["Pid"]) or None
        started_at = instant(state["StartedAt"])
        if lives(state):
            return Running(started_at, url_of(run.request, found))
        return Ended(started_at, partial(self._end, run, found)) if has_ended(state) else Created()

    async def _end(self, run: Run, found: Json) -> Exit:
        state = found["State"]
        for _ in range(_OOM_LOOKS):
            if not may_be_oom_yet(state) or run.ending is not None:
                break
            # The kernel's out-of-memory event may arrive after the end.
            await asyncio.sleep(_OOM_NEWS_S)
            again = await self._client.inspect(str(found["Id"]))
            state = again["State"] if again is not None else state
        claim, restarted = await self._in_thread(
            lambda: (run.control_folder.claim(), run.control_folder.was_restarted())
        )
        context = EndContext(
            claim=claim,
            restarted=restarted,
            from_outside=time.monotonic() - run.signalled_at < _SIGNAL_TELLS_S,
            booted_at=booted_at(),
            daemon_started_at=self._daemon.started_at,
            live_restore=self._daemon.live_restore,
            now=time.time(),
        )
        return end_of(state, context)

    async def signal(self, run: Run, signal: Signal) -> None:
        await self._client.kill(container_name(run.id), signal)

    async def remove(self, run: Run) -> None:
        """Remove it if this installation created it."""
        found = await self._client.inspect(container_name(run.id))
        if found is not None and is_ours(found, run.id, self._installation):
            await self._client.remove(str(found["Id"]))

    async def release(self, run: Run) -> None:
        await self._launcher.release(run)
