"""The engine of a simulated appliance: it runs `sleep SECONDS` on a clock, and invents what nodes and jobs use."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, replace

from commonage.domain.errors import EngineFailure, NotFound
from commonage.domain.images import Environment, EnvironmentState, EnvironmentStatus
from commonage.domain.node_usage import NodeUsage
from commonage.domain.nodes import NodeReport
from commonage.domain.statuses import Capabilities, LogLine, Measurement, Phase, ProcessOwner, StartRequest, Status
from commonage.gpu.simulated import SimulatedDevices
from commonage.ports.agents import OnProgress, ignore_progress
from commonage.ports.clock import Clock
from commonage.ports.engine import Engine
from commonage.ports.execs import ExecStream, NotRunning, Terminal

CPUS_MILLI, MEMORY_MIB = 64_000, 512 * 1024
_GIB = 1024
_TERMINATED = 143


@dataclass(frozen=True, slots=True)
class _Run:
    request: StartRequest
    status: Status


class SimulatedEngine(Engine):
    """One node, with the GPUs `devices`."""

    def __init__(self, site: str, clock: Clock, devices: SimulatedDevices) -> None:
        self._site, self._clock, self._devices = site, clock, devices
        self._runs: dict[str, _Run] = {}
        self._prepared: dict[str, EnvironmentStatus] = {}
        self._changes: list[asyncio.Queue[Status]] = []

    @property
    def site(self) -> str:
        return self._site

    def capabilities(self) -> Capabilities:
        return Capabilities("simulated", limits_memory=True, limits_cpu=True)

    async def open(self) -> None:
        return

    async def start(self, request: StartRequest) -> None:
        """Raises EngineFailure for another command than `sleep SECONDS`."""
        if request.attempt_id in self._runs:
            return
        match request.command:
            case ["sleep", seconds]:
                lasts_s = float(seconds)
            case _:
                raise EngineFailure("a simulated appliance runs `sleep SECONDS` and nothing else")
        self._prepared[request.environment.name] = self._ready(request.environment.name)
        now = self._clock.now()
        status = Status(request.attempt_id, Phase.RUNNING, now, request.allocation.node, started_at=now)
        self._note(_Run(request, status))
        asyncio.get_running_loop().call_later(lasts_s, self._end, request.attempt_id, 0)

    async def stop(self, attempt_id: str, grace_s: float) -> None:
        self._end(attempt_id, _TERMINATED)

    def _end(self, attempt_id: str, exit_code: int) -> None:
        run = self._runs.get(attempt_id)
        if run is not None and run.status.phase is Phase.RUNNING:
            ended = replace(run.status, phase=Phase.ENDED, at=self._clock.now(), exit_code=exit_code)
            self._note(replace(run, status=ended))

    def _note(self, run: _Run) -> None:
        self._runs[run.status.attempt_id] = run
        for queue in self._changes:
            queue.put_nowait(run.status)

    async def forget(self, attempt_id: str) -> None:
        run = self._runs.get(attempt_id)
        if run is not None and run.status.phase is Phase.ENDED:
            del self._runs[attempt_id]

    async def statuses(self) -> Sequence[Status]:
        return [run.status for run in self._runs.values()]

    async def watch(self) -> AsyncGenerator[Status]:
        queue: asyncio.Queue[Status] = asyncio.Queue()
        self._changes.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._changes.remove(queue)

    async def logs(
        self, attempt_id: str, *, offset: int = 0, tail: int | None = None, follow: bool = False
    ) -> AsyncGenerator[LogLine]:
        """An empty log."""
        if attempt_id not in self._runs:
            raise NotFound(f"there is no log of {attempt_id}", code="log-not-found")
        lines: Sequence[LogLine] = ()
        for line in lines:
            yield line

    async def exec(self, attempt_id: str, command: Sequence[str], terminal: Terminal | None = None) -> ExecStream:
        raise NotRunning(f"{attempt_id} is simulated: no command can run in it")

    def _running(self) -> list[StartRequest]:
        return [run.request for run in self._runs.values() if run.status.phase is Phase.RUNNING]

    async def measure(self) -> Sequence[Measurement]:
        """Each job keeps its CPUs busy, and uses most of its memory."""
        now, wave = self._clock.now(), self._wave()
        return [
            Measurement(
                one.attempt_id,
                (now - one.allocation.at) * one.allocation.cpus_milli / 1000,
                int(one.allocation.memory_mib * (0.8 + 0.1 * wave)),
            )
            for one in self._running()
        ]

    async def owners(self, pids: Collection[int]) -> Sequence[ProcessOwner]:
        return ()

    async def nodes(self) -> Sequence[NodeReport]:
        devices, usage = tuple(self._devices.inventory()), self._usage()
        return [NodeReport(self._site, CPUS_MILLI, MEMORY_MIB, devices, disk_free_mib=900 * _GIB, usage=usage)]

    def _usage(self) -> NodeUsage:
        """Every figure differs each time, as on a real machine."""
        running, wave = self._running(), self._wave()
        cores = sum(one.allocation.cpus_milli for one in running) / 1000
        return NodeUsage(
            cpu_cores=0.5 + cores * (0.9 + 0.1 * wave),
            memory_mib=int(8 * _GIB + sum(one.allocation.memory_mib for one in running) * (0.8 + 0.1 * wave)),
            disk_used_mib=100 * _GIB + int(_GIB * wave),
            disk_total_mib=1000 * _GIB,
            disk_read_bytes_per_s=5e6 * (1 + wave),
            disk_written_bytes_per_s=3e6 * (1 + wave),
            network_received_bytes_per_s=1e6 * (1 + wave),
            network_sent_bytes_per_s=2e6 * (1 + wave),
            temperature_c=60 + 10 * wave,
            load=cores * (1 + 0.1 * wave),
        )

    def _wave(self) -> float:
        return math.sin(self._clock.now() / 17)

    async def prepare(
        self, environment: Environment, node: str | None = None, on_progress: OnProgress = ignore_progress
    ) -> None:
        self._prepared[environment.name] = self._ready(environment.name)

    def _ready(self, name: str) -> EnvironmentStatus:
        return EnvironmentStatus(name, self._site, EnvironmentState.READY)

    async def environments(self) -> Sequence[EnvironmentStatus]:
        return list(self._prepared.values())
