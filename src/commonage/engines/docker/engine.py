"""The Docker engine: the engine port over containers of one daemon, on the control plane's own node.

One attempt is one container, named after it. State that must survive the server and the daemon is in the run folders; a
container's state is copied into them once it ended. Created by bootstrap; used through the port only.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment
from commonage.domain.nodes import NodeReport
from commonage.domain.statuses import Capabilities, Measurement, ProcessOwner
from commonage.engines.containers.attempt_backend import Run
from commonage.engines.containers.daemon.descriptions import installation_filter
from commonage.engines.containers.engine import ContainerEngine
from commonage.engines.containers.execs import DaemonExecs
from commonage.engines.containers.files.prepare import ContainerDefaults, put_in
from commonage.engines.containers.program import shared_variables
from commonage.engines.containers.usage import measure, owners_of
from commonage.engines.docker.client import Client, EventHandlers, watch_events
from commonage.engines.docker.container_client import DockerContainerClient
from commonage.engines.docker.daemon import Daemon
from commonage.engines.docker.launcher import Launcher, Networks
from commonage.engines.docker.translate import container_name
from commonage.engines.docker.warm.containers import WarmContainers
from commonage.engines.settings import DockerSettings
from commonage.files.safe_path import SafePath
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.devices import Devices
from commonage.ports.execs import ExecStream, Terminal

_log = logging.getLogger(__name__)
_ENDING_SIGNALS = ("9", "15")


class DockerEngine(ContainerEngine):
    """The engine of a site that is one Docker daemon.

    All its files lie under `data` (docker/runs, workspaces).
    """

    _networks: Networks

    def __init__(
        self, site: str, data: Path, *, devices: Devices | None = None, settings: DockerSettings | None = None
    ) -> None:
        self._data = data.absolute()
        self._settings = settings or DockerSettings()
        self._client = Client(self._settings.url)
        super().__init__(site, "docker", self._data / "docker", self._settings, self._client)
        self._devices = devices
        self._daemon = Daemon(self._client, self._settings, self._in_thread)
        self._execs = DaemonExecs(self._settings.url)
        self._warm: WarmContainers | None = None

    @property
    def _workspaces(self) -> SafePath:
        return SafePath(self._data) / "workspaces"

    # --- the port: capabilities ------------------------------------------------------------------------------

    def capabilities(self) -> Capabilities:
        return self._daemon.capabilities()

    async def nodes(self) -> Sequence[NodeReport]:
        return [await self._daemon.report(self._data, self._devices)]

    # --- the port: opening and closing --------------------------------------------------------------------

    async def open(self) -> None:
        requests = await self._load_requests()
        await self._daemon.refresh()
        name, settings = self._installation, self._settings
        self._networks = Networks(self._client, name, settings.networks, self._relays)
        shared = shared_variables(os.environ)
        defaults = ContainerDefaults(name, self._workspaces, shared, self._unpacker, is_local=True)
        injected = self._data / "docker" / "injected"
        try:
            await self._in_thread(lambda: put_in(injected))
        except OSError as error:
            raise EngineFailure(f"the folder {injected} cannot be made: {error.strerror}") from error
        # It mounts folders in them: as root, and with the containers' processes in sight.
        if settings.warm_containers and os.geteuid() == 0 and self._daemon.started_at is not None:
            self._warm = WarmContainers(
                self._client, self._data / "docker" / "warm", settings.warm_containers, self._daemon.owner,
                self._in_thread, self._start_limiter.is_busy,
            )  # fmt: skip
            self._keep("keep warm containers", self._warm.keep)
        launcher = Launcher(
            defaults, injected, settings, self._client, self._daemon, self._networks, self._devices,
            self._start_limiter, self._in_thread, self._warm,
        )  # fmt: skip
        await self._networks.open()
        container_client = DockerContainerClient(
            self._client, self._daemon, self._images, launcher, self._in_thread, name
        )
        await self._recover(requests, container_client)
        await self._settle_devices()
        handlers = EventHandlers(self._daemon_is_back, self._on_event, self._daemon.mark_unreachable)
        self._keep("listen to events", partial(watch_events, self._client, installation_filter(name), handlers))
        self._spawn(self._execs.end_left_over([container_name(run.id) for run in self._table if run.is_running]))
        self._keep_house()

    async def _settle_devices(self) -> None:
        devices = self._devices
        if devices is not None:
            live = [run.id for run in self._table.live()]
            await self._in_thread(lambda: devices.settle(live))

    async def close(self) -> None:
        await self._execs.close()
        await super().close()

    async def _before_disconnect(self) -> None:
        if self._warm is not None:
            await self._warm.close()

    # --- changes --------------------------------------------------------------------------------------------

    async def _daemon_is_back(self) -> None:
        await self._daemon.refresh()
        await self._networks.refresh()
        await self._settle_all()

    def _on_event(self, attempt_id: str, action: str, signal: str) -> None:
        run = self._table.runs.get(attempt_id)
        if run is None:
            return
        if action == "kill":
            if run.ending is None and signal in _ENDING_SIGNALS:
                run.signalled_at = time.monotonic()
        else:
            self._spawn(self._settle(run))

    async def _clear(self) -> None:
        """Remove our containers whose attempt is forgotten or was never written to disk, and unused networks.

        A crash between two steps leaves such containers. Raises EngineFailure.
        """
        for name in (await self._client.containers(installation_filter(self._installation))).values():
            attempt = name.removeprefix(container_name(""))
            if attempt not in self._table.runs and not (self._warm is not None and self._warm.has(name)):
                _log.warning("removing the container of the unknown attempt %s", attempt)
                # By its name: it may have become an attempt's, and be named after that, since they were listed.
                await self._client.remove(name)
        await self._networks.clear_unused(self._has_runs_of)

    # --- the port: status and usage -------------------------------------------------------------------------

    async def measure(self) -> Sequence[Measurement]:
        running = [(run.id, run.pid) for run in self._table if run.is_running and run.pid]
        return await self._in_thread(lambda: [found for one, pid in running if (found := measure(one, pid))])

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        attempts = {run.container: run.id for run in self._table if run.container is not None}
        return await self._in_thread(lambda: owners_of(pids, attempts))

    async def _exec(self, run: Run, command: Sequence[str], terminal: Terminal | None) -> ExecStream:
        return await self._execs.begin(container_name(run.id), run.id, command, terminal)

    # --- the port: environments ---------------------------------------------------------------------------

    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        await self._images.ensure(environment, on_progress)
