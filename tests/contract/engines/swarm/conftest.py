"""The Swarm and the engine that the test files of this folder share; test_firewall.py has its own."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.engines.rigs import SwarmRig, swarm_rig
from tests.contract.harness.local_agents import LocalAgents
from tests.contract.harness.swarm import Swarm, swarm_of


@pytest.fixture(scope="package")
def swarm() -> Iterator[Swarm]:
    with swarm_of(3) as swarm:
        yield swarm


@pytest.fixture
async def rig(tmp_path: Path, swarm: Swarm) -> AsyncIterator[SwarmRig]:
    async with swarm_rig(tmp_path, swarm, LocalAgents(swarm)) as rig:
        yield rig
