"""Running containers as the daemon lists them, and the limits that a Swarm service cannot express."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from commonage.agent.containers import containers
from commonage.agent.containers.containers import Containers, Limits
from commonage.agent.containers.docker import DaemonGone, DaemonRefused, DockerDaemon

MIB = 1024 * 1024


class Daemon(DockerDaemon):
    """A daemon that runs these containers, and keeps what they are held to as a Swarm's would be."""

    def __init__(self, *containers: str, cpus: str = "1500", memory: int = 64 * MIB) -> None:
        super().__init__("unix:///nowhere")
        # Docker gives who says nothing of swap as much again as its memory.
        self.hosts = {one: {"Memory": memory, "MemorySwap": 2 * memory, "CpuShares": 0} for one in containers}
        self.labels = {"commonage.attempt": "a-1", "commonage.cpus-milli": cpus}
        self.asked: list[str] = []
        self.refuses: dict[str, Exception] = {}

    def _request(self, method: str, path: str, body: Any = None, *, within_s: float = 1) -> bytes:
        if path.startswith("/containers/json"):
            return json.dumps([{"Id": one} for one in self.hosts]).encode()
        name = path.split("/")[2]
        if path.endswith("/update"):
            self.asked.append(name)
            if name in self.refuses:
                raise self.refuses[name]
            self.hosts[name].update(body)
        about = {"Config": {"Labels": self.labels}, "State": {"Pid": 1}, "HostConfig": self.hosts[name]}
        return json.dumps(about).encode()


def held(daemon: Daemon, holding: Limits, now: float = 0) -> Mapping[str, Mapping[str, int]]:
    containers = Containers(daemon)
    containers.refresh()
    holding.apply(containers.running, now)
    return daemon.hosts


@pytest.mark.parametrize(("weighs", "shares"), [(True, 1536), (False, 0)])
def test_sets_no_swap_and_the_cpu_weight_of_the_requested_cores(weighs: bool, shares: int) -> None:
    daemon = Daemon("one")
    holding = Limits(daemon, cpu_weights=weighs)
    assert held(daemon, holding) == {"one": {"Memory": 64 * MIB, "MemorySwap": 64 * MIB, "CpuShares": shares}}
    held(daemon, holding)
    assert daemon.asked == ["one"], "it is asked once"


def test_limits_that_hold_already_are_not_set() -> None:
    daemon = Daemon("one", cpus="")
    daemon.hosts["one"]["MemorySwap"] = 64 * MIB
    unlimited = Daemon("two", cpus="", memory=0)
    held(daemon, Limits(daemon, cpu_weights=True))
    held(unlimited, Limits(unlimited, cpu_weights=True))
    assert (daemon.asked, unlimited.asked) == ([], [])


def test_refused_limits_are_retried_and_do_not_block_others(caplog: pytest.LogCaptureFixture) -> None:
    daemon = Daemon("one", "two")
    holding = Limits(daemon, cpu_weights=True)
    daemon.refuses["one"] = DaemonRefused("device or resource busy", 500)
    assert held(daemon, holding, 0)["two"]["MemorySwap"] == 64 * MIB
    held(daemon, holding, 5)
    held(daemon, holding, 11)
    assert daemon.asked == ["one", "two", "one"], "not at each look"
    assert (
        caplog.text.count(
            "the limits of a-1 cannot be set: the Docker daemon refused the request (Docker: device or resource busy)"
        )
        == 1
    )
    del daemon.refuses["one"]
    assert held(daemon, holding, 22)["one"]["MemorySwap"] == 64 * MIB


def test_limits_are_set_later_when_the_daemon_was_gone() -> None:
    daemon = Daemon("one")
    holding = Limits(daemon, cpu_weights=True)
    daemon.refuses["one"] = DaemonGone("there is no Docker daemon")
    with pytest.raises(DaemonGone):
        held(daemon, holding)
    daemon.refuses["one"] = DaemonRefused("no such container", 404)
    held(daemon, holding, 1)
    held(daemon, holding, 2)
    assert daemon.asked == ["one", "one"], "one that is gone is not asked after again"


def test_may_gain_keeps_its_value_while_no_container_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    gains: dict[int, bool | None] = {}
    about = {"Config": {"Labels": {"commonage.attempt": "x"}}, "HostConfig": {}}
    daemon: Any = SimpleNamespace(
        containers=lambda label: [{"Id": str(pid)} for pid in gains],
        inspect=lambda id: {**about, "State": {"Pid": int(id)}},
    )
    monkeypatch.setattr(containers, "_gains_privileges", lambda pid: gains[pid])
    found = Containers(daemon)

    def look(**pids: bool | None) -> bool:
        gains.clear()
        gains.update({int(name[1:]): may for name, may in pids.items()})
        found.refresh()
        return found.may_gain

    assert look() is False
    assert look(p1=False) is False
    assert look(p1=False, p2=True) is True
    assert look(p2=None) is True, "it has just ended"
    assert look() is True, "nothing that runs says otherwise"
    assert look(p3=False) is False
