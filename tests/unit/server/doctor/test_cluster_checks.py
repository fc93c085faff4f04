"""`commonage doctor site` against an API server in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

import httpx2
import pytest

from commonage.domain.errors import EngineFailure
from commonage.engines.kubernetes.manifest import Manifest
from commonage.server.commands.doctor import _cluster_table, _plain
from commonage.server.doctor.cluster_checks import NODES, RUNTIMES, ClusterReader, ClusterReport, gates_in, report_of

NODE: Manifest = {"metadata": {"name": "gpu-1"}, "status": {"allocatable": {"nvidia.com/gpu": "2"}}}
RUNTIME: Manifest = {"metadata": {"name": "nvidia"}}
METRICS = """\
# TYPE kubernetes_feature_enabled gauge
kubernetes_feature_enabled{name="DRAConsumableCapacity",stage="BETA"} 0
kubernetes_feature_enabled{name="DynamicResourceAllocation",stage=""} 1
kubernetes_feature_enabled{name="SomethingElse",stage="ALPHA"} 1
"""


def report(lists: Mapping[str, Sequence[Manifest]], refused: Sequence[str] = (), metrics: int = 200) -> ClusterReport:
    """Of a cluster with these lists, one object a page; `refused` are resources on which we have no rights."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path == "/version":
            return httpx2.Response(200, json={"gitVersion": "v1.36.2"})
        if path == "/metrics":
            return httpx2.Response(metrics, text=METRICS)
        if path.endswith("selfsubjectaccessreviews"):
            asked = json.loads(request.content)["spec"]["resourceAttributes"]
            return httpx2.Response(201, json={"status": {"allowed": asked["resource"] not in refused}})
        if path.rpartition("/")[2] in refused:
            return httpx2.Response(403, json={"message": "forbidden"})
        if path not in lists:
            return httpx2.Response(404, json={"message": "not found"})
        number = int(request.url.params.get("continue", "0"))
        more = str(number + 1) if number + 1 < len(lists[path]) else ""
        items = lists[path][number : number + 1]
        return httpx2.Response(200, json={"items": items, "metadata": {"continue": more}})

    async def ask() -> ClusterReport:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="https://cluster.test") as http:
            return await report_of(ClusterReader(http), "commonage-physics")

    return asyncio.run(ask())


def test_shows_the_best_mode_that_the_engine_can_use_and_reasons_for_the_others() -> None:
    found = report({NODES: [NODE, NODE], RUNTIMES: [RUNTIME]})
    assert found.nodes == 2
    lines = _cluster_table(found).splitlines()
    assert any(line.split() == ["env", "cooperative", "present"] for line in lines)
    assert any(line.split() == ["plugin", "whole", "present,", "used"] for line in lines)
    assert any(line.startswith("dra ") and "resource.k8s.io/v1" in line for line in lines)
    assert "Missing rights: none" in lines
    assert "Feature gates: DynamicResourceAllocation on (stable), DRAConsumableCapacity off (beta)" in lines


def test_names_rights_that_a_present_mode_lacks() -> None:
    found = report({NODES: [NODE]}, refused=["pods", "runtimeclasses"], metrics=403)
    plain = _plain(found)
    assert "list runtimeclasses.node.k8s.io" in plain["missing_rights"]
    assert "create pods/exec" in plain["missing_rights"]
    assert "get pods/log" not in plain["missing_rights"], "only the mode env needs it"
    assert plain["feature_gates"] is None
    assert [one["mode"] for one in plain["modes"] if one["used"]] == ["plugin"]


def test_server_that_fails_is_reported() -> None:
    async def ask() -> None:
        transport = httpx2.MockTransport(lambda _: httpx2.Response(500, text="etcd is away"))
        async with httpx2.AsyncClient(transport=transport, base_url="https://cluster.test") as http:
            await report_of(ClusterReader(http), "default")

    with pytest.raises(EngineFailure, match="etcd is away"):
        asyncio.run(ask())


def test_reads_only_gates_of_devices() -> None:
    assert [gate.name for gate in gates_in(METRICS)] == ["DynamicResourceAllocation", "DRAConsumableCapacity"]
