"""A control plane of fakes with a node, two GPUs and some work on its live state; no loop of it runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.fakes.bundles import MemoryBundles

from commonage.control.control import Adapters, Control
from commonage.control.engines import Engines
from commonage.control.settings import ControlSettings
from commonage.domain.node_usage import NodeUsage
from commonage.domain.nodes import NodeState
from commonage.domain.permissions import Role, RoleBinding, SubjectKind
from commonage.domain.principals import Principal, Scope
from commonage.domain.workloads import Kind, State
from commonage.gpu.none import NoDevices
from commonage.ports.devices import DeviceSample
from commonage.ports.metrics import Metrics, Point, Sample
from commonage.testing import factories
from commonage.testing.fakes.clock import FakeClock
from commonage.testing.fakes.engine import FakeEngine
from commonage.testing.fakes.store import MemoryStore


class NoMetrics(Metrics):
    """A metrics store that keeps nothing."""

    async def write(self, samples: Sequence[Sample]) -> None: ...

    async def query(self, metric: str, subject: str, **_window: Any) -> Sequence[Point]:
        return []


class FewPeople:
    """Knows four tokens with one scope each; `reader` and `submitter` are operators."""

    tokens: Mapping[str, Scope] = {
        "reader": Scope.READ,
        "submitter": Scope.SUBMIT,
        "admin": Scope.ADMIN,
        "user": Scope.READ,
    }

    async def whois(self, token: str) -> Principal | None:
        scope = self.tokens.get(token)
        return Principal(token, frozenset({scope})) if scope else None


@pytest.fixture
def node() -> Any:
    devices = [
        factories.device(0, uuid="GPU-real", simulated=False, model="NVIDIA A30"),
        factories.device(1, uuid="GPU-sick", faults=("fell off the bus",)),
    ]
    usage = NodeUsage(1.5, 2048, 100, 1000, 10.0, 20.0, 30.0, 40.0, 55.0, 0.5)
    return factories.node("node-1", devices, cpus_milli=8000, memory_mib=32 * 1024, disk_free_mib=1024, usage=usage)


@pytest.fixture
async def control(anyio_backend: str, node: Any) -> Control:
    store = MemoryStore()
    await store.open()
    clock = FakeClock()
    world = Adapters(
        store=store,
        metrics=NoMetrics(),
        clock=clock,
        identity=FewPeople(),  # type: ignore[arg-type]  # no user signs in here
        bundles=MemoryBundles(),
        devices=NoDevices(),
        engines=Engines([FakeEngine(factories.SITE, [node.report], clock)]),
        environments=[factories.environment()],
        chance=lambda _below: 0,
    )
    roles = (
        RoleBinding(SubjectKind.USER, "reader", Role.OPERATOR),
        RoleBinding(SubjectKind.USER, "submitter", Role.OPERATOR),
    )
    made = Control(world, ControlSettings(platform_roles=roles))
    await made.open()
    made.live_state.put_nodes([node, factories.node("node-2", 1, state=NodeState.LOST)])
    device = node.report.devices[0]
    held = factories.allocation(shares=[factories.share(device, memory_mib=6 * 1024)], cpus_milli=2000, memory_mib=4096)
    running = factories.workload(State.RUNNING, kind=Kind.SESSION, owner="ann")
    running = factories.changed(running, attempt=factories.attempt(running.id, allocation=held))
    waiting = factories.workload(State.QUEUED, owner="bob", since=factories.NOW - 90)
    made.live_state.load([running, waiting, factories.workload(State.HELD, owner="bob")], [])
    measured = DeviceSample(
        "GPU-real", 2048, 0.75, power_w=120.0, temperature_c=55.0, energy_j=5000.0, power_limit_w=400.0,
        sm_clock_mhz=1410, memory_clock_mhz=1593, throttle=("temperature",), ecc_corrected=3, ecc_uncorrected=1,
        remapped_corrected=2, remapped_uncorrected=1, xid=31,
    )  # fmt: skip
    made.node_views.note_measured({factories.device_key("GPU-real"): measured})
    made.writer.commits, made.writer.commit_s, made.writer.changes = 4, 0.5, 9
    return made
