"""A control plane on a store in memory, an engine that acts and a clock that obeys: what the tests of this room run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from tests.fakes.bundles import MemoryBundles
from tests.fakes.hub_users import HubUsers
from tests.fakes.metrics import KeptMetrics

from commonage.control.control import Adapters, Control
from commonage.control.engines import Engines
from commonage.control.settings import ControlSettings
from commonage.control.workloads.submission import Submission
from commonage.domain.errors import CommonageError
from commonage.domain.nodes import LOCAL_SITE, Allocation, Share
from commonage.domain.principals import Principal, Scope
from commonage.domain.resources import NodePool
from commonage.domain.workloads import Kind, State, Workload
from commonage.ports.clouds import Cloud
from commonage.ports.devices import Devices, DeviceSample
from commonage.ports.engine import Engine
from commonage.ports.platform import PlatformSupport
from commonage.ports.services import NoServiceAccess
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour
from commonage.testing.fakes.clock import FakeClock, settle
from commonage.testing.fakes.engine import FakeEngine, FakeWorld
from commonage.testing.fakes.store import MemoryStore

USER = frozenset({Scope.READ, Scope.SUBMIT})
ANN, BOB = Principal("ann", USER), Principal("bob", USER)
ROOT = Principal("root", USER | {Scope.ADMIN})
SPAWNER = Principal("hub", USER | {Scope.ADMIN})
FOREVER = Behaviour(lasts_s=None)


def job(*command: str, **fields: Any) -> Submission:
    """An ask for a job; `fields` are those of Submission."""
    return Submission(Kind.JOB, command or ("true",), **fields)


async def submit(control: Control, ask: Submission | None = None, principal: Principal = ANN) -> Workload:
    """Submit (`true` without `ask`), and return the first workload."""
    return (await control.workloads.submit(principal, ask or job())).workloads[0]


class NoDevices(Devices):
    """The GPUs' port: nothing is measured, and the share's VRAM is the only variable."""

    def __init__(self) -> None:
        self.allocated: Sequence[Allocation] = ()
        self.measured: list[DeviceSample] = []
        self.warnings: list[tuple[str, str]] = []

    def inventory(self) -> Sequence[Any]:
        return []

    def measure(self) -> Sequence[DeviceSample]:
        return self.measured

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        return {"COMMONAGE_GPU_MEMORY_MIB": str(sum(share.memory_mib for share in shares))}

    def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        self.allocated = allocations

    def take_warnings(self) -> Sequence[tuple[str, str]]:
        taken, self.warnings = self.warnings, []
        return taken


class FakeHub(HubUsers):
    """The hub: the test's spawner submits the requested starts."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str, Mapping[str, Any]]] = []
        self.spawn: Callable[[str, str, Mapping[str, Any]], Any] | None = None

    async def start_session(self, user: str, name: str, options: Mapping[str, Any]) -> None:
        self.asked.append((user, name, options))
        if self.spawn is not None:
            await self.spawn(user, name, options)


class GivenClouds(PlatformSupport):
    """The clouds of node pools, by the names of the pools."""

    def __init__(self, clouds: Mapping[str, Cloud]) -> None:
        self._clouds = clouds

    def cloud(self, pool: NodePool) -> Cloud:
        return self._clouds[pool.policy.name]


class Site:
    """Store, nodes and clock, which outlive a control plane. Each `open()` makes a new one on them."""

    def __init__(
        self,
        nodes: Sequence[Any] | None = None,
        store: MemoryStore | None = None,
        *,
        samples_itself: bool = True,
        **settings: Any,
    ) -> None:
        self.clock = FakeClock()
        self.store = store or MemoryStore()
        self.nodes = [node.report for node in nodes or [factories.node("gpu-1", 1), factories.node("cpu-1")]]
        self.world = FakeWorld()
        self.metrics, self.devices, self.hub = KeptMetrics(), NoDevices(), FakeHub()
        self.bundles = MemoryBundles()
        self.elsewhere: Any = None
        self.clouds: Sequence[Any] = ()
        self.joining: Any = None
        self.homes: Any = None
        self.materials: Any = None
        self.registry: Any = None
        self.services: Any = NoServiceAccess()
        self.declared: Mapping[str, Sequence[Any]] = {}
        self.settings = ControlSettings(**settings)
        self.environments = [
            factories.environment("base", kinds=(Kind.JOB, Kind.SERVICE)),
            factories.environment("notebook", kinds=(Kind.SESSION,)),
        ]
        self.default = FOREVER
        self.engine = self.new_engine()
        self.chances = iter(range(1, 1 << 30, 7919))
        self.samples_itself = samples_itself  # False: rounds come by `sampled` alone

    def new_engine(self) -> FakeEngine:
        return FakeEngine("local", self.nodes, self.clock, world=self.world, default=self.default)

    def control(self, engine: Engine | None = None) -> Control:
        world = Adapters(
            store=self.store,
            metrics=self.metrics,
            clock=self.clock,
            identity=self.hub,  # type: ignore[arg-type]  # no user signs in here
            bundles=self.bundles,
            devices=self.devices,
            engines=Engines([engine or self.engine]),
            environments=self.environments,
            chance=lambda below: next(self.chances) % below,
            elsewhere={} if self.elsewhere is None else {factories.SITE: self.elsewhere},
            support=GivenClouds({policy.name: cloud for policy, cloud in self.clouds}),
            joining={} if self.joining is None else {LOCAL_SITE: self.joining},
            homes=self.homes,
            materials=self.materials,
            registry=self.registry,
            declared=self.declared,
            services=self.services,
        )
        pools = tuple(NodePool(policy, "fake", "small", "debian") for policy, _ in self.clouds)
        return Control(world, replace(self.settings, node_pools=pools))

    @asynccontextmanager
    async def open(self, engine: Engine | None = None) -> AsyncIterator[Control]:
        """A control plane that runs. Leaving ends it as a crash does: what runs goes on running."""
        await self.store.open()
        control = self.control(engine)
        await control.open()
        if not self.samples_itself:
            control.sampling.every_s = 1e9
        loops = asyncio.create_task(control.run())
        await self.clock.advance(0.1)
        try:
            yield control
        finally:
            loops.cancel()
            await asyncio.wait([loops])
            await control.close()
            await settle()
        if not loops.cancelled() and (error := loops.exception()) is not None:
            raise error

    async def sampled(self, control: Control, seconds: float) -> None:
        """Let time pass with a round of samples every five seconds, each awaited: threads have another clock."""
        while seconds > 0:
            await self.clock.advance(min(5.0, seconds))
            round_ = asyncio.create_task(control.sampling.tick())
            while not (await asyncio.wait([round_], timeout=0.1))[0]:
                await self.clock.advance(1)  # it waits for the store
            with suppress(CommonageError):  # as the loop does
                await round_
            seconds -= 5.0

    def all(self) -> list[Workload]:
        """Every workload, as it was written."""
        return [self.store.shelf.workloads[key] for key in sorted(self.store.shelf.workloads)]

    def states(self) -> list[State]:
        return [one.state for one in self.all()]

    def there(self, workload: Workload) -> Workload:
        return self.store.shelf.workloads[workload.id]
