"""The report of the daemon's node while it does not answer, and after."""

from pathlib import Path
from typing import Any

import pytest

from commonage.domain.reasons.nodes import EngineNotAnswering
from commonage.engines.containers.daemon.connection import DaemonUnreachable
from commonage.engines.docker.daemon import Daemon
from commonage.engines.rundir.tasks import Tasks
from commonage.engines.settings import DockerSettings

pytestmark = pytest.mark.anyio


class FakeClient:
    """A daemon; `on_disconnected` is why it does not answer."""

    def __init__(self) -> None:
        self.on_disconnected = ""

    async def info(self) -> dict[str, Any]:
        if self.on_disconnected:
            raise DaemonUnreachable(self.on_disconnected)
        return {"NCPU": 4, "MemTotal": 8 * 2**30}


async def test_missing_answer_is_a_fault_until_next_poll(tmp_path: Path) -> None:
    """Events may arrive all the time, so that the return of the daemon is not noticed."""
    tasks, asked = Tasks("test"), FakeClient()
    client: Any = asked
    daemon = Daemon(client, DockerSettings(), tasks.in_thread)
    asked.on_disconnected = "its socket takes no more connections"
    assert (await daemon.report(tmp_path, None)).faults == (EngineNotAnswering(error=asked.on_disconnected),)
    asked.on_disconnected = ""
    report = await daemon.report(tmp_path, None)
    assert (report.faults, report.cpus_milli, report.memory_mib) == ((), 4000, 8192)
    daemon.mark_unreachable("the Docker daemon ended the connection")
    assert (await daemon.report(tmp_path, None)).faults == (
        EngineNotAnswering(error="the Docker daemon ended the connection"),
    )
    tasks.close()
