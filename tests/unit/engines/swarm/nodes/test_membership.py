"""Nodes join a Swarm and are removed, over a scripted manager."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from commonage.domain.errors import EngineFailure
from commonage.engines.containers.daemon.connection import Json
from commonage.engines.swarm.nodes import membership
from commonage.engines.swarm.nodes.membership import SwarmManager
from commonage.ports.joining import Admission, SwarmMember

pytestmark = pytest.mark.anyio


def node(number: int, name: str, state: str = "ready", role: str = "worker") -> dict[str, Any]:
    return {
        "ID": f"node-{number}", "Description": {"Hostname": name}, "Spec": {"Role": role},
        "Status": {"State": state, "Message": "", "Addr": ""},
    }  # fmt: skip


class FakeManager:
    """`asked` is what was asked for beside what is known; `is_silent`: it answers nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, object]] = []
        self.context: dict[str, Any] = {"NodeAddr": "10.0.0.1", "RemoteManagers": None}
        self.is_silent = self.is_closed = False

    async def membership(self) -> Json:
        if self.is_silent:
            await asyncio.Event().wait()
        return self.context

    async def nodes(self) -> Sequence[Json]:
        return [node(1, "hub", role="manager"), node(2, "gpu-1"), node(3, "gpu-1", "down"), node(4, "gpu-2", "down")]

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        self.asked.append((method, path, body))
        spec = {"Name": "default"}
        return (
            {"JoinTokens": {"Worker": "SWMTKN-1"}, "Version": {"Index": 7}, "Spec": spec} if path == "swarm" else None
        )

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> FakeManager:
    made = FakeManager()
    monkeypatch.setattr(membership, "Client", lambda _: made)
    return made


async def test_worker_gets_token_and_manager_addresses(manager: FakeManager) -> None:
    assert await SwarmManager("unix:///x").admission() == Admission("SWMTKN-1", ("10.0.0.1:2377",))
    manager.context["RemoteManagers"] = [{"Addr": "10.0.0.1:2377"}, {"Addr": "10.0.0.9:2377"}]
    assert (await SwarmManager("unix:///x").admission()).managers == ("10.0.0.1:2377", "10.0.0.9:2377")
    assert manager.is_closed


async def test_nodes_are_put_out_by_id_and_no_manager_is(manager: FakeManager) -> None:
    swarm = SwarmManager("unix:///x")
    assert await swarm.remove({"node-3", "node-9"}) == 1
    assert await swarm.remove({"node-2", "node-3"}) == 2
    assert [path for _, path, _ in manager.asked] == [f"nodes/node-{one}?force=true" for one in (3, 2, 3)]
    with pytest.raises(EngineFailure, match="docker node demote node-1"):
        await swarm.remove({"node-1"})


async def test_a_node_is_listed_by_the_name_that_is_bound_to_it(manager: FakeManager) -> None:
    members = await SwarmManager("unix:///x").members({"node-2": "gpu-9"})
    assert members["node-2"] == SwarmMember("gpu-9", "gpu-1", "ready")
    assert members["node-3"] == SwarmMember("gpu-1", "gpu-1", "down")
    assert members["node-1"].name == "hub"


async def test_another_token_leaves_the_swarm_as_it_is_set(manager: FakeManager) -> None:
    await SwarmManager("unix:///x").renew_token()
    assert manager.asked[1:] == [("POST", "swarm/update?version=7&rotateWorkerToken=true", {"Name": "default"})]


async def test_a_manager_that_is_silent_is_not_waited_for(
    manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_WITHIN_S", 0.0)
    manager.is_silent = True
    with pytest.raises(EngineFailure, match="does not answer within") as caught:
        await SwarmManager("unix:///x").admission()
    assert caught.value.is_retryable
    assert manager.is_closed
