"""Ports of Pods through the API server, on the double of a cluster; `make test-kube` has them on a real one."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.contract.engines.kubernetes.test_contract import rig_on_double
from tests.contract.engines.kubernetes.test_remote import KubernetesAtSite
from tests.contract.engines.remote.traffic_contract import TrafficContract
from tests.kubernetes.rig import KubernetesRig
from tests.kubernetes.routes import MUCH, RouteContract, fetched

from commonage.testing.engine_contract import EngineContract
from commonage.testing.engine_rig import EngineRig
from commonage.testing.fault_proxy import FaultProxy, Faults


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[KubernetesRig]:
    async with rig_on_double(tmp_path, reach="port-forward") as rig:
        yield rig


class TestRoutesOnDouble(RouteContract):
    serve = 'exec python3 -m http.server -d w "$COMMONAGE_PORT" --bind 0.0.0.0'

    async def test_ports_are_assigned_and_reported(self, rig: EngineRig) -> None:
        await EngineContract().test_ports_are_assigned_and_reported(rig)

    async def test_restart_finds_running_attempts(self, rig: EngineRig) -> None:
        await EngineContract().test_restart_finds_running_attempts(rig)

    async def test_connection_that_the_cluster_loses_is_reset(self, rig: KubernetesRig, tmp_path: Path) -> None:
        """A download that stops in the middle must not look whole."""
        assert rig.settings.kubeconfig is not None
        known = json.loads(rig.settings.kubeconfig.read_text(encoding="utf-8"))
        server = known["clusters"][0]["cluster"]
        line = FaultProxy(urlsplit(server["server"]).port or 0)
        await line.open()
        try:
            server["server"] = f"http://127.0.0.1:{line.port}"
            (tmp_path / "line").write_text(json.dumps(known), encoding="utf-8")
            rig.settings = replace(rig.settings, kubeconfig=tmp_path / "line")
            request = await self.listening(rig, self.served(rig))
            line.faults = Faults(cut_in=MUCH // 2)
            with pytest.raises(ConnectionResetError):
                await fetched(rig, request, "/much")
            assert await fetched(rig, request, "/much") == b"y\n" * (MUCH // 2)
        finally:
            await rig.end_all(forget=True)
            await line.close()
            rig.settings = replace(rig.settings, kubeconfig=tmp_path / "cluster" / "kubeconfig")
            await rig.reopen()

    @pytest.mark.allow_hosts(["127.0.0.0/8"])
    async def test_site_agent_without_a_route_to_pods_leads_to_them(self, rig: KubernetesRig, tmp_path: Path) -> None:
        site = KubernetesAtSite(rig, tmp_path)
        try:
            await TrafficContract().test_web_pages_and_websockets_of_an_attempt_are_reached(site)
        finally:
            await site.close()
