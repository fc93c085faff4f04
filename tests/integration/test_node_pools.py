"""Clusters on the command line, against the whole API, with nodes of libcloud's own driver for trying things."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from tests.integration.api_world import Api, served
from tests.integration.command_line import commonage_at
from tests.unit.control.nodes.test_node_pools import FakeJoining
from tests.unit.test_clouds import HERE

from commonage.clouds import LibcloudMachines, Rental
from commonage.control.nodes.node_pools import NodePools, Renting
from commonage.domain.nodes import MachineKind, NodePoolPolicy

POLICY = NodePoolPolicy("burst", MachineKind(8000, 32768, price_per_h=1.5), least=1, most=3)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    looks: list[asyncio.Task[None]] = []

    def prepare(api: Api) -> None:
        control = api.control
        cloud = LibcloudMachines(Rental(HERE, "1", "1", key="cli"))
        renting = Renting([(POLICY, cloud)], FakeJoining(), lambda below: 0xAA)  # type: ignore[arg-type]  # enough of it
        control.node_pools = NodePools(
            renting, control.live_state, control.writer, control.drains, control.clock, control.settings
        )
        looks.append(asyncio.create_task(control.node_pools.tick()))

    with served(tmp_path_factory.mktemp("api"), prepare=prepare) as address:
        while not looks[0].done():
            time.sleep(0.02)
        yield address


def commonage(url: str, folder: Path, *arguments: str, token: str = "admin:root") -> Result:
    return commonage_at(url, folder)(*arguments, token=token)


def test_what_there_is_and_what_it_costs(url: str, tmp_path: Path) -> None:
    done = commonage(url, tmp_path, "node-pool", "ls")
    assert done.exit_code == 0, done.output
    assert "burst" in done.stdout
    assert "burst-0000aa: on its way for" in done.stdout
    (node_pool,) = json.loads(commonage(url, tmp_path, "node-pool", "ls", "--json").stdout)
    assert [machine["name"] for machine in node_pool["nodes"]] == ["burst-0000aa"]
    assert (node_pool["min"], node_pool["max"], node_pool["price_per_h"]) == (1, 3, 1.5)
    assert node_pool["cost_after_per_h"] == node_pool["cost_per_h"] + 1.5 * node_pool["adding"]


def test_they_are_for_admins(url: str, tmp_path: Path) -> None:
    done = commonage(url, tmp_path, "node-pool", "ls", token="ann")
    assert done.exit_code != 0
    assert "custom:commonage:admin" in done.output
