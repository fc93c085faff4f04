"""Nodes by libcloud, with its dummy driver."""

from typing import Any, ClassVar

import pytest
from libcloud.compute.base import Node, NodeImage
from libcloud.compute.drivers.dummy import DummyNodeDriver
from libcloud.compute.types import NodeState

from commonage.clouds import LibcloudMachines, Rental, driver_of
from commonage.domain.errors import InvalidInput, Unavailable

pytestmark = pytest.mark.anyio
HERE = f"{__name__}:Trying"


class Trying(DummyNodeDriver):
    """libcloud's dummy with what real drivers have: names as asked for, user data, one account for all connections."""

    accounts: ClassVar[dict[str, list[Node]]] = {}
    user_data: ClassVar[dict[str, str]] = {}

    def __init__(self, creds: str) -> None:
        super().__init__(creds)
        self.nl = self.accounts.setdefault(creds, self.nl)

    def create_node(self, name: str, size: Any, image: Any, ex_userdata: str, location: Any = None) -> Node:  # type: ignore[override]  # as the drivers of providers do
        if str(size.id) == "4":
            raise RuntimeError("quota of instances\nexceeded")
        made = super().create_node(name, size, image)
        made.name = name
        self.user_data[name] = ex_userdata
        return made


class Bare(DummyNodeDriver):
    """Takes no user data."""


class Slow(Trying):
    """Lists late what was created, and long what was destroyed: as EC2 does."""

    hidden: ClassVar[set[str]] = set()

    def list_nodes(self) -> list[Node]:
        return [node for node in super().list_nodes() if node.name not in self.hidden]

    def destroy_node(self, node: Node) -> bool:
        if node.state is NodeState.TERMINATED:
            raise RuntimeError("there is no such instance")
        node.state = NodeState.TERMINATED if node.state is NodeState.UNKNOWN else NodeState.UNKNOWN
        return True


class Many(Trying):
    """Finds images by id, and others by a filter only, as there are too many to list."""

    asked: ClassVar[list[object]] = []

    def get_image(self, image_id: str) -> NodeImage:
        self.asked.append(image_id)
        if not image_id.startswith("ami-"):
            raise RuntimeError("InvalidAMIID.Malformed")
        return NodeImage(image_id, "Debian 12", self)

    def list_images(self, location: Any = None, ex_filters: dict[str, str] | None = None) -> list[NodeImage]:
        assert ex_filters is not None, "all images of everybody"
        self.asked.append(ex_filters)
        return [NodeImage("ami-7", ex_filters["name"], self)]


def machines(account: str, **fields: str) -> LibcloudMachines:
    said = {"provider": HERE, "size": "1", "image": "1", "key": account} | fields
    return LibcloudMachines(Rental(**said))  # type: ignore[arg-type]  # texts, all of them


async def test_one_more_begins_with_its_user_data_and_one_less_is_gone() -> None:
    cloud = machines("a")
    before = {machine.name for machine in await cloud.machines()}
    made = await cloud.create("burst-0000aa", "#cloud-config\n")
    assert Trying.user_data["burst-0000aa"] == "#cloud-config\n"
    assert {machine.name for machine in await cloud.machines()} == before | {"burst-0000aa"}
    await cloud.destroy(made)
    await cloud.destroy(made)
    assert "burst-0000aa" not in {machine.name for machine in await cloud.machines()}


async def test_size_and_image_go_by_id_or_name_and_what_is_not_there_is_said() -> None:
    assert await machines("b", size="Small").price_per_h() is not None
    with pytest.raises(Unavailable, match=r"Trying has no size 'huge'\. It has \d+, for example 1"):
        await machines("b", size="huge").price_per_h()
    with pytest.raises(Unavailable, match="Trying has no image 'none'"):
        await machines("b", image="none").create("burst-0000ab", "")
    with pytest.raises(Unavailable, match="Trying has no location 'moon'"):
        await machines("b", location="moon").create("burst-0000ab", "")


async def test_what_the_provider_refuses_is_told_in_its_words() -> None:
    with pytest.raises(Unavailable, match="Trying refused: quota of instances exceeded"):
        await machines("c", size="4").create("burst-0000ac", "")


async def test_a_driver_without_user_data_is_no_use() -> None:
    with pytest.raises(Unavailable, match="takes no user data"):
        await machines("d", provider=f"{__name__}:Bare").create("burst-0000ad", "")


def test_an_unknown_provider_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"Unknown provider 'ec3'\. libcloud supports .*ec2"):
        driver_of(Rental("ec3", "s", "i"))
    with pytest.raises(InvalidInput, match=r"Driver not found: no\.such:Thing"):
        driver_of(Rental("no.such:Thing", "s", "i"))


async def test_what_is_broken_or_going_is_listed_and_what_is_gone_is_not() -> None:
    cloud = machines("e", provider=f"{__name__}:Slow")
    made = [await cloud.create(f"burst-0000e{number}", "") for number in range(3)]
    nodes = {node.name: node for node in Trying.accounts["e"]}
    nodes[made[0].name].state = NodeState.ERROR
    await cloud.destroy(made[1])
    nodes[made[2].name].state = NodeState.TERMINATED
    there = {one.name: one.failed for one in await cloud.machines() if one.name.startswith("burst")}
    assert there == {made[0].name: True, made[1].name: False}
    await cloud.destroy(made[0])
    assert nodes[made[0].name].state is NodeState.UNKNOWN, "what is broken costs until it is destroyed"


async def test_one_that_is_not_listed_yet_is_given_back_all_the_same() -> None:
    cloud = machines("f", provider=f"{__name__}:Slow")
    Slow.hidden.add("burst-0000f0")
    made = await cloud.create("burst-0000f0", "")
    [node] = [one for one in Trying.accounts["f"] if one.name == made.name]
    await cloud.destroy(made)
    assert node.state is NodeState.UNKNOWN
    gone = await cloud.create("burst-0000f0", "")
    Trying.accounts["f"][-1].state = NodeState.TERMINATED
    await cloud.destroy(gone)  # the driver says that it does not exist, which counts as success


async def test_an_image_is_looked_up_and_not_searched_among_all() -> None:
    by_id = machines("g", provider=f"{__name__}:Many", image="ami-1")
    await by_id.create("burst-0000a0", "")
    await by_id.create("burst-0000a1", "")
    assert Many.asked == ["ami-1"], "once"
    Many.asked.clear()
    await machines("g", provider=f"{__name__}:Many", image="Debian 12").create("burst-0000a2", "")
    assert Many.asked == ["Debian 12", {"name": "Debian 12"}]
