"""Everything of control, put together: one for each process. Made by the server, used by API and portal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from commonage.control.advice import Advice
from commonage.control.again import Again
from commonage.control.all_cards import AllCards
from commonage.control.attribution import Round
from commonage.control.board import Board
from commonage.control.bundles import SentBundles
from commonage.control.catalogue import Catalogue
from commonage.control.connections import Connections
from commonage.control.departures import Departures
from commonage.control.device_warnings import DeviceWarnings
from commonage.control.execs import Execs
from commonage.control.feed import Feed
from commonage.control.fleet import Fleet
from commonage.control.fleets import Fleets, Renting
from commonage.control.gangs import Gangs
from commonage.control.homes import HomeWatch
from commonage.control.images import Images
from commonage.control.ledger import Ledger
from commonage.control.live_limits import LiveLimits
from commonage.control.look import Look
from commonage.control.orders import Orders
from commonage.control.prepulls import Prepulls
from commonage.control.rates import requests_of_users
from commonage.control.receipts import Receipts
from commonage.control.reconcile import Reconcile
from commonage.control.reservations import Reservations
from commonage.control.sample import Sampling
from commonage.control.schedule import Schedule
from commonage.control.settings import ControlSettings
from commonage.control.tenant_views import TenantViews
from commonage.control.timers import Timers
from commonage.control.volumes import Volumes
from commonage.control.watchdog import Watchdog
from commonage.control.work import Work
from commonage.domain.environments import Environment
from commonage.domain.errors import CommonageError
from commonage.domain.fleets import FleetPolicy
from commonage.domain.ids import IdSequence
from commonage.domain.workloads import Spec, State, Workload
from commonage.ports.agents import CardsElsewhere
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

    `devices` are the cards of this machine, `elsewhere` those of machines with agents.
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
    elsewhere: CardsElsewhere | None = None
    clouds: Sequence[tuple[FleetPolicy, Cloud]] = ()
    joining: Joining | None = None
    homes: Homes | None = None


class Control:
    """The control plane without its doors. `open()`, then `run()` until cancelled."""

    def __init__(self, world: World, settings: ControlSettings | None = None) -> None:
        self.settings = settings or ControlSettings()
        self.store, self.metrics, self.clock = world.store, world.metrics, world.clock
        self.identity = world.identity
        self._engines: Mapping[str, Engine] = {engine.site: engine for engine in world.engines}
        self.catalogue = Catalogue(world.environments)
        self.feed = Feed()
        self.board = Board(self.settings.rules)
        self.ledger = Ledger(world.store, self.board, self.feed, world.clock)
        self.fleet = Fleet(self._engines, self.catalogue, self.board, self.ledger, world.clock, self.settings)
        self.reservations = Reservations(
            world.store, self.board, self.ledger, self.fleet, world.clock, self.settings, world.chance,
            self.board.govern,
        )  # fmt: skip
        self.volumes = Volumes(self.fleet, self.settings)
        self.bundles = SentBundles(world.bundles, self.board, self.ledger, world.clock, self.settings)
        self.homes = HomeWatch(world.homes, world.clock, self.settings.home_quota_mib)
        self.tenants = TenantViews(self.board, world.clock, self.settings)
        self.look = Look(world.store, self.board, self.feed, self._engines, world.metrics, world.clock)
        self.execs = Execs(self.look, self.board, self.ledger, self._engines, world.clock)
        self.gangs = Gangs(world.store, self.board, self.ledger, world.clock)
        self.departures = Departures(self.board, self.ledger, self.fleet, world.clock, world.joining)
        self.fleets = Fleets(
            Renting(world.clouds, world.joining, world.chance), self.board, self.ledger, self.departures, world.clock
        )
        self.again = Again(world.store, self.board, self.ledger, world.clock, self._start_session)
        self._orders = Orders(self.catalogue, self.bundles, world.devices, self.gangs.members, self.settings.volumes)
        self.receipts = Receipts(world.store, self.board, self.ledger, world.clock, self.settings.sample_every_s)
        last_use = self.receipts.note_last_use
        self.reconcile = Reconcile(self._engines, self.board, self.ledger, world.clock, self._orders.of, last_use)
        self.schedule = Schedule(self.board, self.ledger, world.clock)
        self.timers = Timers(world.store, self.board, self.ledger, world.clock, self.settings.warn_before_s)
        cards = AllCards(world.devices, world.elsewhere)
        self.sampling = Sampling(self._engines, cards, self.board, self.fleet, world.metrics, world.clock)
        self.watchdog = Watchdog(self.board, self.ledger, world.clock, self.settings)
        self.device_warnings = DeviceWarnings(cards, self.board, self.ledger, world.clock)
        self.advice = Advice(self.receipts, self.catalogue, self.settings)
        self.timers.lack, self.catalogue.on_change = self.catalogue.lack, self.timers.catalogue_changed
        everywhere = self.settings.prepull
        self.prepulls = Prepulls(self._engines, self.board, self.catalogue, world.clock, everywhere=everywhere)
        self.images = Images(
            world.store, self.board, self.ledger, self.catalogue, self.prepulls, world.clock, self.settings
        )
        self.fleet.image_status = self.prepulls.status
        self.sampling.on_round = self._measured
        self.fleet.forget_faults = cards.resume
        self._world, limits = world, self.settings.limits
        self.requests, self.connections = requests_of_users(world.clock, limits), Connections(world.clock, limits)
        self.work = self._work(IdSequence())
        self.ledger.on_effect = self.reconcile.effect
        self.ledger.on_change = self._changed

    def _work(self, ids: IdSequence) -> Work:
        world = self._world
        return Work(
            world.store, self.board, self.ledger, self.fleet, world.identity, self.bundles, world.clock,
            self.settings, ids, world.chance, LiveLimits(self.board, self.settings.limits),
        )  # fmt: skip

    async def _start_session(self, spec: Spec) -> Workload:
        return await self.work.through_the_hub(spec)  # which is made anew by `open`

    def _changed(self, workload: Workload) -> None:
        self.timers.changed(workload)
        if workload.attempt is not None and workload.attempt.state is State.LOST:
            self.fleet.suspect(workload.attempt.lease.node)  # before it is planned anew
        self.gangs.changed(workload)
        self.again.changed(workload)
        self.reconcile.forget_misses(workload)
        self.receipts.changed(workload)

    async def _measured(self, round_: Round) -> None:
        lost: CommonageError | None = None
        try:
            await self.watchdog.look(round_)
            self.fleet.strays = self.watchdog.strays
            await self.device_warnings.look()
        except CommonageError as error:
            lost = error
        await self.receipts.look(round_, frozenset(one.attempt_id for one in self.watchdog.over))
        if lost is not None:
            raise lost

    async def open(self) -> None:
        """Take up the work that the store remembers and the engines still run. Once, before run()."""
        await self.ledger.open()
        await self.bundles.open()
        await self.receipts.open()
        await self.images.open()
        await self.reservations.open()
        await self.gangs.open()
        await self.again.open()
        self.work = self._work(IdSequence(await self.store.last_workload_id()))
        for engine in self._engines.values():
            await engine.open()
        self.reconcile.sweep_every_s = self.settings.sweep_every_s
        self.sampling.every_s = self.settings.sample_every_s

    async def run(self) -> None:
        """All loops, until cancelled. An error in one ends all: half a control plane is worse than a restart."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self.ledger.run(), name="ledger")
            # Machines first: planning without them would call every request unplaceable for a moment.
            await self.fleet.look()
            for engine in self._engines.values():
                loops.create_task(self.reconcile.watch(engine), name=f"watch {engine.site}")
            loops.create_task(self.reconcile.run(), name="reconcile")
            loops.create_task(self.fleet.run(), name="fleet")
            loops.create_task(self.timers.run(), name="timers")
            loops.create_task(self.gangs.run(), name="gangs")
            loops.create_task(self.departures.run(), name="departures")
            loops.create_task(self.fleets.run(), name="fleets")
            loops.create_task(self.again.run(), name="again")
            loops.create_task(self.homes.run(), name="homes")
            loops.create_task(self.bundles.run(), name="bundles")
            loops.create_task(self.schedule.run(), name="schedule")
            loops.create_task(self.sampling.run(), name="sample")
            loops.create_task(self.reservations.run(), name="reservations")
            loops.create_task(self.prepulls.run(), name="prepulls")

    async def stand_down(self, within_s: float = 20.0) -> int:
        """End all that runs, as the machine's owner goes: sessions for good, other work back to the queue.

        The loops must still run. Returns how many still ran after `within_s` seconds.
        """
        self.schedule.paused = True
        left = await self.work.stand_down(within_s)
        await self.receipts.keep()
        return left

    async def close(self) -> None:
        """After run() was cancelled: let go of engines and listeners. What runs goes on running."""
        self.feed.close()
        await self.reconcile.close()
        await self.prepulls.close()
        for engine in self._engines.values():
            await engine.close()

    def health(self) -> dict[str, float]:
        """Seconds since each loop's last pass ended."""
        now = self.clock.now()
        loops = {
            "fleet": self.fleet.passed_at,
            "reconcile": self.reconcile.passed_at,
            "sample": self.sampling.passed_at,
            "schedule": self.schedule.passed_at,
            "timers": self.timers.passed_at,
        }
        return {name: now - at for name, at in loops.items() if at}
