"""The watcher notices that a Swarm answers again after an outage."""

import asyncio
from pathlib import Path

import pytest
from tests.unit.engines.swarm.test_launcher import Scene

from commonage.domain.iterations import Iterations
from commonage.engines.containers.attempt_backend import Run, Table
from commonage.engines.swarm.watcher import Watcher

pytestmark = pytest.mark.anyio


async def test_recovered_swarm_is_refreshed(tmp_path: Path) -> None:
    """Its services are listed again, also if another task listed the nodes before the watcher did."""
    scene, back = Scene(tmp_path), asyncio.Event()

    def settle(_: Run) -> None:
        """There is nothing on the live state."""

    async def is_back() -> None:
        back.set()

    scene.node_tracker.note_fault("the Docker daemon does not answer")
    await scene.node_tracker.refresh()
    watcher, iterations = (
        Watcher(Table(), scene.tasks, scene.node_tracker, asyncio.to_thread),
        Iterations("watch tasks", lambda: 0.0),
    )
    watching = asyncio.create_task(watcher.keep(settle, is_back, iterations))
    async with asyncio.timeout(5):
        await back.wait()
    assert scene.node_tracker.fault == ""
    watching.cancel()
