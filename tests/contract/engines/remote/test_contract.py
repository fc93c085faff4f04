"""The engine contract through a site link: the remote engine, and a site agent with the fake or the process engine."""

import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.engines.gang_contract import GangContract
from tests.contract.engines.remote.rig import RemoteFakeRig, RemoteRealRig
from tests.contract.engines.remote.traffic_contract import TrafficContract
from tests.contract.engines.rigs import ProcessRig
from tests.contract.harness.processes import processes_of

from commonage.engines.process.processes import send
from commonage.engines.settings import ProcessSettings
from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig
from commonage.testing.exec_contract import ExecContract


class TestFakeEngineAtSite(EngineContract, ExecContract):
    @pytest.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[EngineRig]:
        rig = RemoteFakeRig(tmp_path)
        yield rig
        await rig.close()


class TestProcessEngineAtSite(EngineContract, ExecContract, GangContract, TrafficContract):
    python, bind = sys.executable, "127.0.0.1"

    @pytest.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[EngineRig]:
        rig = RemoteRealRig(ProcessRig(tmp_path / "data", ProcessSettings(node_name="here")), tmp_path)
        try:
            yield rig
        finally:
            statuses = await (await rig.engine()).statuses()
            await rig.close()
            for status in statuses:
                send(processes_of(status.attempt_id), signal.SIGKILL)
