"""A gang on an engine: its members find each other by their variables, and reach each other on their network.

Inherited for each engine; `rig` is the fixture to give.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from commonage.domain.statuses import Phase, StartRequest
from commonage.domain.workloads import attempt_id
from commonage.testing.behaviour import Behaviour
from commonage.testing.engine_rig import EngineRig

# Adds up one number of each member at the first one, as an all-reduce does; then each member greets the next one.
_ALL_REDUCE = """
import json, os, socket, time
rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
hosts = os.environ["COMMONAGE_GANG_HOSTS"].split(",")

def connected(host, port):
    until = time.monotonic() + 60
    while True:
        try:
            # Packets to a new address may be lost, and the kernel waits ever longer before it sends them again.
            made = socket.create_connection((host, port), 3)
            made.settimeout(60)
            return made
        except OSError:  # it does not listen yet, or its name is not known yet
            if time.monotonic() > until:
                raise
            time.sleep(0.1)

def listening(port):
    return socket.create_server(("", port))

def said(to, what):
    to.write(json.dumps(what) + "\\n")
    to.flush()

own = listening(0)
mine = {"rank": rank, "number": 10 ** rank, "port": own.getsockname()[1]}
if rank == 0:
    door = listening(port)
    files = [door.accept()[0].makefile("rw") for _ in range(size - 1)]
    all_of_them = sorted([mine, *(json.loads(one.readline()) for one in files)], key=lambda one: one["rank"])
    for one in files:
        said(one, all_of_them)
else:
    file = connected(os.environ["MASTER_ADDR"], port).makefile("rw")
    said(file, mine)
    all_of_them = json.loads(file.readline())
following = (rank + 1) % size
greeting = connected(hosts[following], all_of_them[following]["port"]).makefile("rw")
said(greeting, rank)
heard = json.loads(own.accept()[0].makefile().readline())
with open(os.environ["COMMONAGE_HOST_FILE"]) as file:
    lines = file.read().splitlines()
print(json.dumps({
    "sum": sum(one["number"] for one in all_of_them),
    "heard": heard,
    "first": [os.environ["MASTER_ADDR"], port],
    "lines": lines,
    "torchrun": [os.environ["PET_NNODES"], os.environ["PET_NODE_RANK"], os.environ["PET_NPROC_PER_NODE"]],
}))
"""


class GangContract:
    pytestmark: ClassVar = pytest.mark.anyio
    nodes: ClassVar = ("here", "here")
    """A node for each member."""
    host_file: ClassVar = "127.0.0.1 slots=2"
    """The form of its lines; `{}` is the id of the attempt of each member."""
    python: ClassVar = "/usr/bin/python3"

    def _members(self, rig: EngineRig) -> list[StartRequest]:
        command = (self.python, "-c", _ALL_REDUCE)
        return self._attempt(1, [rig.start_request(Behaviour(), command=command) for _ in self.nodes])

    def _attempt(self, number: int, members: list[StartRequest]) -> list[StartRequest]:
        gang = tuple(attempt_id(one.workload_id, number) for one in members)
        return [
            replace(one, attempt_id=own, gang=gang, allocation=replace(one.allocation, attempt_id=own, node=node))
            for one, own, node in zip(members, gang, self.nodes, strict=True)
        ]

    async def _run(self, rig: EngineRig, members: list[StartRequest]) -> list[dict[str, Any]]:
        engine = await rig.engine()
        await asyncio.gather(*(engine.start(one) for one in members))
        said = []
        for one in members:
            end = await rig.phase(one.attempt_id, Phase.ENDED)
            lines = await rig.lines(one.attempt_id)
            assert end.exit_code == 0, (end.reason, lines)
            said.append(json.loads(lines[-1]))
        return said

    async def test_members_of_a_gang_reach_each_other(self, rig: EngineRig) -> None:
        members = self._members(rig)
        said = await self._run(rig, members)
        size = len(members)
        assert [one["sum"] for one in said] == [int("1" * size)] * size
        assert [one["heard"] for one in said] == [(rank - 1) % size for rank in range(size)]
        lines = [self.host_file.format(one) for one in members[0].gang]
        assert {tuple(one["lines"]) for one in said} == {tuple(dict.fromkeys(lines))}
        assert [one["torchrun"] for one in said] == [[str(size), str(rank), "1"] for rank in range(size)]

    async def test_a_gang_that_starts_again_meets_elsewhere(self, rig: EngineRig) -> None:
        """Programs that are left of the first attempt cannot answer the members of the second."""
        members = self._members(rig)
        first = await self._run(rig, members)
        second = await self._run(rig, self._attempt(2, members))
        assert first[0]["first"] != second[0]["first"]
