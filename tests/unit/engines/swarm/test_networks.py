"""Tenants' networks over a Swarm, which gives a new one its addresses later."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from commonage.engines.containers.daemon import networks
from commonage.engines.settings import SwarmSettings
from commonage.engines.swarm.launcher import Networks

pytestmark = pytest.mark.anyio


class FakeSwarm:
    """Makes networks, and does not say yet what addresses they have."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    async def create_network(self, config: Mapping[str, Any]) -> str:
        self.made.append({**config, "Id": f"id-{len(self.made)}", "IPAM": {"Driver": "default", "Config": None}})
        return str(self.made[-1]["Id"])

    async def network(self, network: str) -> Mapping[str, Any] | None:
        return next((one for one in self.made if one["Id"] == network), None)

    async def networks(self, label: str) -> Sequence[Mapping[str, Any]]:
        return self.made

    async def overlays(self) -> Sequence[Mapping[str, Any]]:
        return []


async def test_a_network_that_has_no_addresses_yet_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "networks_here", list)
    swarm: Any = FakeSwarm()
    found = await Networks(swarm, "0123456789abcdef", SwarmSettings(), "10.0.0.1").of("lab")
    assert (found.id, found.gateway) == ("id-0", "10.0.0.1")
