"""Tenants' networks, over a daemon that makes them and may not get to say so."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from commonage.engines.containers.daemon import networks
from commonage.engines.containers.daemon.connection import DaemonRefused, DaemonUnreachable
from commonage.engines.containers.daemon.networks import Relays
from commonage.engines.docker.launcher import Networks

pytestmark = pytest.mark.anyio
INSTALLATION = "0123456789abcdef"


class FakeClient:
    """A daemon's networks. `mute`: it makes one and does not say so."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.mute = False

    async def create_network(self, config: Mapping[str, Any]) -> str:
        if config["Name"] in {one["Name"] for one in self.made}:
            raise DaemonRefused(f"Docker: network with name {config['Name']} already exists", 409, retryable=False)
        self.made.append({**config, "Id": f"id-{len(self.made)}"})
        if self.mute:
            raise DaemonUnreachable("the connection was lost")
        return str(self.made[-1]["Id"])

    async def network(self, network: str) -> Mapping[str, Any] | None:
        return next((one for one in self.made if one["Id"] == network), None)

    async def networks(self, label: str) -> Sequence[Mapping[str, Any]]:
        return self.made


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    monkeypatch.setattr(networks, "networks_here", list)
    return FakeClient()


def tenants(client: FakeClient) -> Networks:
    daemon: Any = client
    return Networks(daemon, INSTALLATION, "10.213.0.0/16", Relays((), 0))


async def test_network_is_found_after_lost_create_response(client: FakeClient) -> None:
    installation_filter, client.mute = tenants(client), True
    with pytest.raises(DaemonUnreachable):
        await installation_filter.of("lab")
    found = await installation_filter.of("lab")
    assert (found.id, len(client.made)) == ("id-0", 1)
    client.mute = False
    assert (await installation_filter.of("other")).id == "id-1"


async def test_foreign_network_of_the_same_name_is_not_used(client: FakeClient) -> None:
    await tenants(client).of("lab")
    client.made[0]["Labels"] = {}
    with pytest.raises(DaemonRefused, match="already exists"):
        await tenants(client).of("lab")


async def test_addresses_of_a_removed_network_are_not_used_again_at_once(client: FakeClient) -> None:
    installation_filter = tenants(client)
    await installation_filter.of("lab")
    removed = client.made.pop()
    installation_filter.forget("lab")
    await installation_filter.of("lab")
    assert client.made[0]["IPAM"] != removed["IPAM"]
