"""Machines that are rented while work waits, and given back when they idle."""

from collections.abc import Callable, Sequence

import pytest
from tests.unit.control.world import ANN, ROOT, Site, job

from commonage.domain.errors import Forbidden, Unavailable
from commonage.domain.events import EventKind
from commonage.domain.fleets import FleetPolicy, Machine, MachineKind
from commonage.domain.workloads import State
from commonage.ports.joining import JoinToken
from commonage.testing import factories
from commonage.testing.behaviour import Behaviour

pytestmark = pytest.mark.anyio
KIND = MachineKind(8000, 32768, price_h=1.5)


class FakeCloud:
    """Rents at once; its machines join when the test says so."""

    provider = "fake"

    def __init__(self) -> None:
        self.there: dict[str, str] = {"somebody-elses": ""}
        self.refuses = ""
        self.gone: Callable[[str], None] = lambda _: None

    async def price_h(self) -> float | None:
        return None

    async def machines(self) -> Sequence[Machine]:
        if self.refuses:
            raise Unavailable(self.refuses)
        return [Machine(name, name) for name in self.there]

    async def create(self, name: str, user_data: str) -> Machine:
        if self.refuses:
            raise Unavailable(self.refuses)
        self.there[name] = user_data
        return Machine(name, name)

    async def destroy(self, machine: Machine) -> None:
        self.there.pop(machine.id, None)
        self.gone(machine.name)

    @property
    def ours(self) -> list[str]:
        return [name for name in self.there if name != "somebody-elses"]


class FakeJoining:
    """Says what it was asked."""

    def __init__(self) -> None:
        self.expelled: list[str] = []

    async def token(self, for_s: int) -> JoinToken:
        return JoinToken(f"token for {for_s}", 0.0, "")

    async def template(self, token: str, options: Sequence[str], host_name: str = "") -> str:
        return f"{host_name}|{token}|{' '.join(options)}"

    async def expel(self, node: str, *, gone: bool = False) -> Sequence[str]:
        assert gone, "others that are on their way need their tokens"
        self.expelled.append(node)
        return []


class Rented:
    """A site with a small machine of its own, and a fleet."""

    def __init__(self, **policy: int) -> None:
        self.site, self.cloud, self.joining = Site([factories.node("own", cpus_milli=2000)]), FakeCloud(), FakeJoining()
        policy = {"least": 0, "most": 2, "idle_s": 600, "wait_s": 60, "join_s": 900} | policy
        self.site.joining = self.joining
        self.site.clouds = [(FleetPolicy("burst", KIND, **policy), self.cloud)]

    def joins(self) -> None:
        """Those that were rented are there now."""
        for name in self.cloud.ours:
            self.cloud.gone = self.site.engine.lose_node
            self.site.engine.add_node(KIND.node(name, "here", "fake").report)

    async def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / 5)):
            await self.site.clock.advance(5)


@pytest.fixture
def rented() -> Rented:
    return Rented()


async def test_work_that_waits_brings_a_machine_that_goes_when_it_idles(rented: Rented) -> None:
    site = rented.site
    site.default = Behaviour(lasts_s=300)
    site.engine = site.new_engine()
    async with site.open() as control:
        (made,) = (await control.work.submit(ANN, job("true", cpus_milli=6000))).workloads
        await rented.pass_time(30)
        assert rented.cloud.ours == []
        await rented.pass_time(60)
        (name,) = rented.cloud.ours
        assert rented.cloud.there[name] == f"{name}|token for 900|--label fleet=burst"
        rented.joins()
        await rented.pass_time(30)
        assert site.there(made).state is State.RUNNING
        await rented.pass_time(420)
        assert site.there(made).state is State.SUCCEEDED
        assert rented.cloud.ours == [name]
        await rented.pass_time(700)
        assert rented.cloud.ours == []
        assert rented.joining.expelled == [name]
        assert name not in {view.node.name for view in control.fleet.nodes()}
        told = [event.message for event in site.store.shelf.events if event.kind is EventKind.NODE]
        assert any("the fleet costs 1.50 an hour, before it was 0.00" in words for words in told)
        assert any("the fleet costs 0.00 an hour, before it was 1.50" in words for words in told)
        assert "somebody-elses" in rented.cloud.there


async def test_the_least_are_there_and_a_restart_finds_them() -> None:
    rented = Rented(least=2)
    async with rented.site.open() as control:
        await rented.pass_time(20)
        before = rented.cloud.ours
        assert len(before) == 2
    async with rented.site.open() as control:
        await rented.pass_time(60)
        assert rented.cloud.ours == before
        (view,) = control.fleets.views(ROOT)
        assert [name for name, _ in view.machines] == sorted(before)
        assert (view.cost_h, view.cost_after_h) == (3.0, 3.0)


async def test_one_that_never_joins_is_given_back_and_the_fleet_rests() -> None:
    rented = Rented(least=1)
    async with rented.site.open() as control:
        await rented.pass_time(20)
        (first,) = rented.cloud.ours
        await rented.pass_time(900)
        assert rented.cloud.ours == []
        (view,) = control.fleets.views(ROOT)
        assert view.trouble.startswith(f"{first} did not join within 15 min and was given back")
        await rented.pass_time(180)
        (second,) = rented.cloud.ours
        assert second != first


async def test_one_that_is_lost_is_given_back_and_replaced() -> None:
    rented = Rented(least=1)
    async with rented.site.open() as control:
        await rented.pass_time(20)
        (first,) = rented.cloud.ours
        rented.joins()
        await rented.pass_time(30)
        rented.site.engine.lose_node(first)
        await rented.pass_time(300)
        (second,) = rented.cloud.ours
        assert second != first
        assert rented.joining.expelled == [first]
        assert first not in {view.node.name for view in control.fleet.nodes()}


async def test_a_cloud_that_refuses_is_told_and_asked_again_later() -> None:
    rented = Rented(least=1)
    rented.cloud.refuses = "quota of instances exceeded"
    async with rented.site.open() as control:
        await rented.pass_time(30)
        (view,) = control.fleets.views(ROOT)
        assert view.trouble == "quota of instances exceeded"
        rented.cloud.refuses = ""
        await rented.pass_time(150)
        assert len(rented.cloud.ours) == 1
        (view,) = control.fleets.views(ROOT)
        assert view.trouble == ""


async def test_fleets_are_for_admins(rented: Rented) -> None:
    async with rented.site.open() as control:
        with pytest.raises(Forbidden):
            control.fleets.views(ANN)
