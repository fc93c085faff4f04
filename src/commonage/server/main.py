"""The server process: start all components in order, wait, stop them in reverse. Called by `commonage up`.

An expected error at the start gives a message and exit code 2, any other error a log line and exit code 1.
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
from pathlib import Path
from typing import Any

import httpx2
import uvloop

from commonage import __version__
from commonage.api.routes.registry import images_in_use
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Loop
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.statuses import Phase
from commonage.domain.workloads import State
from commonage.engines.process.processes import keep_children_within_quotas, raise_file_limit
from commonage.messages import text
from commonage.server import ServerError, logs
from commonage.server.bootstrap import Components, assemble, database_of, registry_of, trace
from commonage.server.data_dir import DataDir, Running, prepare, sentence
from commonage.server.http_client import http_client
from commonage.server.joining import JoiningPods
from commonage.server.logs import Terminal
from commonage.server.origins import origins_of
from commonage.server.processes.children import ChildFailed, Supervisor, first_of
from commonage.server.processes.components import check_places, write_components
from commonage.server.processes.https import (
    HttpsPlan,
    certificate_problem,
    check_https,
    https_child,
    https_notes,
    https_plan,
)
from commonage.server.processes.hub import HubPlan, hub_children
from commonage.server.processes.ports import LOOPBACK, Ports, check, free_port, keep_ports, listen, wait_until_free
from commonage.server.processes.registry import RegistryCollection
from commonage.server.reserve import Reserve
from commonage.server.secrets import Secrets, load_secrets, read_given_secrets
from commonage.server.settings.settings import Settings
from commonage.server.web import Web
from commonage.server.workload_gateway import WorkloadAccess
from commonage.store.upgrade import upgrade
from commonage.wire.hub import API_PATH, docs_page

log = logging.getLogger(__name__)

STOPPED, FAILED, CANNOT_START, INTERRUPTED = 0, 1, 2, 130
_STAND_DOWN_S = 20.0
_KILL_ROUNDS = 50  # a tenth of a second apart
_PORTAL_WITHIN_S = 30.0
_EXTERNAL_WITHIN_S = 180.0  # the components are started by others, perhaps after the server


def serve(settings: Settings, *, stop_workloads: bool) -> int:
    """Run the server until it is stopped. Returns the exit code.

    Ctrl-C ends the workloads too; SIGTERM leaves them running for the next start, unless `stop_workloads`.
    """
    try:
        with contextlib.suppress(OSError):
            _reserve(settings, settings.data_dir.absolute()).release()  # the start needs disk space
        with prepare(settings.data_dir) as data:
            logs.set_up(data.logs, settings.log_level, settings.log_format)
            given = settings.secrets_dir
            first = not (data.path / "secrets").exists() and settings.password_file is None and given is None
            secrets = read_given_secrets(given) if given else load_secrets(data.path, settings.password_file)
            trace(settings, "control")
            server = _Server(settings, data, secrets, first=first, stop_workloads=stop_workloads)
            raise_file_limit()  # for sessions, and for connections of containers
            if settings.engine == "process":
                keep_children_within_quotas()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(server.run())
    except (ServerError, CommonageError) as error:
        return _refuse_start(str(error))
    except OSError as error:
        log.debug("start failed", exc_info=error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            return _refuse_start(sentence(error, settings.data_dir))
        return _fail(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # the outermost frame: the terminal gets a message, the log the traceback
        return _fail(error)


def _reserve(settings: Settings, data_dir: Path) -> Reserve:
    return Reserve(data_dir / "reserve", settings.disk_reserve)


def _fail(error: Exception) -> int:
    """Log an unexpected exception; the log's terminal handler shows its message."""
    log.critical("server failed", exc_info=error)
    return FAILED


def _refuse_start(message: str) -> int:
    log.info("cannot start: %s", message)
    print(f"commonage: {message}", file=sys.stderr)
    return CANNOT_START


@dataclass(frozen=True, slots=True)
class _Started:
    """The running components. The server ends when a task of `essential` ends."""

    components: Components
    essential: tuple[asyncio.Task[None], ...]


class _Server:
    def __init__(
        self, settings: Settings, data: DataDir, secrets: Secrets, *, first: bool, stop_workloads: bool
    ) -> None:
        self._settings, self._data, self._secrets = settings, data, secrets
        self._first, self._stop_workloads = first, stop_workloads
        self._terminal = Terminal()
        self._stop, self._force = asyncio.Event(), asyncio.Event()
        self._started_at = time.time()

    async def run(self) -> int:
        """Start, wait, stop. Returns the exit code; raises the errors that make a start impossible."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        self._terminal.line(f"Commonage {__version__}, data in {self._data.path}")
        log.info(
            "server is starting", extra={"version": __version__, "pid": os.getpid(), "data_dir": str(self._data.path)}
        )
        async with AsyncExitStack() as closing:
            started = await self._unless_stopped(self._start(closing))
            if started is None:
                return INTERRUPTED
            code = await self._wait(started)
            self._terminal.line("Stopping …")
            await self._handle_workloads(started.components, end=self._stop_workloads and code == STOPPED)
        log.info("server stopped")
        self._terminal.line("Stopped.")
        return code

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("received %s: stopping", number.name)
        if self._stop.is_set():
            self._force.set()
        self._stop.set()
        if number is signal.SIGINT:
            self._stop_workloads = True

    async def _unless_stopped(self, start: Awaitable[_Started]) -> _Started | None:
        """The started components; None if the server was stopped before they had started."""
        starting = asyncio.ensure_future(start)
        await first_of(starting, self._stop.wait())
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.wait({starting})
        return None

    # --- start ----------------------------------------------------------------------------------------------------

    async def _start(self, closing: AsyncExitStack) -> _Started:
        settings, data = self._settings, self._data
        if settings.children != "own":
            check_places(settings)
        elif data.was_killed:
            edge = (settings.https_port, settings.http_port) if settings.domain else ()
            listened = [(settings.bind, settings.port), *((settings.https_bind, one) for one in edge)]
            await wait_until_free(data.path, *listened)
        port = settings.port or free_port(settings.bind)
        ports = keep_ports(data.path, Ports(settings.control_port, settings.hub_port, settings.proxy_api_port), port)
        origins = origins_of(settings, port)
        inner = (ports.control, ports.hub, ports.proxy_api)
        plan = HubPlan(data.path, settings, port, *inner, origins.hub, origins.sessions)
        https = https_plan(plan)
        control_socket = listen(plan.inner_bind, ports.control, "COMMONAGE_CONTROL_PORT")
        if settings.children == "own":
            _check_free(plan)
        if https is not None:
            await asyncio.to_thread(check_https, https)
        with self._terminal.step("database"):
            await upgrade(database_of(settings, data.path))
        with self._terminal.step("control plane"):
            started = await self._open(closing, plan, control_socket)
        await self._start_children(closing, plan)
        local_url = f"http://{LOOPBACK}:{plan.control_port}"
        notes = [] if https is None else await self._start_https(closing, https)
        self._data.announce(
            Running(
                pid=os.getpid(),
                host=socket.gethostname(),
                started_at=self._started_at,
                url=local_url if plan.is_remote else plan.proxy_url,
                hub_url=plan.hub_url,
                control_url=local_url,
            )
        )
        # The objects made so far stay. A collection over them takes 50 ms without answers to requests, and a long queue
        # makes collections frequent.
        gc.collect()
        gc.freeze()
        url = plan.public_url or plan.proxy_url
        self._terminal.ready(url, settings, self._secrets, first=self._first)
        for note in (*notes, *_notes(settings, started.components)):
            self._terminal.line(f"Note: {note}")
        if sys.stdout.isatty():
            self._terminal.line("Ctrl-C stops everything.")
        if warning := started.components.control.settings.origin_warning:
            log.warning(warning)
        log.info("server is ready", extra={"url": url, "seconds": f"{time.time() - self._started_at:.1f}"})
        return started

    async def _start_children(self, closing: AsyncExitStack, plan: HubPlan) -> None:
        if plan.is_remote:  # others start them, in any order
            return
        with self._terminal.step("sign-in and proxy"):
            children = hub_children(plan)
            if self._settings.children == "own":
                await closing.enter_async_context(Supervisor(children))
                await _until_portal_answers(plan, _PORTAL_WITHIN_S)
            else:
                write_components(children, plan.data_dir)
                await _until_portal_answers(plan, _EXTERNAL_WITHIN_S)

    async def _start_https(self, closing: AsyncExitStack, plan: HttpsPlan) -> list[str]:
        """Start Caddy and wait for its certificate. Returns notes for the admin."""
        with self._terminal.step("HTTPS"):
            await closing.enter_async_context(Supervisor([https_child(plan)]))
            problem = await certificate_problem(plan)
        if problem:
            log.warning("%s", problem)
        return [*([problem] if problem else []), *await asyncio.to_thread(https_notes, plan)]

    async def _open(self, closing: AsyncExitStack, plan: HubPlan, listening: socket.socket) -> _Started:
        registry = registry_of(self._settings, self._data, self._secrets, plan.port)
        gateway_port = self._settings.gateway_port if plan.is_remote else 0
        gateway_socket = listen(plan.inner_bind if gateway_port else LOOPBACK, gateway_port, "COMMONAGE_GATEWAY_PORT")
        closing.callback(gateway_socket.close)
        access = WorkloadAccess(plan.inner_ports, gateway_socket.getsockname()[1])
        components = await assemble(self._settings, self._data, self._secrets, plan, access, registry)
        closing.push_async_callback(components.gateway.close)
        closing.callback(components.devices.devices.close)
        closing.push_async_callback(components.identity.aclose)
        await _enter(closing, components.store.open, components.store.close)
        await _enter(closing, components.metrics.open, components.metrics.close)
        if components.agents is not None:
            bind, port = self._settings.agents_bind, self._settings.agents_port
            listen_for_agents = partial(components.agents.open, bind, port, components.control.drains)
            await _enter(closing, listen_for_agents, components.agents.close)
        await _enter(closing, components.control.open, components.control.close)
        adapters: list[Loop] = [_reserve(self._settings, self._data.path)]
        if components.agents is not None:
            adapters.append(components.agents)
        if components.joining is not None:
            adapters.append(components.joining.site_links)
        if registry is not None:
            await _enter(closing, registry.start, registry.stop)
            adapters.append(RegistryCollection(registry, lambda: images_in_use(components.control)))
        loops = asyncio.create_task(components.control.run(*adapters), name="control")
        closing.push_async_callback(_cancel, loops)
        web = Web(components.web, listening, proxies=components.proxies)
        gateway = Web(components.gateway, gateway_socket, behind_proxy=False)
        closing.push_async_callback(web.stop)
        closing.push_async_callback(gateway.stop)
        closing.callback(components.end_streams)
        if components.joining is not None:
            admit = partial(components.joining.open, components.agents, components.control.sites, components.pods)
            await _enter(closing, admit, components.joining.close)
        elif components.pods is not None:
            joining = JoiningPods(self._settings, self._data.path, components.pods)
            await _enter(closing, joining.open, joining.close)
        return _Started(components, (loops, web.start(), gateway.start()))

    # --- wait and stop --------------------------------------------------------------------------------------------

    async def _wait(self, started: _Started) -> int:
        await first_of(self._stop.wait(), *started.essential)
        for task in started.essential:
            if task.done():
                error = None if task.cancelled() else task.exception()
                log.critical(
                    "%s ended unexpectedly; workloads continue; restart the server", task.get_name(), exc_info=error
                )
                return FAILED
        return STOPPED

    async def _handle_workloads(self, components: Components, *, end: bool) -> None:
        counts = components.control.queries.live_counts()
        alive = counts.get(State.RUNNING, 0) + counts.get(State.STARTING, 0)
        workloads = f"{alive} workload{'' if alive == 1 else 's'}"
        if alive and end:
            self._terminal.line(f"Waiting for {workloads} to end. Press Ctrl-C again to kill them.")
        elif alive:
            self._terminal.line(f"{workloads} left running. The next start takes them over.")
        if end:
            await self._end_workloads(components)

    async def _end_workloads(self, components: Components) -> None:
        """Stop all running workloads: sessions end, jobs are requeued. Kill them after a timeout."""
        stopping = asyncio.create_task(components.control.stop_all(_STAND_DOWN_S))
        await first_of(stopping, self._force.wait())
        if stopping.done() and stopping.result() == 0:
            return
        await _cancel(stopping)
        self._terminal.line("Killing the remaining workloads.")
        for _ in range(_KILL_ROUNDS):
            if not await _kill_attempts(components):
                break
            await asyncio.sleep(0.1)


async def _kill_attempts(components: Components) -> int:
    count, engine = 0, components.engines[LOCAL_SITE]
    for status in await engine.statuses():
        if status.phase is not Phase.ENDED:
            count += 1
            await engine.stop(status.attempt_id, 0)
    return count


def _check_free(plan: HubPlan) -> None:
    """Raises PortError if hub or proxy could not listen."""
    for address in plan.addresses.values():
        check(address, plan.port, "--port")
    for number, variable in ((plan.hub_port, "COMMONAGE_HUB_PORT"), (plan.proxy_api_port, "COMMONAGE_PROXY_API_PORT")):
        check(LOOPBACK, number, variable)


async def _until_portal_answers(plan: HubPlan, within_s: float) -> None:
    """Wait for the portal's route, which the hub creates shortly after it is ready. Raises ChildFailed."""
    try:
        async with asyncio.timeout(within_s), http_client(timeout=5) as client:
            while True:
                with contextlib.suppress(httpx2.TransportError):
                    if (await client.get(f"{plan.proxy_url}{API_PATH}/health")).is_success:
                        return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise ChildFailed(
            f"The portal does not answer at {plan.proxy_url}{API_PATH}/health. See {plan.data_dir / 'logs'}."
        ) from None


def _notes(settings: Settings, components: Components) -> list[str]:
    control = components.control
    notes = [control.settings.origin_warning] if control.settings.origin_warning else []
    if names := ", ".join(environment.name for environment in control.resources.not_offered()):
        notes.append(
            f"Environments without an image are not available, because workloads run in containers here: {names}. Set "
            f"docker_image for built-in ones, `image` for others, or push an image ({docs_page('operate/images')})."
        )
    notes.append(components.devices.said)
    notes += [text(note) for engine in control.node_views.capabilities() for note in engine.notes]
    return [*notes, *control.volumes.warnings()]


async def _enter(
    closing: AsyncExitStack, open_it: Callable[[], Awaitable[None]], close_it: Callable[[], Awaitable[None]]
) -> None:
    """Open a component, and close it later even if opening is cancelled."""
    closing.push_async_callback(close_it)
    await open_it()


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("task %s ended with an error", task.get_name(), exc_info=error)
