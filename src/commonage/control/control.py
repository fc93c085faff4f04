"""Assembles all parts of control: one instance per process. Made by the server, used by API and portal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.catalogue.images import Images
from commonage.control.catalogue.prepulls import Prepulls
from commonage.control.loops.again import Again
from commonage.control.loops.gangs import Gangs
from commonage.control.loops.reconcile import Reconcile
from commonage.control.loops.sample import Sampling
from commonage.control.loops.schedule import Schedule
from commonage.control.loops.timers import Timers
from commonage.control.node_pool import NodePool, Sources
from commonage.control.nodes.all_devices import AllDevices
from commonage.control.nodes.device_warnings import DeviceWarnings
from commonage.control.nodes.drains import Drains
from commonage.control.nodes.node_pools import NodePools, Renting
from commonage.control.queries.look import Look
from commonage.control.queries.tenant_views import TenantViews
from commonage.control.queries.volumes import Volumes
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
from commonage.control.workloads.bundles import SentBundles
from commonage.control.workloads.execs import Execs
from commonage.control.workloads.start_requests import StartRequests
from commonage.control.workloads.work import Work
from commonage.domain.environments import Environment
from commonage.domain.errors import CommonageError
from commonage.domain.ids import IdSequence
from commonage.domain.iterations import Loop, LoopHealth
from commonage.domain.node_pools import NodePoolPolicy
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
class World:
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

    def __init__(self, world: World, settings: ControlSettings | None = None) -> None:
        self.settings = settings or ControlSettings()
        self.store, self.metrics, self.clock = world.store, world.metrics, world.clock
        self.identity = world.identity
        self._engines: Mapping[str, Engine] = {engine.site: engine for engine in world.engines}
        self.catalogue = Catalogue(world.environments)
        self.feed = Feed()
        self.live_state = LiveState(self.settings.rules, [policy for policy, _ in world.clouds])
        self.writer = Writer(world.store, self.live_state, self.feed, world.clock)
        everywhere = self.settings.prepull
        self.prepulls = Prepulls(self._engines, self.live_state, self.catalogue, world.clock, everywhere=everywhere)
        devices = AllDevices(world.devices, world.elsewhere)
        self.watchdog = Watchdog(self.live_state, self.writer, world.clock, self.settings)
        sources = Sources(self._engines, devices, self.watchdog, self.prepulls.status)
        self.node_pool = NodePool(sources, self.catalogue, self.live_state, self.writer, world.clock, self.settings)
        self.reservations = Reservations(
            world.store, self.live_state, self.writer, self.node_pool, world.clock, self.settings, world.chance,
            self.live_state.set_rules,
        )  # fmt: skip
        self.volumes = Volumes(self.node_pool, self.settings)
        self.bundles = SentBundles(world.bundles, self.live_state, self.writer, world.clock, self.settings)
        self.homes = HomeWatch(world.homes, world.clock, self.settings.home_quota_mib)
        self.tenants = TenantViews(self.live_state, world.clock, self.settings)
        self.look = Look(world.store, self.live_state, self.feed, self._engines, world.metrics, world.clock)
        self.execs = Execs(self.look, self.live_state, self.writer, self._engines, world.clock)
        self.gangs = Gangs(world.store, self.live_state, self.writer, world.clock)
        self.drains = Drains(self.live_state, self.writer, self.node_pool, world.clock, world.joining)
        self.node_pools = NodePools(
            Renting(world.clouds, world.joining, world.chance),
            self.live_state,
            self.writer,
            self.drains,
            world.clock,
        )
        self._start_requests = StartRequests(
            self.catalogue, self.bundles, world.devices, self.gangs.members, self.settings.volumes
        )
        self.reconcile = Reconcile(
            self._engines,
            self.live_state,
            self.writer,
            world.clock,
            self._start_requests.of,
            self.settings.sweep_every_s,
        )
        self.schedule = Schedule(self.live_state, self.writer, world.clock)
        self.timers = Timers(
            world.store,
            self.live_state,
            self.writer,
            world.clock,
            self.settings.warn_before_s,
            self.catalogue.shortfall,
        )
        self.usage_reports = UsageReports(
            world.store, self.live_state, self.writer, world.clock, self.settings.sample_every_s
        )
        self.device_warnings = DeviceWarnings(devices, self.live_state, self.writer, world.clock)
        self.advice = Advice(self.usage_reports, self.catalogue, self.settings)
        self.sampling = Sampling(
            self._engines, devices, self.live_state, self.node_pool, world.metrics, world.clock, self.settings.sample_every_s,  # noqa: E501
            self._measured,
        )  # fmt: skip
        self.images = Images(
            world.store, self.live_state, self.writer, self.catalogue, self.prepulls, world.clock, self.settings
        )
        limits, self._ids = self.settings.limits, IdSequence()
        self.requests, self.connections = requests_of_users(world.clock, limits), Connections(world.clock, limits)
        self.work = Work(
            world.store, self.live_state, self.writer, self.node_pool, world.identity, self.bundles, world.clock,
            self.settings, self._ids, world.chance, LiveLimits(self.live_state, limits),
        )  # fmt: skip
        self.again = Again(world.store, self.live_state, self.writer, world.clock, self.work.through_the_hub)
        self._loops: list[Loop] = [
            self.reconcile, self.node_pool, self.timers, self.gangs, self.drains, self.again, self.bundles,
            self.schedule, self.sampling, self.reservations, self.prepulls, *self.reconcile.watches,
            *([self.node_pools] if world.clouds else []), *([self.homes] if world.homes else []),
        ]  # fmt: skip
        self._follow()

    def _follow(self) -> None:
        """Connect the signals to their followers."""
        for follower in (
            self.timers.changed, self.node_pool.changed, self.gangs.changed, self.again.changed,
            self.reconcile.forget_misses, self.usage_reports.changed,
        ):  # fmt: skip
            self.writer.written.follow(follower)
        self.writer.effects.follow(self.reconcile.effect)
        self.reconcile.last_uses.follow(self.usage_reports.note_last_use)
        self.catalogue.changes.follow(self.timers.catalogue_changed)

    async def _measured(self, round_: Round) -> None:
        lost: CommonageError | None = None
        try:
            await self.watchdog.look(round_)
            await self.device_warnings.look()
        except CommonageError as error:
            lost = error
        await self.usage_reports.look(round_, frozenset(one.attempt_id for one in self.watchdog.over))
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
        await self.again.open()
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
            await self.node_pool.look()
            for loop in self._loops:
                _begin(loops, loop)

    async def stand_down(self, within_s: float = 20.0) -> int:
        """Stop all running workloads before the node shuts down: sessions end for good, other work is requeued.

        The loops must still run. Returns how many workloads still ran after `within_s` seconds.
        """
        self.schedule.pause()
        left = await self.work.stand_down(within_s)
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
