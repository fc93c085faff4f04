"""The sampling loop: what nodes, devices and attempts use, every few seconds, into the metrics port."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from commonage.control.board import Board
from commonage.control.fleet import Fleet
from commonage.domain.errors import CommonageError
from commonage.domain.sightings import Measurement
from commonage.domain.workloads import State
from commonage.ports.clock import Clock
from commonage.ports.devices import Devices, DeviceSample
from commonage.ports.engine import Engine
from commonage.ports.metrics import Metrics, Sample

log = logging.getLogger(__name__)
TIDY_EVERY_S = 60.0


class Sampling:
    """One loop for all sites; `devices` are the cards of this machine."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        devices: Devices,
        board: Board,
        fleet: Fleet,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._engines, self._devices, self._board, self._fleet = engines, devices, board, fleet
        self._metrics, self._clock = metrics, clock
        self._cpu_before: dict[str, tuple[float, float]] = {}
        self._tidied_at = 0.0
        self.every_s = 5.0
        self.passed_at = 0.0

    async def run(self) -> None:
        """Sample until cancelled. A part that does not answer is left out of this round."""
        while True:
            try:
                await self.tick()
            except CommonageError as error:
                log.warning("this round of samples is lost: %s", error)
            await self._clock.sleep(self.every_s)

    async def tick(self) -> None:
        """One round."""
        now = self._clock.now()
        measurements: list[Measurement] = []
        for engine in self._engines.values():
            measurements += await engine.measure()
        samples = self._of_attempts(measurements, now)
        samples += await self._of_devices(measurements, now)
        samples += self._of_nodes(measurements, now)
        await self._metrics.write(samples)
        if now - self._tidied_at >= TIDY_EVERY_S:
            await self._metrics.tidy(now)
            self._tidied_at = now
        self.passed_at = now

    def _of_attempts(self, measurements: Sequence[Measurement], now: float) -> list[Sample]:
        samples = []
        seen = {}
        for one in measurements:
            subject = f"attempt:{one.attempt_id}"
            seen[one.attempt_id] = (now, one.cpu_s)
            before = self._cpu_before.get(one.attempt_id)
            if before is not None and now > before[0]:
                cores = max(0.0, (one.cpu_s - before[1]) / (now - before[0]))
                samples.append(Sample("cpu_cores", subject, now, cores))
            samples.append(Sample("memory_mib", subject, now, one.memory_mib))
        self._cpu_before = seen
        return samples

    async def _of_devices(self, measurements: Sequence[Measurement], now: float) -> list[Sample]:
        held = [one.lease for one in self._board.held()]
        await asyncio.to_thread(self._devices.note_held, held)
        found = await asyncio.to_thread(self._devices.measure)
        self._fleet.measured = {one.uuid: one for one in found}
        samples = []
        for one in found:
            subject = f"device:{one.uuid}"
            figures = {
                "gpu_memory_mib": one.memory_used_mib,
                "gpu_utilisation": one.utilisation,
                "power_w": one.power_w,
                "temperature_c": one.temperature_c,
            }
            samples += [Sample(metric, subject, now, value) for metric, value in figures.items() if value is not None]
        return samples + self._of_attempts_on_devices(found, measurements, now)

    def _of_attempts_on_devices(
        self, found: Sequence[DeviceSample], measurements: Sequence[Measurement], now: float
    ) -> list[Sample]:
        """VRAM of each attempt by its processes; utilisation of the cards it holds, in proportion to its share."""
        attempt_of = {pid: one.attempt_id for one in measurements for pid in one.pids}
        vram: dict[str, int] = defaultdict(int)
        for device in found:
            for process in device.processes:
                attempt = process.attempt_id or (attempt_of.get(process.pid) if process.pid is not None else None)
                if attempt is not None and process.memory_mib is not None:
                    vram[attempt] += process.memory_mib
        samples = [Sample("gpu_memory_mib", f"attempt:{attempt}", now, mib) for attempt, mib in vram.items()]
        by_uuid = {device.uuid: device for device in found}
        for held in self._board.held():
            shares = [(one, by_uuid[one.device_uuid]) for one in held.lease.shares if one.device_uuid in by_uuid]
            known = [
                (one.compute_milli, device.utilisation) for one, device in shares if device.utilisation is not None
            ]
            if known:
                mean = sum(milli * (used or 0.0) for milli, used in known) / sum(milli for milli, _ in known)
                samples.append(Sample("gpu_utilisation", f"attempt:{held.lease.attempt_id}", now, mean))
        return samples

    def _of_nodes(self, measurements: Sequence[Measurement], now: float) -> list[Sample]:
        samples = []
        for view in self._fleet.nodes():
            subject, report = f"node:{view.node.name}", view.node.report
            samples.append(Sample("leased_cpu_cores", subject, now, (report.cpus_milli - view.free_cpus_milli) / 1000))
            samples.append(Sample("leased_memory_mib", subject, now, report.memory_mib - view.free_memory_mib))
            if report.disk_free_mib is not None:
                samples.append(Sample("disk_free_mib", subject, now, report.disk_free_mib))
        counts = self._board.counts()
        samples.append(Sample("queue_length", "platform", now, self._board.queue_length()))
        samples.append(Sample("running", "platform", now, counts.get(State.RUNNING, 0)))
        return samples
