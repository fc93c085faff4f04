"""Agents on the machines of the tests' Swarm that need no link: they ask the machine's daemon, and this kernel."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from tests.contract.dockerd import Dockerd
from tests.contract.swarm import Swarm

from commonage.domain.errors import EngineFailure
from commonage.domain.fleet import Device, NodeReport
from commonage.domain.sightings import Measurement, ProcessOwner
from commonage.engines.containers.kernel import measure, owners_of
from commonage.ports.agents import Heard, Told
from commonage.ports.devices import Hold


def processes_of(attempt: str) -> list[int]:
    """Every process that carries the attempt's mark."""
    mark = f"COMMONAGE_ATTEMPT_ID={attempt}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class LocalAgents:
    """One for each machine. `devices` are those of each, by its name; `away` are machines whose agent is not there.

    They know of no other machines, and so never take themselves for cut off. On those in `stuck` nothing can be ended.
    """

    def __init__(self, swarm: Swarm, devices: Mapping[str, tuple[Device, ...]] | None = None) -> None:
        self._swarm = swarm
        self._devices = dict(devices or {})
        self.away: set[str] = set()
        self.stuck: set[str] = set()
        self.faults: dict[str, str] = {}
        self.fenced: dict[str, tuple[str, ...]] = {}
        self.confined: list[tuple[str, Hold]] = []
        self.released: list[tuple[str, str]] = []
        self._last: dict[str, float] = {}

    def heard(self) -> Sequence[Heard]:
        self._last.update({name: time.monotonic() for name in self._swarm.machines if name not in self.away})
        return [
            Heard(
                name,
                NodeReport(name, 4000, 16384, self._devices.get(name, ()), 100_000, (("rack", "7"),)),
                time.time(),
                self._last.get(name, 0.0),
                name not in self.away,
                self.faults.get(name, ""),
                self.fenced.get(name, ()),
            )
            for name in self._swarm.machines
        ]

    def let_reach(self, addresses: Collection[str]) -> None:
        """There are no walls."""

    def introduce(self, machines: Collection[tuple[str, str]]) -> None:
        """Nobody is cut off."""

    async def reaches(self, node: str, address: str) -> bool:
        return node not in self.away

    def _daemon(self, node: str) -> Dockerd:
        if node in self.away:
            raise EngineFailure(f"the agent of {node} does not answer", retryable=True)
        return self._swarm.machines[node].daemon

    def _containers(self, node: str) -> dict[str, tuple[str, int]]:
        """(attempt, first process) by container."""
        daemon = self._daemon(node)
        found = {}
        try:
            for one in daemon.containers(label=["commonage.attempt"]):
                with suppress(RuntimeError):
                    pid = daemon.ask("GET", f"/containers/{one['Id']}/json")["State"]["Pid"]
                    found[one["Id"]] = (one["Labels"]["commonage.attempt"], pid)
        except OSError as error:
            raise EngineFailure(f"the Docker daemon of {node} does not answer: {error}", retryable=True) from error
        return found

    async def measure(self, node: str) -> Sequence[Measurement]:
        containers = await asyncio.to_thread(self._containers, node)
        return [found for one, pid in containers.values() if pid and (found := measure(one, pid))]

    async def owners(self, node: str, pids: Collection[int]) -> Sequence[ProcessOwner]:
        """All machines are this one, as far as the kernel goes."""
        attempts = {}
        for name in set(self._swarm.machines) - self.away:
            containers = await asyncio.to_thread(self._containers, name)
            attempts.update({container: attempt for container, (attempt, _) in containers.items()})
        return owners_of(pids, attempts)

    async def confine(self, node: str, hold: Hold) -> Mapping[str, str]:
        self._daemon(node)
        self.confined.append((node, hold))
        return {"CONFINED_AT": node}

    async def release(self, node: str, attempt_id: str) -> None:
        self.released.append((node, attempt_id))

    async def pull(self, node: str, image: str, told: Told) -> None:
        daemon = self._daemon(node)

        def have() -> None:
            try:
                daemon.ask("GET", f"/images/{quote(image)}/json")
            except RuntimeError:
                told("0 of 1 MB", 0.5)
                answer = daemon.ask("POST", f"/images/create?fromImage={quote(image)}")
                raise EngineFailure(f"the image {image} cannot be fetched: {json.dumps(str(answer))}") from None

        try:
            await asyncio.to_thread(have)
        except RuntimeError as error:
            raise EngineFailure(str(error)) from error

    async def fence(self, node: str, attempt_ids: Collection[str]) -> Collection[str]:
        self._daemon(node)
        if node in self.stuck:
            return []
        for attempt in attempt_ids:
            while there := processes_of(attempt):  # what is killed is there for a moment where many wait for a core
                for pid in there:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.02)
        return list(attempt_ids)

    async def go_on(self, node: str, attempt_ids: Collection[str]) -> None:
        """Nothing is ever paused."""
