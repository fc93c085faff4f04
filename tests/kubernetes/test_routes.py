"""Ports of Pods through the API server, of the cluster that KUBECONFIG names."""

from dataclasses import replace

import pytest
from tests.kubernetes.rig import KubernetesRig
from tests.kubernetes.routes import RouteContract

from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig


class TestRoutes(RouteContract):
    serve = 'exec httpd -f -h w -p "$COMMONAGE_PORT"'

    @pytest.fixture(autouse=True)
    def _forwards(self, rig: KubernetesRig) -> None:
        rig.settings = replace(rig.settings, reach="port-forward")

    async def test_ports_are_assigned_and_reported(self, rig: EngineRig) -> None:
        await EngineContract().test_ports_are_assigned_and_reported(rig)

    async def test_restart_finds_running_attempts(self, rig: EngineRig) -> None:
        await EngineContract().test_restart_finds_running_attempts(rig)
