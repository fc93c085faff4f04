"""The site agent: a local engine behind a site link. It works the same while the link is down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from commonage.cancellation import to_the_end
from commonage.domain.errors import CommonageError
from commonage.domain.statuses import Capabilities
from commonage.link.exchange import ConnectionLost
from commonage.link.messages import RESUME, Device, Nothing
from commonage.link.sites.messages.cron import CLAIM_RUN, KEEP_CRON_JOB, KEEP_ONLY_CRON_JOBS
from commonage.link.sites.messages.engine import (
    ATTACH,
    BUNDLE,
    EXEC,
    FORGET,
    LOGS,
    MEASURE,
    PREPARE,
    REPORT,
    START,
    STATUSES,
    STOP,
    STORE_SAMPLES,
    STORE_WARNINGS,
    TUNNEL,
    AttemptId,
    Prepare,
    Samples,
    SiteMeasured,
    SiteNetwork,
    SiteReport,
    SiteStatuses,
    Start,
    Stop,
)
from commonage.link.sites.messages.hello import CRON_PROTOCOL
from commonage.link.sites.messages.tenants import KEEP_TENANTS
from commonage.link.sites.sqlite_file import SqliteFile
from commonage.link.sites.transport.connection import Handlers, SiteConnection
from commonage.ports.agents import OnProgress
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine
from commonage.ports.guarded import guarded
from commonage.ports.homes import Storage
from commonage.ports.joining import Joining
from commonage.site_agent import attempts, cron_jobs, devices, samples
from commonage.site_agent.attempts import Attempts
from commonage.site_agent.bundles import SiteBundles
from commonage.site_agent.cron_jobs import CronJobs
from commonage.site_agent.devices import KeptWarnings, SiteDevices
from commonage.site_agent.gateway import SiteGateway
from commonage.site_agent.joining import SiteJoins
from commonage.site_agent.network import KeptNetwork
from commonage.site_agent.room import Room
from commonage.site_agent.samples import KeptSamples
from commonage.site_agent.statuses import StatusTracker
from commonage.site_agent.storage import SiteFolders
from commonage.site_agent.streams import EngineStreams
from commonage.site_agent.tenants import KeptTenants

_log = logging.getLogger(__name__)
_MAX_STREAMS = 1024
_MAX_UNKEPT = 1000
_KEPT_WITHIN_S = 10.0  # while the agent is stopped: a driver that hangs must not hold it up


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """`samples_max_mib`: disk limit of the samples of an outage. `serves_ports`: workloads are plain processes, which
    address the control plane by ports of this machine.
    """

    report_every_s: float = 5.0
    sample_every_s: float = 10.0
    samples_max_mib: int = 256
    serves_ports: bool = False


@dataclass(frozen=True, slots=True)
class SiteParts:
    """Optional parts of a site: GPUs, a join service for nodes, and homes and volumes that are measured."""

    devices: SiteDevices = field(default_factory=SiteDevices)
    joining: Joining | None = None
    storage: Storage | None = None


class SiteAgent:
    """`open()`, then `run()` until cancelled; meanwhile `serve` each connection to the control plane, one at a time.

    `gateway` is open: the engine may need its port. `folder` holds the agent's own files.
    """

    def __init__(
        self,
        engine: Engine,
        gateway: SiteGateway,
        folder: Path,
        clock: Clock,
        settings: SiteSettings | None = None,
        parts: SiteParts | None = None,
    ) -> None:
        engine = guarded(engine)  # the control plane is not there to restart this agent
        self._engine, self._clock, self._settings = engine, clock, settings or SiteSettings()
        parts = parts or SiteParts()
        self._devices = parts.devices
        self._joins = None if parts.joining is None else SiteJoins(parts.joining)
        self._folders = None if parts.storage is None else SiteFolders(parts.storage)
        self._file = SqliteFile(
            folder / "site-agent.db",
            (*attempts.SCHEMA, *cron_jobs.SCHEMA, *samples.SCHEMA, *devices.SCHEMA),
            samples.ON_FULL,
        )
        self._bundles = SiteBundles(folder / "bundles")
        self._statuses = StatusTracker(engine, self._on_statuses)
        self._attempts = Attempts(engine, self._file, self._bundles, self._statuses, clock, self._devices.prepared)
        room = Room(self._attempts, self._statuses, lambda: () if self._report.failure else self._report.nodes)
        self._cron_jobs = CronJobs(engine, self._file, self._attempts, self._bundles, room, clock)
        self._samples = KeptSamples(self._file, self._settings.samples_max_mib * 1024 * 1024)
        self._warnings = KeptWarnings(self._file, clock.now)
        self._unkept: list[tuple[str, str, str]] = []  # taken from the devices, and refused by the disk
        self._streams = EngineStreams(engine, self._statuses)
        self._connection: SiteConnection | None = None
        self._report = SiteReport(
            Capabilities("remote"),
            lets_join=self._joins is not None,
            measures_storage=self._folders is not None,
            keeps_tenants=True,
        )
        self._reporting = asyncio.Lock()
        self._gateway, self._network = gateway, KeptNetwork(folder)
        self._tenants = KeptTenants(engine, folder, clock)

    async def open(self) -> None:
        """Open the engine, and start attempts that were accepted and not started yet. Raises EngineFailure,
        Unavailable.
        """
        await self._file.open()
        await asyncio.to_thread(self._bundles.open)
        await self._engine.open()
        await self._statuses.refresh()  # before a link can report that these are all
        await self._attempts.open()
        await self._cron_jobs.open()
        await self._attempts.clear_bundles()  # those whose starts did not arrive before this agent was killed
        await self.refresh()

    async def close(self) -> None:
        """Stops nothing that runs."""
        await self._engine.close()
        await self._file.close()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._watch())
            loops.create_task(self._keep_reporting())
            loops.create_task(self._keep_sampling())
            loops.create_task(self._cron_jobs.run())
            loops.create_task(self._tenants.run())

    # --- the link -------------------------------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        return Handlers(
            requests={
                START: self._start,
                STOP: self._stop,
                FORGET: self._forget,
                MEASURE: self._on_measure,
                RESUME: self._resume,
                PREPARE: self._prepare,
                ATTACH: self._on_attach,
                KEEP_CRON_JOB: self._cron_jobs.keep,
                KEEP_ONLY_CRON_JOBS: self._cron_jobs.keep_only,
                CLAIM_RUN: self._cron_jobs.claim,
                KEEP_TENANTS: self._tenants.keep,
                **({} if self._joins is None else self._joins.handlers()),
                **({} if self._folders is None else self._folders.handlers()),
            },
            streams={
                LOGS: self._streams.logs,
                EXEC: self._streams.exec,
                BUNDLE: self._bundles.receive,
            },
            targets={TUNNEL: self._streams.connect},
            max_incoming=_MAX_STREAMS,
        )

    async def use(self, connection: SiteConnection) -> None:
        """Report by this connection, made with `handlers`, until cancelled at its end."""
        self._gateway.use(connection)
        connection.send(REPORT, reported := self._report)
        try:
            await self._report_runs(connection)
            self._connection = connection
            if self._report != reported:
                connection.send(REPORT, self._report)
            connection.send(STATUSES, self._statuses.complete())
            await self._deliver_samples(connection)
            await asyncio.Event().wait()
        finally:
            self._cron_jobs.lost()
            self._connection = None
            self._gateway.use(None)
            with suppress(CommonageError):  # they are removed with the next ones
                await self._attempts.forget_uploads()

    async def _report_runs(self, connection: SiteConnection) -> None:
        """The control plane must know the runs that were fired here before it reads their statuses."""
        if connection.protocol < CRON_PROTOCOL:
            await self._cron_jobs.forget_all()
            return
        while True:
            try:
                await self._cron_jobs.report(connection)
                return
            except CommonageError as error:
                if connection.is_closed:
                    raise
                _log.warning("the runs of cron jobs are not reported yet: %s", error)
            await asyncio.sleep(self._settings.report_every_s)

    def _on_statuses(self, statuses: SiteStatuses) -> None:
        if self._connection is not None:
            self._connection.send(STATUSES, statuses)

    # --- requests of the control plane ----------------------------------------------------------------------------

    async def _done(self, work: Coroutine[Any, Any, None]) -> Nothing:
        await work
        return Nothing()

    async def _start(self, wanted: Start, _: OnProgress) -> Nothing:
        if self._statuses.get(wanted.request.attempt_id) is None and not self._attempts.has(wanted.request.attempt_id):
            self._cron_jobs.check_room(wanted.request)
        return await self._done(self._attempts.start(wanted))

    async def _stop(self, wanted: Stop, _: OnProgress) -> Nothing:
        return await self._done(self._engine.stop(wanted.attempt_id, wanted.grace_s))

    async def _forget(self, wanted: AttemptId, _: OnProgress) -> Nothing:
        return await self._done(self._attempts.forget(wanted.attempt_id))

    async def _on_measure(self, _nothing: Nothing, _: OnProgress) -> SiteMeasured:
        return await self._measure()

    async def _measure(self) -> SiteMeasured:
        nodes, running = self._report.nodes, self._attempts.running()
        measured, found = await asyncio.gather(
            self._engine.measure(), self._devices.measure(self._engine, nodes, running, self._clock)
        )
        return SiteMeasured(tuple(measured), found)

    async def _resume(self, device: Device, _: OnProgress) -> Nothing:
        await self._devices.resume(device.uuid)
        await self.refresh()  # the control plane knows the fault is gone before it gets the answer
        return Nothing()

    async def _prepare(self, wanted: Prepare, on_progress: OnProgress) -> Nothing:
        try:
            await self._engine.prepare(wanted.environment, wanted.node, on_progress)
        finally:  # the control plane knows the environment's status before it gets the answer
            await self.refresh()
        return Nothing()

    async def _on_attach(self, network: SiteNetwork, _: OnProgress) -> Nothing:
        """Wait for the end of the link, which cancels this."""
        await asyncio.to_thread(self._network.keep, network)
        if self._settings.serves_ports:
            await self._gateway.serve(network.ports)
        await asyncio.Event().wait()
        return Nothing()

    # --- loops ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                async for status in self._engine.watch():
                    self._statuses.observe(status)
            except CommonageError as error:
                _log.warning("the engine's statuses are not reported: %s", error)
            await self._clock.sleep(1.0)

    async def _keep_reporting(self) -> None:
        while True:
            await self._clock.sleep(self._settings.report_every_s)
            try:
                await self._attempts.retry()
                await self._statuses.refresh()
                await self._attempts.clear()
            except CommonageError as error:
                _log.warning("the engine does not answer: %s", error)
            await self.refresh()

    async def refresh(self) -> None:
        """Report nodes and environments, if they changed."""
        async with self._reporting:
            before, dropped = self._report, self._samples.dropped
            try:
                nodes, environments = await self._engine.nodes(), await self._engine.environments()
                found = (self._engine.capabilities(), tuple(nodes), tuple(environments))
            except CommonageError as error:
                self._report = replace(before, failure=str(error), samples_dropped=dropped)
            else:
                capabilities, nodes, environments = found
                self._report = replace(
                    before, capabilities=capabilities, nodes=nodes, environments=environments, failure="",
                    samples_dropped=dropped,
                )  # fmt: skip
            if self._connection is not None and self._report != before:
                self._connection.send(REPORT, self._report)

    async def _keep_sampling(self) -> None:
        """While the link is up, the control plane measures."""
        while True:
            await self._clock.sleep(self._settings.sample_every_s)
            try:
                if self._connection is None:
                    await self._samples.keep(self._sample(await self._measure()))
                else:  # for the rates of the first round without a link
                    self._sample(SiteMeasured(tuple(await self._engine.measure())))
            except CommonageError as error:
                _log.warning("this round of samples is lost: %s", error)
            try:
                await self._warn()
            except CommonageError as error:
                _log.warning("warnings about GPUs are not sent yet: %s", error)

    def _sample(self, measured: SiteMeasured) -> Samples:
        nodes = () if self._report.failure else self._report.nodes
        return self._samples.of(measured, self._attempts.running(), nodes, self._clock.now())

    async def _warn(self) -> None:
        """Keep the new warnings of the GPUs, and send all that are kept if the link is up."""
        await to_the_end(self._keep_warnings(), _KEPT_WITHIN_S)
        if (connection := self._connection) is not None:
            await self._warnings.deliver(lambda kept: connection.request(STORE_WARNINGS, kept))

    async def _keep_warnings(self) -> None:
        """Nobody else has a warning that was taken: it must reach the disk also when this agent is being stopped."""
        self._unkept = [*self._unkept, *await self._devices.take_warnings(self._report.nodes)][-_MAX_UNKEPT:]
        try:
            await self._warnings.keep(self._unkept)
        except CommonageError as error:  # a full disk keeps back no warning that is on it
            _log.warning("%d warnings about GPUs are not stored yet: %s", len(self._unkept), error)
        else:
            self._unkept = []

    async def _deliver_samples(self, connection: SiteConnection) -> None:
        async def store(kept: Samples) -> None:
            await connection.request(STORE_SAMPLES, kept)

        while True:
            try:
                await self._samples.deliver(store)
                return
            except ConnectionLost:
                if connection.is_closed:
                    return
            except CommonageError as error:
                _log.warning("the samples of the outage are not stored yet: %s", error)
            await asyncio.sleep(self._settings.report_every_s)
