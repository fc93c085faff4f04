"""The Docker engine: the engine port over containers of one daemon, on the control plane's own machine.

One attempt is one container, named after it. What must outlive us and the daemon is in the run folders; what the daemon
says of a container is read into them once it ended. Made by bootstrap; used through the port only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from commonage.domain.environments import Environment, EnvironmentStatus
from commonage.domain.errors import EngineFailure, NotFound
from commonage.domain.fleet import NodeReport
from commonage.domain.sightings import Capabilities, LogLine, Measurement, Order, ProcessOwner, Seen, Sighting
from commonage.engines.common.logs import read_log
from commonage.engines.common.runs import Exit, Runs
from commonage.engines.common.tasks import Tasks
from commonage.engines.containers.board import Board, Run
from commonage.engines.containers.kernel import measure, owners_of
from commonage.engines.containers.program import shared_variables
from commonage.engines.docker.client import Client, DaemonUnreachable
from commonage.engines.docker.daemon import Daemon
from commonage.engines.docker.ending import end_run
from commonage.engines.docker.housekeeping import House
from commonage.engines.docker.images import Images
from commonage.engines.docker.launcher import Launcher, Place, is_ours
from commonage.engines.docker.looking import Gone, Looker, Unstarted
from commonage.engines.docker.networks import Networks
from commonage.engines.docker.relays import Relays
from commonage.engines.docker.settings import DockerSettings
from commonage.engines.docker.translate import container_name, ours
from commonage.engines.docker.watching import Ears, listen
from commonage.ports.agents import Told, unheard
from commonage.ports.devices import Devices

_log = logging.getLogger(__name__)
_ENDING_SIGNALS = ("9", "15")


class DockerEngine:
    """The engine of a site that is one Docker daemon.

    All its files lie under `data` (docker/runs, workspaces).
    """

    def __init__(
        self, site: str, data: Path, *, devices: Devices | None = None, settings: DockerSettings | None = None
    ) -> None:
        self._site = site
        self._data = data.absolute()
        self._settings = settings or DockerSettings()
        self._devices = devices
        self._files = Runs(self._data / "docker" / "runs")
        self._board = Board()
        self._tasks = Tasks("docker")
        self._in_thread, self._spawn = self._tasks.in_thread, self._tasks.spawn
        self._client = Client(self._settings.url)
        self._daemon = Daemon(self._client, self._settings, self._in_thread)
        self._images = Images(self._client, site, self._settings.pull, self._settings.account)
        self._relays = Relays(self._settings.reaches)
        self._installation = ""
        self._networks: Networks
        self._launcher: Launcher
        self._looker: Looker

    # --- the port: what it is -----------------------------------------------------------------------------

    @property
    def site(self) -> str:
        """The name of its site."""
        return self._site

    def capabilities(self) -> Capabilities:
        """What it can do, which depends on the daemon."""
        return self._daemon.capabilities()

    async def nodes(self) -> Sequence[NodeReport]:
        """The daemon's machine, which is ours."""
        return [await self._daemon.report(self._data, self._devices)]

    # --- the port: opening and closing --------------------------------------------------------------------

    async def open(self) -> None:
        """Find all that runs, ended since, or was written down but not started. Raises EngineFailure."""
        try:
            await self._in_thread(self._files.open)
            self._installation = await self._in_thread(lambda: installation_of(self._data / "docker"))
            found = await self._in_thread(self._files.load)
        except OSError as error:
            raise EngineFailure(f"the folder {self._data} cannot be used: {error}") from error
        await self._daemon.look()
        self._networks = Networks(self._client, self._installation, self._settings.networks, self._relays)
        place = Place(self._installation, self._data / "workspaces", shared_variables(os.environ), self._settings)
        self._launcher = Launcher(place, self._client, self._networks, self._in_thread, self._devices)
        self._launcher.owner, self._launcher.gpus = self._daemon.owner, self._daemon.gpus
        self._looker = Looker(self._client, self._daemon, self._launcher, self._in_thread, self._installation)
        await self._networks.open()
        for order, _ in found:
            self._note(order).begun.set_result(None)
        await self._look_at_all()
        if self._devices is not None:
            live = [run.id for run in self._board if run.sighting.seen is not Seen.ENDED]
            await self._in_thread(lambda: self._devices.settle(live) if self._devices else None)
        ears = Ears(self._daemon_is_back, self._heard, self._daemon_is_away)
        self._spawn(listen(self._client, ours(self._installation), ears))
        house = House(self._board, self._files, self._client, self._networks, place)
        self._spawn(house.keep_logs_short(self._in_thread))
        self._spawn(house.keep_clean(self._in_thread))

    async def close(self) -> None:
        """Let go; what runs goes on, and is found again."""
        await asyncio.gather(*(run.begun for run in self._board), return_exceptions=True)
        await self._tasks.cancel()
        await self._images.close()
        self._relays.close()
        await self._client.close()
        self._tasks.close()

    # --- the port: starting -------------------------------------------------------------------------------

    async def start(self, order: Order) -> None:
        """Write it down; its container is made meanwhile."""
        run = self._board.runs.get(order.attempt_id)
        if run is None:
            self._files.folder(order.attempt_id)  # raises for what cannot be an id
            self._launcher.check(order)
            run = self._note(order)
            # A task of its own: a caller that is cancelled must not leave something half written.
            self._spawn(self._begin(run))
        await asyncio.shield(run.begun)

    def _note(self, order: Order) -> Run:
        run = Run(order, self._files.folder(order.attempt_id), self._starting(order))
        self._board.runs[order.attempt_id] = run
        return run

    def _starting(self, order: Order, detail: str = "starting", progress: float | None = None) -> Sighting:
        return Sighting(order.attempt_id, Seen.STARTING, time.time(), self._daemon.node, detail, progress)

    async def _begin(self, run: Run) -> None:
        try:
            goes_on = await self._in_thread(lambda: self._write(run))
        except Exception as error:  # whatever it is, it is for those who wait for the start
            self._board.runs.pop(run.id, None)
            run.begun.set_exception(error)
            run.begun.exception()  # though it may be that nobody waits any more
            return
        if not goes_on:  # ran in a former life, and was forgotten
            self._board.runs.pop(run.id, None)
        else:
            self._board.tell(run, self._starting(run.order))
            self._launch(run)
        run.begun.set_result(None)

    def _write(self, run: Run) -> bool:
        if self._files.is_forgotten(run.id):
            return False
        try:
            self._files.create(run.order, None)
        except OSError as error:
            self._files.remove(run.id)
            raise EngineFailure(f"its run folder cannot be written: {error}", retryable=True) from error
        return True

    def _launch(self, run: Run) -> None:
        if not run.is_launching and run.ending is None:
            run.launching = self._spawn(self._have_started(run))

    async def _have_started(self, run: Run) -> None:
        """Have its image here and its container started; however that goes, it shows as a sighting."""

        def told(detail: str, progress: float | None) -> None:
            self._board.tell(run, self._starting(run.order, detail, progress))

        try:
            if await self._in_thread(run.folder.claim) is None:
                await self._images.ensure(run.order.environment, told)
                await self._launcher.launch(run)
        except DaemonUnreachable:
            told("waiting for the Docker daemon, which does not answer", None)
            return
        except EngineFailure as error:
            await self._in_thread(partial(_write_failure, run, error.message))
        await self._settle(run)

    # --- how a change is noticed --------------------------------------------------------------------------

    async def _settle(self, run: Run) -> None:
        """Look what became of it, and tell; start what was not started."""
        async with run.looking:
            if run.sighting.seen is Seen.ENDED:
                return
            try:
                found = await self._looker.look(run)
            except EngineFailure as error:  # the daemon is away, or the disk is full: it is looked at again
                _log.warning("cannot look what became of %s: %s", run.id, error.message)
                return
            if isinstance(found, Unstarted):
                self._launch(run)
            elif not isinstance(found, Gone):
                self._board.tell(run, found)

    async def _look_at_all(self) -> None:
        await asyncio.gather(*(self._settle(run) for run in self._board))

    async def _daemon_is_back(self) -> None:
        await self._daemon.look()
        self._launcher.owner, self._launcher.gpus = self._daemon.owner, self._daemon.gpus
        await self._networks.look_again()
        await self._look_at_all()

    def _daemon_is_away(self, why: str) -> None:
        self._daemon.fault = why

    def _heard(self, attempt_id: str, action: str, signal: str) -> None:
        run = self._board.runs.get(attempt_id)
        if run is None:
            return
        if action == "kill":
            if run.ending is None and signal in _ENDING_SIGNALS:
                run.signalled_at = time.time()
        else:
            self._spawn(self._settle(run))

    # --- the port: stopping and forgetting ----------------------------------------------------------------

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        """Ask it to end, and see to it; one that is not known yet will not start."""
        run = self._board.runs.get(attempt_id)
        if run is None:
            await self._in_thread(lambda: self._stop_early(attempt_id))
            return
        if run.sighting.seen is Seen.ENDED:
            return
        run.kill_at = min(run.kill_at, asyncio.get_running_loop().time() + grace_s)
        if run.ending is None:
            run.ending = self._spawn(self._end(run))

    def _stop_early(self, attempt_id: str) -> None:
        try:
            folder = self._files.folder(attempt_id)
        except EngineFailure:  # cannot be an id: nothing of ours has it
            return
        if not self._files.is_forgotten(attempt_id):
            folder.path.mkdir(mode=0o700, exist_ok=True)
            folder.claim_never()

    async def _end(self, run: Run) -> None:
        with suppress(EngineFailure):
            await asyncio.shield(run.begun)
        if await self._in_thread(run.box.claim_never):
            if run.launching is not None:
                run.launching.cancel()
            await self._in_thread(run.folder.claim_never)
            await self._settle(run)
            return
        await end_run(run, self._client, self._settle)

    async def forget(self, attempt_id: str) -> None:
        """Keep its log only. Raises EngineFailure while the daemon is away."""
        run = self._board.runs.get(attempt_id)
        if run is None or run.sighting.seen is not Seen.ENDED:
            return
        found = await self._client.inspect(container_name(attempt_id))
        if found is not None and is_ours(found, attempt_id, self._installation):
            await self._client.remove(str(found["Id"]))
        await self._in_thread(lambda: self._files.forget(attempt_id))
        self._board.runs.pop(attempt_id, None)

    # --- the port: looking --------------------------------------------------------------------------------

    async def sightings(self) -> Sequence[Sighting]:
        """The newest of each."""
        return [run.sighting for run in self._board]

    def watch(self) -> AsyncIterator[Sighting]:
        """Sightings from now on."""
        return self._board.watch()

    async def logs(
        self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Its output."""
        path = await self._in_thread(lambda: self._files.log_path(attempt_id))
        if path is None:
            raise NotFound(f"there is no log of {attempt_id[:100]} (any more)", code="log-not-found")

        def has_ended() -> bool:
            run = self._board.runs.get(attempt_id)
            return run is None or run.sighting.seen is Seen.ENDED

        async for line in read_log(path, offset, tail, follow, has_ended):
            yield line

    async def measure(self) -> Sequence[Measurement]:
        """What each running attempt uses now."""
        running = [(run.id, run.pid) for run in self._board if run.is_running and run.pid]
        return await self._in_thread(lambda: [found for one, pid in running if (found := measure(one, pid))])

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """Whose these processes are."""
        attempts = {run.container: run.id for run in self._board if run.container is not None}
        return await self._in_thread(lambda: owners_of(pids, attempts))

    # --- the port: environments ---------------------------------------------------------------------------

    async def prepare(self, environment: Environment, node: str | None = None, told: Told = unheard) -> None:
        """Have its image here, on the one machine that there is."""
        await self._images.ensure(environment, told)

    async def environments(self) -> Sequence[EnvironmentStatus]:
        """Where each stands."""
        return self._images.statuses()


def _write_failure(run: Run, why: str) -> None:
    """It was accepted, but cannot be started: it ends with our reason. Unless its command runs after all."""
    if run.box.claim_never():
        run.folder.write_exit(Exit(1, why, time.time()))


def installation_of(folder: Path) -> str:
    """The name by which this data folder tells its containers from those of others; made once. Raises OSError."""
    path = folder / "installation"
    with suppress(FileNotFoundError):
        return path.read_text(encoding="ascii").strip()
    temporary = folder / "installation.new"
    temporary.write_text(os.urandom(8).hex(), encoding="ascii")
    temporary.rename(path)
    return path.read_text(encoding="ascii").strip()
