"""The engine contract through a site link: a site agent drives the Kubernetes engine, over the double of a cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.engines.kubernetes.test_contract import rig_on_double
from tests.contract.engines.remote.rig import RemoteRealRig

from commonage.testing.engine_contract import EngineContract


class TestKubernetesOnDoubleAtSite(EngineContract):
    @pytest.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[RemoteRealRig]:
        async with rig_on_double(tmp_path) as local:
            rig = RemoteRealRig(local, tmp_path)
            yield rig
            await rig.close()
