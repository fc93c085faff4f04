"""The engine of an appliance: the engine port over the site link, to the engine that its site agent drives.

Statuses, nodes and environments are those that the site reported last, so no call waits for a silent site. Commands
wait on disk while the link is down. Calls that need an answer raise EngineFailure with SiteUnreachable then.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from commonage.domain.codec import Unreadable
from commonage.domain.errors import CommonageError, EngineFailure
from commonage.domain.images import Environment, EnvironmentState, EnvironmentStatus
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import NodeReport
from commonage.domain.reasons import Reason
from commonage.domain.reasons.nodes import SiteUnreachable
from commonage.domain.statuses import Capabilities, LogLine, Measurement, Phase, ProcessOwner, StartRequest, Status
from commonage.domain.tenants import Tenant
from commonage.engines.remote.claims import checked_report, checked_waiting
from commonage.engines.remote.clock import SiteClock
from commonage.engines.remote.commands import Commands
from commonage.engines.remote.cron_jobs import RemoteCronSite
from commonage.engines.remote.devices import SiteDevices
from commonage.engines.remote.joining import SiteJoining
from commonage.engines.remote.records import SiteRecords
from commonage.engines.remote.statuses import SiteAttempts
from commonage.engines.remote.storage import SiteStorage
from commonage.engines.remote.streams import begin_exec, read_log
from commonage.engines.remote.tunnels import Tunnels
from commonage.engines.settings import RemoteSettings
from commonage.link.exchange import ConnectionLost
from commonage.link.messages import Nothing
from commonage.link.sites.messages.cron import REPORT_RUNS, SiteRuns
from commonage.link.sites.messages.engine import (
    ATTACH,
    GATEWAY,
    MEASURE,
    PREPARE,
    PULL_TOKEN,
    REPORT,
    STATUSES,
    STORE_SAMPLES,
    STORE_WARNINGS,
    TUNNEL,
    AttemptId,
    ExecCommand,
    ImageToken,
    LogRequest,
    Prepare,
    Samples,
    SiteNetwork,
    SiteReport,
    SiteStatuses,
    WantedImage,
)
from commonage.link.sites.messages.join import NODE_LEFT, NodeName
from commonage.link.sites.messages.tenants import KEEP_TENANTS, SiteTenant, SiteTenants
from commonage.link.sites.transport.connection import Handlers, SiteConnection
from commonage.link.sites.transport.packets import connect
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine
from commonage.ports.execs import ExecStream, Terminal
from commonage.ports.metrics import MEASURED, Sample
from commonage.ports.registry import PullToken

_log = logging.getLogger(__name__)
GRACE_S = 5.0
"""A link that is down for less is not shown as an outage."""
FOLLOW_GRACE_S = 10.0
"""A log that is followed continues if the link is back within this time."""
_RETRY_EVERY_S = 2.0
_CONTACT_EVERY_S = 30.0
StoreSamples = Callable[[str, Sequence[Sample]], Awaitable[None]]
"""Stores samples that a site sent, as far as they are about its own attempts."""


async def _ignore_node(_site: str, _node: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class FromSites:
    """Handlers of the control plane for messages of sites; each gets the name of the site first.

    `node_left`: a node of the site has left it. `pull_token`: the token with which the site pulls an image; None if it
    is in another registry.
    """

    store_samples: StoreSamples
    node_left: Callable[[str, str], Awaitable[None]] = _ignore_node
    pull_token: Callable[[str, str], PullToken | None] = lambda _site, _image: None


class RemoteEngine(Engine):
    """`devices` are the GPUs of the site's nodes, `storage` its homes and volumes; `joining` lets nodes join it.
    `cron_site` fires cron jobs while its link is down.
    """

    def __init__(self, site: str, settings: RemoteSettings, clock: Clock, from_sites: FromSites) -> None:
        self._site, self._clock, self._from_sites = site, clock, from_sites
        self._gateway_port, self._network = settings.gateway_port, SiteNetwork(settings.ports, settings.registry)
        self._records = SiteRecords(settings.folder / f"{site}.db")
        self._tunnels = Tunnels(site, self._records, self._carry_to_attempt, settings.reserved)
        self._site_clock = SiteClock(site, self._records, clock.now)
        self._attempts = SiteAttempts(self._records, self._tunnels, self._site_clock)
        self._commands = Commands(self._records, self._attempts, lambda: self._connection, clock)
        self.devices = SiteDevices(self._records, lambda: self._connection, self._reported_nodes, clock)
        self.joining = SiteJoining(lambda: self._connection, self._lets_join, self._why_unreachable, clock)
        self.storage = SiteStorage(
            self._records, lambda: self._connection, self._measures_storage, self._why_unreachable
        )
        self._report: SiteReport | None = None
        self._refused_nodes = 0  # of the last report
        self._link: SiteConnection | None = None  # the newest
        self._connection: SiteConnection | None = None  # it, once the site has reported its state on it
        self._links = 0
        self.cron_site = RemoteCronSite(
            site,
            self._attempts,
            self._site_clock,
            lambda: (self._links, self._connection),
            self._required,
            lambda: None if self.is_connected else self._why_unreachable(),
        )
        self._connected = asyncio.Event()
        self._lost_at = self._last_contact = clock.now()
        self._iterations = Iterations("remote: deliver", clock.now)
        self._delivering: asyncio.Task[None] | None = None
        self._preparing: Counter[str] = Counter()  # images
        self._attached: set[asyncio.Task[None]] = set()

    # --- the link -------------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether the link is up, and the site has reported its state on it."""
        return self._connected.is_set()

    @property
    def unreachable(self) -> SiteUnreachable | None:
        """Why the shown state is only the last known one; None while the link is up, or was a moment ago."""
        if self.is_connected or self._clock.now() - self._lost_at < GRACE_S:
            return None
        return self._why_unreachable()

    def _why_unreachable(self) -> SiteUnreachable:
        return SiteUnreachable(site=self._site, since=self._last_contact)

    def handlers(self) -> Handlers:
        return Handlers(
            requests={
                STORE_SAMPLES: self._on_samples,
                STORE_WARNINGS: self.devices.on_warnings,
                REPORT_RUNS: self._on_runs,
                NODE_LEFT: self._on_node_left,
                PULL_TOKEN: self._on_pull_token,
            },
            messages={REPORT: (SiteReport, self._on_report), STATUSES: (SiteStatuses, self._on_statuses)},
            targets={GATEWAY: self._connect_to_gateway},
        )

    def attach(self, connection: SiteConnection) -> None:
        """Use this connection, made with `handlers`, until it is lost. It replaces an earlier one."""
        if self._link is not None:
            self._link.close(f"the site {self._site} opened a new link")
            self._detach()
        self._link = connection
        task = asyncio.create_task(self._until_lost(connection), name=f"link of site {self._site}")
        self._attached.add(task)
        task.add_done_callback(self._attached.discard)

    async def _until_lost(self, connection: SiteConnection) -> None:
        try:
            await connection.request(ATTACH, self._network)
        except CommonageError as error:
            _log.warning("site %s: %s", self._site, error)
        finally:
            connection.close("the site does not serve its engine any more")
            if self._link is connection:
                self._detach()

    def _detach(self) -> None:
        if self._connection is not None:
            self._lost_at = self._last_contact = self._clock.now()
            self._records.keep_contact(self._last_contact)
        self._link = self._connection = None
        self._connected.clear()

    def _on_report(self, report: SiteReport) -> None:
        listed = len(report.nodes)
        try:
            report = checked_report(report)
        except Unreadable as error:
            _log.warning("site %s: a report is dropped: %s", self._site, error)
            return
        if listed - len(report.nodes) != self._refused_nodes:
            self._refused_nodes = listed - len(report.nodes)
            _log.warning(
                "site %s: %s of %s reported nodes are ignored: they cannot exist, or are more than a site may have",
                self._site,
                self._refused_nodes,
                listed,
            )
        if report.samples_dropped and (self._report is None or self._report.samples_dropped < report.samples_dropped):
            _log.warning("site %s: %s samples of an outage did not fit on its disk", self._site, report.samples_dropped)
        self._report = report
        self._records.keep_report(report)

    def _follow_clock(self) -> None:
        if self._link is not None:
            self._site_clock.follow(self._link.clock_offset_s)

    def _on_statuses(self, statuses: SiteStatuses) -> None:
        self._follow_clock()
        self._attempts.apply(statuses, self._commands.forgotten())
        if statuses.complete:
            if self._connection is not self._link:
                self._links += 1
            self._connection = self._link
            self._connected.set()

    async def _on_samples(self, kept: Samples, _: OnProgress) -> Nothing:
        """Store the measurements of a site; the other series are the control plane's own."""
        self._follow_clock()
        await self._from_sites.store_samples(self._site, [own for one in kept.samples if (own := self._own(one))])
        return Nothing()

    async def _on_runs(self, reported: SiteRuns, on_progress: OnProgress) -> Nothing:
        self._follow_clock()
        return await self.cron_site.on_runs(reported, on_progress)

    async def _on_node_left(self, left: NodeName, _: OnProgress) -> Nothing:
        if self._report is not None:  # the next report does not have it
            self._report = replace(self._report, nodes=tuple(n for n in self._report.nodes if n.name != left.node))
        await self._from_sites.node_left(self._site, left.node)
        return Nothing()

    async def _on_pull_token(self, wanted: WantedImage, _: OnProgress) -> ImageToken:
        if wanted.image not in self._preparing and not self._attempts.uses(wanted.image):
            _log.warning("site %s asked for an image that it needs for no workload: %s", self._site, wanted.image[:200])
            raise EngineFailure(f"no workload with the image {wanted.image[:200]} was dispatched to this site")
        return ImageToken(self._from_sites.pull_token(self._site, wanted.image))

    def _lets_join(self) -> bool:
        return self._report is not None and self._report.lets_join

    def _measures_storage(self) -> bool:
        return self._report is not None and self._report.measures_storage

    def _own(self, sample: Sample) -> Sample | None:
        """With this site in the subject: a site names none, and so speaks of itself only. In the time of this side."""
        kind, _, name = sample.subject.partition(":")
        if sample.metric not in MEASURED.get(kind, ()):
            return None
        sample = replace(sample, at=self._site_clock.here(sample.at))
        if kind == "attempt":
            return sample
        return replace(sample, subject=f"{kind}:{self._site}{name}") if name.startswith("/") else None

    def _reported_nodes(self) -> Sequence[NodeReport]:
        return () if self._report is None else self._report.nodes

    async def _connect_to_gateway(self, _nothing: Nothing) -> socket.socket:
        if not self._gateway_port:
            raise EngineFailure("the control plane accepts no connections from workloads")
        try:
            return await connect("127.0.0.1", self._gateway_port)
        except OSError as error:
            raise EngineFailure(f"the workload gateway does not answer: {error}", retryable=True) from error

    async def _carry_to_attempt(self, attempt_id: str, connection: socket.socket) -> None:
        await self._required().carry(TUNNEL, AttemptId(attempt_id), connection)

    def _required(self) -> SiteConnection:
        if self._connection is None:
            raise EngineFailure(self._why_unreachable(), retryable=True)
        return self._connection

    # --- the loop -------------------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        """Deliver waiting commands, at each new link and every few seconds. Notes the last contact."""
        served: SiteConnection | None = None
        while True:
            with self._iterations.rest(), suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_EVERY_S):
                    await self._connected.wait()
                if served is self._connection:
                    await asyncio.sleep(_RETRY_EVERY_S)
            try:
                served = self._connection
                if served is None:
                    await self._commands.withdraw_old(self._why_unreachable())
                    continue
                if self._clock.now() - self._last_contact >= _CONTACT_EVERY_S:
                    self._last_contact = self._clock.now()
                    self._records.keep_contact(self._last_contact)
                await self._commands.deliver_all()
            except CommonageError as error:
                _log.warning("site %s: commands are not delivered: %s", self._site, error)

    # --- the port -------------------------------------------------------------------------------------------------

    @property
    def site(self) -> str:
        return self._site

    def capabilities(self) -> Capabilities:
        """Those of the engine at the site."""
        unknown = Capabilities("remote", ports=False)
        return unknown if self._report is None else replace(self._report.capabilities, name="remote")

    async def open(self) -> None:
        known = await self._records.open()
        self._report = known.report
        self._last_contact = self._lost_at = self._clock.now()
        if known.contact is not None:
            self._last_contact = known.contact.at
        self._site_clock.restore(known.clock_offset_s)
        self.devices.restore(known.warned)
        self.storage.restore(known.stored)
        self._attempts.restore(known)
        self._commands.restore(known)
        self._delivering = asyncio.create_task(self._deliver(), name=f"site {self._site}")

    async def close(self) -> None:
        if self._delivering is not None:
            self._delivering.cancel()
            await asyncio.wait({self._delivering})
        if self._link is not None:
            self._link.close("the control plane stops")
        for task in self._attached:
            task.cancel()
        await asyncio.gather(*self._attached, return_exceptions=True)
        self._tunnels.close()
        await self._records.close()

    async def delete_records(self) -> None:
        """Delete all stored data of the site, after `close`."""
        await self._records.delete()

    def loops(self) -> Sequence[Iterations]:
        return (self._iterations,)

    async def start(self, request: StartRequest) -> None:
        if self._attempts.get(request.attempt_id) is None:
            await self._commands.start(request)

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        await self._commands.stop(attempt_id, grace_s)

    async def forget(self, attempt_id: str) -> None:
        known = self._attempts.get(attempt_id)
        if known is None or known.phase is Phase.ENDED:
            await self._commands.forget(attempt_id)

    async def statuses(self) -> Sequence[Status]:
        """As last reported, and `starting` for each start request that the site has not confirmed yet."""
        known = self._attempts.all()
        unreachable = self.unreachable
        waiting = [
            Status(one.attempt_id, Phase.STARTING, one.at, one.start.allocation.node, unreachable)
            for one in self._commands.starting()
            if one.attempt_id not in known and one.start is not None
        ]
        return [*known.values(), *waiting]

    def watch(self) -> AsyncIterator[Status]:
        return self._attempts.watch()

    async def logs(
        self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncGenerator[LogLine]:
        request = LogRequest(attempt_id, offset, tail, follow)
        while True:
            try:
                async for line in read_log(self._required(), request):
                    yield line
                    request = replace(request, offset=line.offset, tail=None)
                return
            except ConnectionLost as error:
                if not (follow and await self._is_back()):
                    raise EngineFailure(self._why_unreachable(), retryable=True) from error

    async def _is_back(self) -> bool:
        if self._connection is not None and self._connection.is_closed:
            self._detach()  # it is noticed here first
        try:
            async with asyncio.timeout(FOLLOW_GRACE_S):
                await self._connected.wait()
        except TimeoutError:
            return False
        return True

    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> ExecStream:
        return await begin_exec(self._required(), ExecCommand(attempt_id, tuple(command), terminal))

    async def measure(self) -> Sequence[Measurement]:
        """Nothing without a link: the site keeps the samples."""
        try:
            if self._connection is None:
                return ()
            measured = await self._connection.request(MEASURE, Nothing())
        except ConnectionLost as error:
            _log.warning("site %s is not measured: %s", self._site, error)
            return ()
        self.devices.note_measured(measured.devices)
        return measured.measurements

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """None: these are processes of this node, and the site has its own."""
        return ()

    async def nodes(self) -> Sequence[NodeReport]:
        """Without a link, all are gone, and await an admin's decision: their workloads still run."""
        if self._report is None:
            return ()
        if (why := self.unreachable) is not None:
            return [replace(one, faults=(why,), gone=True, awaits_admin=why) for one in self._report.nodes]
        if self._report.failure:
            raise EngineFailure(f"the engine of site {self._site} fails: {self._report.failure}", retryable=True)
        return self._report.nodes

    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        image = environment.image or ""
        self._preparing[image] += 1
        try:
            await self._required().request(PREPARE, Prepare(environment, node), on_progress)
        finally:
            self._preparing -= Counter([image])

    async def keep_tenants(self, tenants: Sequence[Tenant]) -> Mapping[str, Reason]:
        """Raises EngineFailure without a link; then the site continues with the last tenants."""
        connection = self._required()
        if self._report is None or not self._report.keeps_tenants:
            return {}
        wanted = SiteTenants(tuple(SiteTenant(one.name, one.quota) for one in tenants))
        answer = await connection.request(KEEP_TENANTS, wanted)
        return checked_waiting(answer.tenants, {one.name for one in tenants})

    async def environments(self) -> Sequence[EnvironmentStatus]:
        if self._report is None:
            return ()
        found = [replace(one, site=self._site) for one in self._report.environments]
        if (why := self.unreachable) is None:
            return found
        failed = EnvironmentState.FAILED
        return [one if one.state is failed else replace(one, reason=why) for one in found]
