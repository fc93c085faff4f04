"""Assembles all parts of control: one instance per process. Made by the server, used by API and portal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from commonage import tracing
from commonage.control.access import access_of
from commonage.control.catalogue.builds import EnvironmentBuilds
from commonage.control.catalogue.catalogue import Catalogue, Environments
from commonage.control.catalogue.images import Images
from commonage.control.catalogue.prepulls import Prepulls
from commonage.control.classes.admission import check_classes
from commonage.control.classes.classes import Classes
from commonage.control.classes.loop import ClassLoop
from commonage.control.classes.meetings import KEEP_S, Meetings
from commonage.control.classes.seats import Seats
from commonage.control.engines import Engines
from commonage.control.files import UserFiles
from commonage.control.loops.gangs import Gangs
from commonage.control.loops.reconcile import Reconcile
from commonage.control.loops.retention import RetentionLoop
from commonage.control.loops.sample import Sampling
from commonage.control.loops.schedule import Schedule
from commonage.control.loops.services import Services
from commonage.control.loops.session_restarts import SessionRestarts
from commonage.control.loops.tenants import TenantsAtSites
from commonage.control.loops.timers import Timers
from commonage.control.materials import Materials
from commonage.control.nodes.devices import AllDevices, DeviceWarnings
from commonage.control.nodes.drains import Drains
from commonage.control.nodes.joining import NodeAdmission
from commonage.control.nodes.node_pools import NodePools, Renting
from commonage.control.nodes.nodes import Nodes, NodeSources
from commonage.control.nodes.sites import SiteAdmission
from commonage.control.offboarding.names import Names
from commonage.control.offboarding.offboardings import Offboardings
from commonage.control.offboarding.plans import Planner
from commonage.control.offboarding.steps import Steps
from commonage.control.queries.launch import Launch, Volumes
from commonage.control.queries.node_views import NodeViews
from commonage.control.queries.workloads import WorkloadQueries
from commonage.control.request_limits import Connections, requests_of_users
from commonage.control.reservations import Reservations
from commonage.control.resources.git_sources import GitSources
from commonage.control.resources.resources import Resources
from commonage.control.settings import ControlSettings
from commonage.control.state.feed import Feed
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.tenants import TenantViews
from commonage.control.usage.attribution import MeasurementRound
from commonage.control.usage.homes import HomeWatch
from commonage.control.usage.idle import Idle
from commonage.control.usage.quota_notices import QuotaNotices
from commonage.control.usage.quota_use import QuotaUses
from commonage.control.usage.unused_gpus import UnusedGpus
from commonage.control.usage.usage_reports import UsageReports
from commonage.control.usage.watchdog import Watchdog
from commonage.control.workloads.admission import LiveLimits
from commonage.control.workloads.bundles import UserBundles
from commonage.control.workloads.cron_jobs import CronJobs
from commonage.control.workloads.cron_sites import CronSites
from commonage.control.workloads.execs import Execs
from commonage.control.workloads.extensions import Extensions
from commonage.control.workloads.session_apps import SessionApps
from commonage.control.workloads.start_requests import StartRequests
from commonage.control.workloads.submission import Advice
from commonage.control.workloads.traces import WorkloadTraces
from commonage.control.workloads.visits import Visits
from commonage.control.workloads.workloads import Workloads
from commonage.domain.apps import App
from commonage.domain.errors import CommonageError, InvalidInput
from commonage.domain.images import Environment
from commonage.domain.iterations import Loop, LoopHealth
from commonage.domain.nodes import LOCAL_SITE
from commonage.domain.offboarding import Subject
from commonage.domain.reasons import Reason
from commonage.domain.resources import Document, NodePool, Platform
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import IdSequence, Spec, Workload
from commonage.ports.agents import RemoteDevices
from commonage.ports.bundles import Bundles
from commonage.ports.clock import Clock
from commonage.ports.clouds import Cloud
from commonage.ports.cron_sites import CronSite, HasCronSite
from commonage.ports.devices import Devices
from commonage.ports.files import Files
from commonage.ports.homes import Homes, Storage
from commonage.ports.identity import Identity
from commonage.ports.joining import Joining
from commonage.ports.materials import MaterialStorage
from commonage.ports.metrics import Metrics
from commonage.ports.platform import PlatformSupport
from commonage.ports.registry import Registry
from commonage.ports.services import NoServiceAccess, ServiceAccess
from commonage.ports.sites import Sites
from commonage.ports.store import Store


class _NoSupport(PlatformSupport):
    """For an installation without clouds: any environment and volume, no node pool."""

    def cloud(self, pool: NodePool) -> Cloud:
        raise InvalidInput(f"{pool.policy.name}: this installation has no clouds")


@dataclass(frozen=True, slots=True)
class Adapters:
    """Everything control needs from outside: one adapter for each port. `chance(n)` is a random integer below n.

    `apps` are those that sessions may offer. `devices` are the GPUs of this node, `elsewhere` those of nodes with
    agents, by site. `environments` are the built-in ones. `joining` are the join services of sites, by site;
    `storage` is that of sites elsewhere. `declared`: the resources of the settings file by kind, which an empty
    database takes over.
    """

    store: Store
    metrics: Metrics
    clock: Clock
    identity: Identity
    bundles: Bundles
    devices: Devices
    engines: Engines
    environments: Sequence[Environment]
    chance: Callable[[int], int]
    elsewhere: Mapping[str, RemoteDevices] = field(default_factory=dict)
    support: PlatformSupport = field(default_factory=_NoSupport)
    declared: Mapping[str, Sequence[Document]] = field(default_factory=dict)
    joining: Mapping[str, Joining] = field(default_factory=dict)
    sites: Sites | None = None
    homes: Homes | None = None
    files: Files | None = None
    storage: Mapping[str, Storage] = field(default_factory=dict)
    apps: Sequence[App] = ()
    services: ServiceAccess = field(default_factory=NoServiceAccess)
    registry: Registry | None = None
    materials: MaterialStorage | None = None


class Control:
    """The control plane without its API. `open()`, then `run()` until cancelled."""

    def __init__(self, adapters: Adapters, settings: ControlSettings | None = None) -> None:
        self.settings = settings = settings or ControlSettings()
        self.store, self.metrics, self.clock = adapters.store, adapters.metrics, adapters.clock
        store, clock, chance, limits = adapters.store, adapters.clock, adapters.chance, settings.limits
        self.identity, self._ids, self.feed = adapters.identity, IdSequence(), Feed()
        self.engines = engines = adapters.engines
        self.names = names = Names()
        self.live_state = live_state = LiveState(settings.rules)
        self.writer = writer = Writer(store, live_state, self.feed, clock)
        self.catalogue = catalogue = Catalogue(adapters.environments)
        self.prepulls = Prepulls(engines, live_state, catalogue, clock, everywhere=settings.prepull)
        self.images = Images(store, live_state, writer, catalogue, self.prepulls, clock, settings)
        self.environments = Environments(catalogue, self.prepulls.status, settings)
        devices = AllDevices(adapters.devices, adapters.elsewhere)
        self.watchdog = Watchdog(live_state, writer, clock, settings)
        self.nodes = Nodes(NodeSources(engines, devices, self.environments), live_state, writer, clock, settings)
        self.node_views = NodeViews(engines, self.watchdog, live_state)
        self.sites, self.node_admission = (
            SiteAdmission(adapters.sites, writer, clock, settings),
            NodeAdmission(adapters.joining, writer, clock, settings),
        )
        self.drains = Drains(live_state, writer, self.nodes, clock, settings, adapters.joining)
        renting = Renting(adapters.support.cloud, adapters.joining.get(LOCAL_SITE), chance)
        self.node_pools = NodePools(renting, live_state, writer, self.drains, clock, settings)
        self.device_warnings = DeviceWarnings(devices, live_state, writer, clock)
        self.launch = Launch(live_state, self.environments, settings)
        self.tenants = TenantViews(live_state, clock, settings)
        self.reservations = Reservations(store, live_state, writer, clock, settings, chance, live_state.set_rules)
        self.bundles = UserBundles(adapters.bundles, live_state, writer, clock, settings)
        self.homes = HomeWatch(adapters.homes, clock, settings, adapters.storage)
        self.volumes = Volumes(self.node_views, settings, self.homes)
        self._add_queries()
        self.execs, self.visits, self.session_apps, self.files = (
            Execs(self.queries, live_state, writer, engines, clock, self.meetings),
            Visits(self.queries, writer, adapters.identity, clock, settings, self.meetings),
            SessionApps(adapters.apps, live_state, engines, clock),
            UserFiles(adapters.files, self.volumes, self.homes, settings),
        )
        self.gangs, self.services, self.tenants_at_sites = (
            Gangs(store, live_state, writer, clock),
            Services(live_state, writer, adapters.services, clock),
            TenantsAtSites(engines, live_state, settings, clock),
        )
        start_requests = StartRequests(catalogue, self.bundles, adapters.devices, self.gangs.members, settings)
        self._start_requests = start_requests
        self.reconcile = Reconcile(engines, live_state, writer, clock, self._start_request, settings.sweep_every_s)
        self.schedule = Schedule(live_state, writer, clock)
        self.timers = Timers(store, live_state, writer, clock, settings.warn_before_s, self._shortfall)
        self.usage_reports = UsageReports(store, live_state, writer, clock, settings.sample_every_s)
        self.advice = Advice(self.usage_reports, catalogue, settings)
        self.sampling = Sampling(
            engines, devices, live_state, self.node_views, adapters.metrics, clock, settings.sample_every_s,
            self._measured,
        )  # fmt: skip
        self.requests, self.connections = (
            requests_of_users(clock, limits),
            Connections(clock, limits, lambda one: access_of(one, settings).all_roles()),
        )
        live_limits = LiveLimits(live_state, limits, self.homes)
        self.quota_uses = QuotaUses(live_state, live_limits, self.homes, clock, settings)
        self.quota_notices = QuotaNotices(store, live_state, self.writer, self.quota_uses, clock)
        self.workloads = Workloads(
            store, live_state, writer, catalogue, self.node_views, adapters.identity, self.bundles, clock, settings,
            self._ids, chance, live_limits, self.quota_uses, names,
        )  # fmt: skip
        self.cron_jobs = CronJobs(
            store, live_state, writer, catalogue, self.workloads, self.bundles, clock, settings, chance,
            self._cron_site,
        )  # fmt: skip
        self.cron_sites = CronSites(engines, live_state, self.cron_jobs, start_requests, clock)
        self.session_restarts = SessionRestarts(store, live_state, writer, clock, self.workloads.start_session_by_hub)
        self.retention = RetentionLoop(store, live_state, writer, clock, settings.retention)
        self._loops: list[Loop] = [
            self.reconcile, self.nodes, self.timers, self.gangs, self.drains, self.session_restarts, self.bundles,
            self.idle, self.schedule, self.sampling, self.reservations, self.prepulls, self.quota_notices,
            self.retention, self.cron_jobs, self.cron_sites, self.reconcile.watches,
            self.node_pools, self.services, self.tenants_at_sites, *([self.homes] if adapters.homes else []),
        ]  # fmt: skip
        self._add_administration(adapters)
        self._follow()

    def _add_queries(self) -> None:
        """Queries of workloads, and limits of sessions."""
        live_state, writer, clock, settings = self.live_state, self.writer, self.clock, self.settings
        self.unused_gpus = UnusedGpus(live_state, writer, clock, settings)
        self.meetings = Meetings(self.store, writer, clock, settings)
        self.idle = Idle(live_state, writer, self.catalogue, self.unused_gpus, self.meetings, clock, settings)
        self.queries = WorkloadQueries(
            self.store, live_state, self.feed, self.engines, self.metrics, clock, settings, self.idle
        )
        self.extensions = Extensions(self.queries, live_state, writer, self.idle, clock, settings)

    def _add_administration(self, adapters: Adapters) -> None:
        """Use cases that change resources, users and tenants; and classes, which are resources with workloads."""
        self._seats = Seats(
            self.store, self.live_state, self.settings, lambda workload: self.queries.details(workload).reason
        )
        self._class_loop = ClassLoop(
            self.store, self.live_state, self.writer, self.catalogue, self.prepulls, adapters.identity,
            self.reservations, self.clock, self.settings, self.meetings, self._seats,
            self.workloads.start_session_by_hub,
        )  # fmt: skip
        builtin = replace(self.settings.platform, environments=tuple(adapters.environments))
        self.resources = Resources(
            self.store, self.live_state, self.writer, self.clock, self.settings, adapters.support, builtin,
            self.engines, self._declare,
            lambda tenant, members: self.offboardings.left_in(tenant, members=members),
            lambda tenant: self.names.claimed(Subject.TENANT, tenant) is not None,
            lambda before, after: check_classes(before, after, self.live_state, self.settings, self.clock.now()),
        )  # fmt: skip
        self.classes = Classes(
            self.store, self.writer, self.clock, self.settings, self.resources, self.reservations, self.meetings,
            self._seats, self._class_loop,
        )  # fmt: skip
        self._settings_file = adapters.declared
        self.builds = EnvironmentBuilds(
            self.store, self.writer, self.catalogue, self.images, self.resources, self.workloads, self.engines,
            self.clock, self.settings, adapters.registry,
        )  # fmt: skip
        self.git_sources = GitSources(self.writer, self.clock, self.settings)
        self.offboardings = self._offboardings(adapters)
        self.materials = Materials(
            adapters.materials, self.live_state, self.writer, self.homes, self.clock, self.settings
        )
        self._loops += [self.offboardings, self.builds, self._class_loop]
        self._loops += [self.materials] if adapters.materials else []

    def _offboardings(self, adapters: Adapters) -> Offboardings:
        planner = Planner(
            self.store, self.live_state, self.catalogue, self.reservations, self.resources, self.identity,
            adapters.homes, self.names, self.settings, self.clock, self.engines,
        )  # fmt: skip
        steps = Steps(
            self.store, self.live_state, self.writer, self.clock, self.identity, planner, self.resources,
            self.reservations, self.images, self.cron_jobs, self.bundles,
        )  # fmt: skip
        home_mib, on_names = self.homes.used_mib, self.timers.conditions_changed
        return Offboardings(steps, self.names, self.settings, adapters.chance, home_mib, on_names)

    def _cron_site(self, site: str) -> CronSite | None:
        if site not in self.engines:
            return None
        engine = self.engines[site]
        return engine.cron_site if isinstance(engine, HasCronSite) else None

    async def _start_request(self, workload: Workload) -> StartRequest:
        """The start request for the engine, once the files of the workload are in place."""
        request = self._start_requests.of(workload)
        await self.materials.prepare(workload)
        return request

    def _shortfall(self, spec: Spec) -> Reason | None:
        """Why work that waits may not start, whatever is free."""
        return (
            self.names.shortfall(spec)
            or self.catalogue.shortfall(spec.environment)
            or self.tenants_at_sites.shortfall(spec)
        )

    def _declare(self, platform: Platform) -> None:
        """Put changed resources in force."""
        self.settings.declare(platform)
        self.catalogue.declare(platform.environments)
        self.node_pools.declare(platform.node_pools)
        self.reservations.refresh()
        self.materials.refresh()
        self._class_loop.declared()
        self.tenants_at_sites.declared()

    def _follow(self) -> None:
        for follower in (
            self.timers.changed, self.nodes.changed, self.gangs.changed, self.session_restarts.changed,
            self.reconcile.forget_misses, self.usage_reports.changed, self.cron_jobs.ended, self.services.changed,
            self.builds.changed, self._seats.changed, self.tenants_at_sites.changed,
        ):  # fmt: skip
            self.writer.written.follow(follower)
        self._traces = WorkloadTraces()
        if tracing.is_on():
            self.writer.written.follow(self._traces.changed)
        self.usage_reports.measured.follow(self._seats.measured)
        self.writer.effects.follow(self.reconcile.effect)
        self.reconcile.last_uses.follow(self.usage_reports.note_last_use)
        self.catalogue.changes.follow(self.timers.conditions_changed)
        self.tenants_at_sites.changes.follow(self.timers.conditions_changed)

    async def _measured(self, round_: MeasurementRound) -> None:
        lost: CommonageError | None = None
        try:
            await self.watchdog.check(round_)
            await self.device_warnings.collect()
            await self.unused_gpus.add(round_)
        except CommonageError as error:
            lost = error
        await self.usage_reports.add(round_, frozenset(one.attempt_id for one in self.watchdog.over))
        if lost is not None:
            raise lost

    async def open(self) -> None:
        """Resume from the store's contents and the workloads that the engines still run. Call once, before run()."""
        await self.resources.open(self._settings_file)
        await self.offboardings.open()
        await self.writer.open()
        for workload in self.live_state:
            self._traces.changed(workload)
        await self.cron_jobs.open()
        await self.bundles.open()
        await self.usage_reports.open()
        await self.images.open()
        await self.builds.open()
        await self.reservations.open()
        await self.meetings.open()
        await self._seats.open(self.clock.now() - KEEP_S)
        await self.quota_notices.open()
        await self.gangs.open()
        await self.session_restarts.open()
        self.services.open()
        self._ids.follow(await self.store.last_workload_id())
        await self.engines.open()

    async def run(self, *adapters: Loop) -> None:
        """Run all loops, and those of adapters, until cancelled.

        An error in one loop ends all: a restart is better than a control plane that runs in part.
        """
        self._loops += adapters
        async with asyncio.TaskGroup() as loops:
            _begin(loops, self.writer)
            # Nodes first: planning without them would report every request as unschedulable for a moment.
            await self.nodes.refresh()
            for loop in self._loops:
                _begin(loops, loop)

    async def stop_all(self, within_s: float = 20.0) -> int:
        """Stop the local site's workloads before the node shuts down: sessions end for good, other work is requeued.

        The loops must still run. Returns how many workloads still ran after `within_s` seconds.
        """
        self.schedule.pause()
        left = await self.workloads.stop_all(within_s)
        await self.usage_reports.keep()
        return left

    async def close(self) -> None:
        """Call after run() was cancelled. Closes engines and listeners; workloads keep running."""
        self.feed.close()
        await self.reconcile.close()
        self.materials.close()
        await self.prepulls.close()
        await self.engines.close()

    def health(self) -> Sequence[LoopHealth]:
        iterations = [one.iterations for one in (self.writer, *self._loops)]
        iterations += [one for engine in self.engines.values() for one in engine.loops()]
        return sorted((one.health() for one in iterations), key=lambda one: one.name)


def _begin(loops: asyncio.TaskGroup, loop: Loop) -> None:
    loop.iterations.begin()
    loops.create_task(_run(loop), name=loop.iterations.name)


async def _run(loop: Loop) -> None:
    """Raises RuntimeError if the loop returns, or awaited a task that was cancelled: a task group ignores both."""
    task = asyncio.current_task()
    try:
        await loop.run()
    except Exception as error:  # any exception: it is raised again, with the name of the loop
        error.add_note(f"It ended the loop {loop.iterations.name!r}.")
        raise
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise RuntimeError(f"the loop {loop.iterations.name!r} waited for a task that was cancelled") from error
    raise RuntimeError(f"the loop {loop.iterations.name!r} ended; it must run until it is cancelled")
