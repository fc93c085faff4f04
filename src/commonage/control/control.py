"""Assembles all parts of control: one instance per process. Made by the server, used by API and portal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.catalogue.environments import Environments
from commonage.control.catalogue.images import Images
from commonage.control.catalogue.prepulls import Prepulls
from commonage.control.loops.gangs import Gangs
from commonage.control.loops.reconcile import Reconcile
from commonage.control.loops.sample import Sampling
from commonage.control.loops.schedule import Schedule
from commonage.control.loops.session_restarts import SessionRestarts
from commonage.control.loops.timers import Timers
from commonage.control.nodes.all_devices import AllDevices
from commonage.control.nodes.device_warnings import DeviceWarnings
from commonage.control.nodes.drains import Drains
from commonage.control.nodes.node_pools import NodePools, Renting
from commonage.control.nodes.nodes import Nodes, NodeSources
from commonage.control.queries.launch import Launch
from commonage.control.queries.node_views import NodeViews
from commonage.control.queries.tenant_views import TenantViews
from commonage.control.queries.volumes import Volumes
from commonage.control.queries.workloads import WorkloadQueries
from commonage.control.reservations.reservations import Reservations
from commonage.control.settings import ControlSettings
from commonage.control.state.feed import Feed
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.tenants.connections import Connections
from commonage.control.tenants.live_limits import LiveLimits
from commonage.control.tenants.rates import requests_of_users
from commonage.control.usage.attribution import Round
from commonage.control.usage.homes import HomeWatch
from commonage.control.usage.usage_reports import UsageReports
from commonage.control.usage.watchdog import Watchdog
from commonage.control.workloads.advice import Advice
from commonage.control.workloads.bundles import UserBundles
from commonage.control.workloads.execs import Execs
from commonage.control.workloads.start_requests import StartRequests
from commonage.control.workloads.workloads import Workloads
from commonage.domain.errors import CommonageError
from commonage.domain.images import Environment
from commonage.domain.iterations import Loop, LoopHealth
from commonage.domain.nodes import NodePoolPolicy
from commonage.domain.workloads import IdSequence
from commonage.ports.agents import RemoteDevices
from commonage.ports.bundles import Bundles
from commonage.ports.clock import Clock
from commonage.ports.clouds import Cloud
from commonage.ports.devices import Devices
from commonage.ports.engine import Engine
from commonage.ports.homes import Homes
from commonage.ports.identity import Identity
from commonage.ports.joining import Joining
from commonage.ports.metrics import Metrics
from commonage.ports.store import Store


@dataclass(frozen=True, slots=True)
class Adapters:
    """Everything control needs from outside: one adapter for each port. `chance(n)` is a random integer below n.

    `devices` are the GPUs of this node, `elsewhere` those of nodes with agents.
    """

    store: Store
    metrics: Metrics
    clock: Clock
    identity: Identity
    bundles: Bundles
    devices: Devices
    engines: Sequence[Engine]
    environments: Sequence[Environment]
    chance: Callable[[int], int]
    elsewhere: RemoteDevices | None = None
    clouds: Sequence[tuple[NodePoolPolicy, Cloud]] = ()
    joining: Joining | None = None
    homes: Homes | None = None


class Control:
    """The control plane without its API. `open()`, then `run()` until cancelled."""

    def __init__(self, adapters: Adapters, settings: ControlSettings | None = None) -> None:
        self.settings = settings or ControlSettings()
        self.store, self.metrics, self.clock = adapters.store, adapters.metrics, adapters.clock
        self.identity = adapters.identity
        self._engines: Mapping[str, Engine] = {engine.site: engine for engine in adapters.engines}
        self.catalogue = Catalogue(adapters.environments)
        self.feed = Feed()
        self.live_state = LiveState(self.settings.rules, [policy for policy, _ in adapters.clouds])
        self.writer = Writer(adapters.store, self.live_state, self.feed, adapters.clock)
        everywhere = self.settings.prepull
        self.prepulls = Prepulls(self._engines, self.live_state, self.catalogue, adapters.clock, everywhere=everywhere)
        devices = AllDevices(adapters.devices, adapters.elsewhere)
        self.watchdog = Watchdog(self.live_state, self.writer, adapters.clock, self.settings)
        self.environments = Environments(self.catalogue, self.prepulls.status, self.settings)
        sources = NodeSources(self._engines, devices, self.environments)
        self.nodes = Nodes(sources, self.live_state, self.writer, adapters.clock, self.settings)
        self.node_views = NodeViews(self._engines, self.watchdog, self.live_state)
        self.launch = Launch(self.live_state, self.environments, self.settings)
        self.reservations = Reservations(
            adapters.store, self.live_state, self.writer, adapters.clock, self.settings, adapters.chance,
            self.live_state.set_rules,
        )  # fmt: skip
        self.volumes = Volumes(self.node_views, self.settings)
        self.bundles = UserBundles(adapters.bundles, self.live_state, self.writer, adapters.clock, self.settings)
        self.homes = HomeWatch(adapters.homes, adapters.clock, self.settings.home_quota_mib)
        self.tenants = TenantViews(self.live_state, adapters.clock, self.settings)
        self.queries = WorkloadQueries(
            adapters.store, self.live_state, self.feed, self._engines, adapters.metrics, adapters.clock
        )
        self.execs = Execs(self.queries, self.live_state, self.writer, self._engines, adapters.clock)
        self.gangs = Gangs(adapters.store, self.live_state, self.writer, adapters.clock)
        self.drains = Drains(self.live_state, self.writer, self.nodes, adapters.clock, adapters.joining)
        self.node_pools = NodePools(
            Renting(adapters.clouds, adapters.joining, adapters.chance),
            self.live_state,
            self.writer,
            self.drains,
            adapters.clock,
        )
        self._start_requests = StartRequests(
            self.catalogue, self.bundles, adapters.devices, self.gangs.members, self.settings.volumes
        )
        self.reconcile = Reconcile(
            self._engines,
            self.live_state,
            self.writer,
            adapters.clock,
            self._start_requests.of,
            self.settings.sweep_every_s,
        )
        self.schedule = Schedule(self.live_state, self.writer, adapters.clock)
        self.timers = Timers(
            adapters.store,
            self.live_state,
            self.writer,
            adapters.clock,
            self.settings.warn_before_s,
            self.catalogue.shortfall,
        )
        self.usage_reports = UsageReports(
            adapters.store, self.live_state, self.writer, adapters.clock, self.settings.sample_every_s
        )
        self.device_warnings = DeviceWarnings(devices, self.live_state, self.writer, adapters.clock)
        self.advice = Advice(self.usage_reports, self.catalogue, self.settings)
        self.sampling = Sampling(
            self._engines, devices, self.live_state, self.node_views, adapters.metrics, adapters.clock,
            self.settings.sample_every_s,
            self._measured,
        )  # fmt: skip
        self.images = Images(
            adapters.store, self.live_state, self.writer, self.catalogue, self.prepulls, adapters.clock, self.settings
        )
        limits, self._ids = self.settings.limits, IdSequence()
        self.requests, self.connections = requests_of_users(adapters.clock, limits), Connections(adapters.clock, limits)
        self.workloads = Workloads(
            adapters.store, self.live_state, self.writer, self.catalogue, self.node_views, adapters.identity,
            self.bundles,
            adapters.clock, self.settings, self._ids, adapters.chance, LiveLimits(self.live_state, limits),
        )  # fmt: skip
        self.session_restarts = SessionRestarts(
            adapters.store, self.live_state, self.writer, adapters.clock, self.workloads.start_session_by_hub
        )
        self._loops: list[Loop] = [
            self.reconcile, self.nodes, self.timers, self.gangs, self.drains, self.session_restarts, self.bundles,
            self.schedule, self.sampling, self.reservations, self.prepulls, *self.reconcile.watches,
            *([self.node_pools] if adapters.clouds else []), *([self.homes] if adapters.homes else []),
        ]  # fmt: skip
        self._follow()

    def _follow(self) -> None:
        """Connect the signals to their followers."""
        for follower in (
            self.timers.changed, self.nodes.changed, self.gangs.changed, self.session_restarts.changed,
            self.reconcile.forget_misses, self.usage_reports.changed,
        ):  # fmt: skip
            self.writer.written.follow(follower)
        self.writer.effects.follow(self.reconcile.effect)
        self.reconcile.last_uses.follow(self.usage_reports.note_last_use)
        self.catalogue.changes.follow(self.timers.catalogue_changed)

    async def _measured(self, round_: Round) -> None:
        lost: CommonageError | None = None
        try:
            await self.watchdog.check(round_)
            await self.device_warnings.collect()
        except CommonageError as error:
            lost = error
        await self.usage_reports.add(round_, frozenset(one.attempt_id for one in self.watchdog.over))
        if lost is not None:
            raise lost

    async def open(self) -> None:
        """Resume from the store's contents and the workloads that the engines still run. Call once, before run()."""
        await self.writer.open()
        await self.bundles.open()
        await self.usage_reports.open()
        await self.images.open()
        await self.reservations.open()
        await self.gangs.open()
        await self.session_restarts.open()
        self._ids.follow(await self.store.last_workload_id())
        for engine in self._engines.values():
            await engine.open()

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
        """Stop all running workloads before the node shuts down: sessions end for good, other work is requeued.

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
        await self.prepulls.close()
        for engine in self._engines.values():
            await engine.close()

    def health(self) -> Sequence[LoopHealth]:
        """Health of all loops, including those of engines, by name."""
        iterations = [one.iterations for one in (self.writer, *self._loops)]
        iterations += [one for engine in self._engines.values() for one in engine.loops()]
        return sorted((one.health() for one in iterations), key=lambda one: one.name)


def _begin(loops: asyncio.TaskGroup, loop: Loop) -> None:
    loop.iterations.begin()
    loops.create_task(loop.run(), name=loop.iterations.name)
