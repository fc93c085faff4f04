"""The life of the server: start everything in order, wait, stop everything in reverse. Called by `commonage up`.

The wiring is in `bootstrap`. An error of the node at the start becomes a sentence and exit code 2; a later error
becomes a log line and exit code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import httpx2
import uvloop

from commonage import __version__
from commonage.api.registry import images_in_use
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Loop
from commonage.domain.statuses import Phase
from commonage.domain.workloads import State
from commonage.engines.process.processes import raise_file_limit
from commonage.server import logs
from commonage.server.agents import listen_for_agents
from commonage.server.bootstrap import Components, assemble, database_of, hub_plan, registry_of, without_image
from commonage.server.data_dir import DataDir, DataDirError, Ports, Running, free_port, keep_ports, prepare, sentence
from commonage.server.processes import listen
from commonage.server.processes.children import ChildFailed, Supervisor
from commonage.server.processes.components import ComponentError, check_ports, write_components
from commonage.server.processes.hub import HubPlan, hub_children
from commonage.server.processes.listen import LOOPBACK, PortError
from commonage.server.processes.registry import RegistryCollection
from commonage.server.reserve import Reserve
from commonage.server.secrets import Secrets, SecretsError, load_secrets
from commonage.server.settings.settings import Settings
from commonage.server.terminal import Terminal
from commonage.server.web.server import Web
from commonage.server.web.workload_gateway import WorkloadAccess
from commonage.store.upgrade import upgrade
from commonage.wire.docs import docs_page
from commonage.wire.hub import API_PATH

log = logging.getLogger(__name__)

DONE, BROKEN, UNFIT, INTERRUPTED = 0, 1, 2, 130
_STAND_DOWN_S = 20.0
_FORCED_LOOKS = 50  # a tenth of a second apart
_PORTAL_WITHIN_S = 30.0
_APART_WITHIN_S = 180.0  # the components are started by others, perhaps after the server
_UNFIT = (DataDirError, SecretsError, PortError, ComponentError, ChildFailed, CommonageError)


def serve(settings: Settings, *, stop_workloads: bool) -> int:
    """Run the server until it is stopped. Returns the exit code.

    Ctrl-C ends the workloads too; SIGTERM leaves them running for the next start, unless `stop_workloads`.
    """
    try:
        with contextlib.suppress(OSError):
            Reserve(settings.data_dir.absolute() / "reserve", settings.disk_reserve).relieve()  # a start writes, too
        with prepare(settings.data_dir) as data:
            logs.set_up(data.logs, settings.log_level, settings.log_format)
            first = not (data.path / "secrets").exists() and settings.password_file is None
            secrets = load_secrets(data.path, settings.password_file)
            server = _Server(settings, data, secrets, first=first, stop_workloads=stop_workloads)
            raise_file_limit()  # containers' connections take some as well
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(server.live())
    except _UNFIT as error:
        return _say(str(error))
    except OSError as error:
        log.debug("the start failed", exc_info=error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            return _say(sentence(error, settings.data_dir))
        return _broke(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # the outermost frame: the terminal gets a sentence, the log gets the rest
        return _broke(error)


def _broke(error: Exception) -> int:
    """An unexpected exception; the terminal shows its message, through the log's own handler."""
    log.critical("the server broke", exc_info=error)
    return BROKEN


def _say(message: str) -> int:
    log.info("cannot run: %s", message)
    print(f"commonage: {message}", file=sys.stderr)
    return UNFIT


@dataclass(frozen=True, slots=True)
class _Opened:
    """The running components: if one of `essential` ends, the server ends too."""

    components: Components
    essential: tuple[asyncio.Task[None], ...]


class _Server:
    """One run of the server, from the first signal handler to the last socket."""

    def __init__(
        self, settings: Settings, data: DataDir, secrets: Secrets, *, first: bool, stop_workloads: bool
    ) -> None:
        self._settings, self._data, self._secrets = settings, data, secrets
        self._first, self._stop_workloads = first, stop_workloads
        self._terminal = Terminal()
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._started_at = time.time()

    async def live(self) -> int:
        """Start, wait, stop. Returns the exit code; raises the errors that make a start impossible."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._told_to_stop, number)
        self._terminal.welcome(__version__, self._data.path)
        log.info("starting", extra={"version": __version__, "pid": os.getpid(), "data_dir": str(self._data.path)})
        async with AsyncExitStack() as closing:
            opened = await self._unless_stopped(self._start(closing))
            if opened is None:
                return INTERRUPTED
            code = await self._wait(opened)
            self._terminal.line("Stopping …")
            await self._see_to_workloads(opened.components, end=self._stop_workloads and code == DONE)
        log.info("stopped")
        self._terminal.line("Stopped.")
        return code

    def _told_to_stop(self, number: signal.Signals) -> None:
        log.info("told to stop by %s", number.name)
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()
        if number is signal.SIGINT:
            self._stop_workloads = True

    async def _unless_stopped(self, start: Awaitable[_Opened]) -> _Opened | None:
        """The started components; None if the server was stopped before they had started."""
        starting = asyncio.ensure_future(start)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.wait({starting})
        return None

    # --- start ----------------------------------------------------------------------------------------------------

    async def _start(self, closing: AsyncExitStack) -> _Opened:
        settings, data = self._settings, self._data
        if settings.children == "external":
            names = ("port", "control_port", "hub_port", "proxy_api_port")
            check_ports({name: getattr(settings, name) for name in names})
        port = settings.port or free_port(settings.bind)
        ports = keep_ports(data, Ports(settings.control_port, settings.hub_port, settings.proxy_api_port))
        plan = hub_plan(settings, data, ports, port)
        control_socket = listen.listen(LOOPBACK, ports.control, "COMMONAGE_CONTROL_PORT")
        if settings.children == "own":
            for address in plan.addresses.values():
                listen.check(address, port, "--port")
            for number, variable in ((ports.hub, "COMMONAGE_HUB_PORT"), (ports.proxy_api, "COMMONAGE_PROXY_API_PORT")):
                listen.check(LOOPBACK, number, variable)
        with self._terminal.step("database"):
            await upgrade(database_of(settings, data.path))
        with self._terminal.step("control plane"):
            opened = await self._open(closing, plan, control_socket)
        with self._terminal.step("sign-in and proxy"):
            await self._start_children(closing, plan)
        self._announce(plan)
        # Objects made until here stay. Collecting them takes 50 ms, in which no request is answered, and a long
        # queue makes collections frequent.
        gc.collect()
        gc.freeze()
        url = plan.public_url or plan.proxy_url
        self._terminal.ready(url, settings, self._secrets, first=self._first)
        self._terminal.notes(_notes(settings, opened.components))
        if sys.stdout.isatty():
            self._terminal.line("Ctrl-C stops everything.")
        if opened.components.control.settings.origin_warning:
            log.warning(opened.components.control.settings.origin_warning)
        log.info("ready", extra={"url": url, "seconds": f"{time.time() - self._started_at:.1f}"})
        return opened

    async def _start_children(self, closing: AsyncExitStack, plan: HubPlan) -> None:
        children = hub_children(plan)
        if self._settings.children == "own":
            await closing.enter_async_context(Supervisor(children))
            await _until_portal_answers(plan, _PORTAL_WITHIN_S)
        else:
            write_components(children, plan.data_dir)
            await _until_portal_answers(plan, _APART_WITHIN_S)

    async def _open(self, closing: AsyncExitStack, plan: HubPlan, listening: socket.socket) -> _Opened:
        registry = registry_of(self._settings, self._data, self._secrets, plan.port)
        gateway_socket = listen.listen(LOOPBACK, 0, "")
        closing.callback(gateway_socket.close)
        access = WorkloadAccess(plan.inner_ports, gateway_socket.getsockname()[1])
        components = await assemble(self._settings, self._data, self._secrets, plan, access, registry)
        closing.push_async_callback(components.gateway.close)
        closing.callback(components.devices.devices.close)
        closing.push_async_callback(components.identity.aclose)
        await _opened(closing, components.store.open, components.store.close)
        await _opened(closing, components.metrics.open, components.metrics.close)
        if components.agents is not None:
            listening_for = partial(listen_for_agents, self._settings, components.agents, components.control.drains)
            await _opened(closing, listening_for, components.agents.close)
        await _opened(closing, components.control.open, components.control.close)
        reserve = Reserve(self._data.path / "reserve", self._settings.disk_reserve)
        adapters: list[Loop] = [reserve]
        if components.agents is not None:
            adapters.append(components.agents)
        if registry is not None:
            await _opened(closing, registry.start, registry.stop)
            adapters.append(RegistryCollection(registry, lambda: images_in_use(components.control)))
        loops = asyncio.create_task(components.control.run(*adapters), name="control")
        closing.push_async_callback(_cancel, loops)
        web = Web(components.web.serve, listening)
        gateway = Web(components.gateway, gateway_socket, behind_proxy=False)
        closing.push_async_callback(web.stop)
        closing.push_async_callback(gateway.stop)
        closing.callback(components.web.end_streams)
        if components.joining is not None:
            await _opened(closing, partial(components.joining.open, components.agents), components.joining.close)
        return _Opened(components, (loops, web.start(), gateway.start()))

    def _announce(self, plan: HubPlan) -> None:
        self._data.announce(
            Running(
                pid=os.getpid(),
                host=socket.gethostname(),
                started_at=self._started_at,
                url=plan.proxy_url,
                hub_url=plan.hub_url,
                control_url=f"http://{LOOPBACK}:{plan.control_port}",
            )
        )

    # --- wait and stop --------------------------------------------------------------------------------------------

    async def _wait(self, opened: _Opened) -> int:
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({stopping, *opened.essential}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in opened.essential:
            if task.done():
                error = None if task.cancelled() else task.exception()
                log.critical(
                    "%s ended by itself; workloads go on, start the server again", task.get_name(), exc_info=error
                )
                return BROKEN
        return DONE

    async def _see_to_workloads(self, components: Components, *, end: bool) -> None:
        counts = components.control.look.live_counts()
        alive = counts.get(State.RUNNING, 0) + counts.get(State.STARTING, 0)
        workloads = f"{alive} workload{'' if alive == 1 else 's'}"
        if alive and end:
            self._terminal.line(f"Waiting for {workloads} to end; another Ctrl-C ends by force.")
        elif alive:
            self._terminal.line(f"{workloads} left running; the next start finds them.")
        if end:
            await self._end_workloads(components)

    async def _end_workloads(self, components: Components) -> None:
        """End all running workloads: sessions for good, jobs are requeued. They are killed if it takes too long."""
        standing_down = asyncio.create_task(components.control.stand_down(_STAND_DOWN_S))
        hurrying = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({standing_down, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if standing_down.done() and standing_down.result() == 0:
            return
        await _cancel(standing_down)
        self._terminal.line("Ending by force what has not ended.")
        for _ in range(_FORCED_LOOKS):
            if not await _end_by_force(components):
                break
            await asyncio.sleep(0.1)


async def _end_by_force(components: Components) -> int:
    """Kill the attempts that still run. Returns their number."""
    alive = 0
    for engine in components.engines:
        for status in await engine.statuses():
            if status.phase is not Phase.ENDED:
                alive += 1
                await engine.stop(status.attempt_id, 0)
    return alive


async def _until_portal_answers(plan: HubPlan, within_s: float) -> None:
    """The hub creates the portal's route a moment after it reports that it is ready."""
    try:
        async with asyncio.timeout(within_s), httpx2.AsyncClient(trust_env=False, timeout=5) as client:
            while True:
                with contextlib.suppress(httpx2.TransportError):
                    if (await client.get(f"{plan.proxy_url}{API_PATH}/health")).is_success:
                        return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise ChildFailed(
            f"the portal does not answer at {plan.proxy_url}{API_PATH}/health; see {plan.data_dir / 'logs'}"
        ) from None


def _notes(settings: Settings, components: Components) -> list[str]:
    bare = ", ".join(one.name for one in without_image(settings))
    lacking = [
        f"Not on offer, as they have no image and workloads run in containers here: {bare}. Set docker_image for those "
        f"that come with us, give others an `image`, or push one ({docs_page('operate/images')})."
    ]
    origin = [components.control.settings.origin_warning] if components.control.settings.origin_warning else []
    engines = (note for one in components.control.node_pool.capabilities() for note in one.notes)
    return [
        *origin,
        *(lacking if bare else []),
        components.devices.said,
        *engines,
        *components.control.volumes.warnings(),
    ]


async def _opened(
    closing: AsyncExitStack, open_it: Callable[[], Awaitable[None]], close_it: Callable[[], Awaitable[None]]
) -> None:
    """Open something, and close it even if opening is cancelled."""
    closing.push_async_callback(close_it)
    await open_it()


async def _cancel(task: asyncio.Task[object] | asyncio.Task[int] | asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("%s had ended with an error", task.get_name(), exc_info=error)
