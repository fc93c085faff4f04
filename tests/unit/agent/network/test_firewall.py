"""The firewall are built when they should, again when they fell, and that they do not stand is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from commonage.agent.config import AgentConfig
from commonage.agent.network.firewall import Firewall, FirewallError, FirewallKeeper, Plan
from commonage.domain.reasons.nodes import FirewallNotBuilt
from commonage.ports.agents import NodeNetwork

pytestmark = pytest.mark.anyio


class FakeFirewall(Firewall):
    def __init__(self) -> None:
        super().__init__()
        self.built: list[Plan] = []
        self.standing = False
        self.trouble = ""

    def build(self, plan: Plan) -> None:
        if self.trouble:
            raise FirewallError(self.trouble)
        self.built.append(plan)
        self.standing = True

    def are_first(self) -> bool:
        return self.standing


def firewall_in(folder: Path, fake: FakeFirewall, *, wanted: bool = True) -> FirewallKeeper:
    config = AgentConfig("w1", ("hub:1",), "", "", "", "", str(folder), firewall=wanted)
    return FirewallKeeper(config, folder, fake)


@asynccontextmanager
async def kept(firewall: FirewallKeeper) -> AsyncIterator[None]:
    keeping = asyncio.create_task(firewall.run())
    yield
    keeping.cancel()
    await asyncio.wait([keeping])


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


async def test_allowed_addresses_are_built_and_remembered(tmp_path: Path) -> None:
    fake = FakeFirewall()
    firewall = firewall_in(tmp_path, fake)
    async with kept(firewall):
        await until(lambda: fake.built)
        assert fake.built[-1].allowed == ()
        firewall.allow_addresses(["10.0.0.1:8081"])
        await until(lambda: len(fake.built) == 2)
        assert fake.built[-1].allowed == (("10.0.0.1", 8081),)
        fake.standing = False
        firewall.check_soon()
        await until(lambda: len(fake.built) == 3)
    later = FakeFirewall()
    async with kept(firewall_in(tmp_path, later)):  # before the control plane is heard
        await until(lambda: later.built)
    assert later.built[-1].allowed == (("10.0.0.1", 8081),)


async def test_firewall_that_cannot_be_built_is_a_fault(tmp_path: Path) -> None:
    fake = FakeFirewall()
    fake.trouble = "iptables: no chain DOCKER-USER"
    firewall = firewall_in(tmp_path, fake)
    async with kept(firewall):
        await until(lambda: firewall.fault == FirewallNotBuilt(error=fake.trouble))
        fake.trouble = ""
        firewall.check_soon()
        await until(lambda: firewall.fault is None)


async def test_builds_nothing_when_switched_off(tmp_path: Path) -> None:
    fake = FakeFirewall()
    firewall = firewall_in(tmp_path, fake, wanted=False)
    await firewall.run()
    assert (fake.built, firewall.fault) == ([], None)


async def test_plan_has_gateway_and_published_ports(tmp_path: Path) -> None:
    fake = FakeFirewall()
    firewall = firewall_in(tmp_path, fake)
    async with kept(firewall):
        await until(lambda: fake.built)
        assert (fake.built[-1].published, fake.built[-1].sources) == ((0, 0), ())
        firewall.allow_addresses(["10.0.0.1:8081"])
        firewall.set_network(NodeNetwork((8081,), (20000, 29999), ("10.0.0.1",)), ["172.18.0.1:8081"])
        await until(lambda: len(fake.built[-1].allowed) == 2)
        assert fake.built[-1].allowed == (("10.0.0.1", 8081), ("172.18.0.1", 8081))
        assert (fake.built[-1].published, fake.built[-1].sources) == ((20000, 29999), ("10.0.0.1/32",))
