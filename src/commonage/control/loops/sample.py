"""The sampling loop: writes what nodes, devices and attempts use to the metrics port every few seconds.

Each round, with GPU processes attributed to attempts, is passed on to its consumers (watchdog, usage reports).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from commonage.control.engines import Engines
from commonage.control.nodes.devices import AllDevices
from commonage.control.queries.node_views import NodeViews
from commonage.control.state.live_state import LiveState
from commonage.control.usage.attribution import MeasurementRound, attribute, unknown_pids
from commonage.control.usage.samples import AttemptSamples, of_attempts_on_devices, of_devices, of_node, vram_of
from commonage.domain.errors import CommonageError
from commonage.domain.iterations import Iterations
from commonage.domain.nodes import LOCAL_SITE, Allocation, NodeState
from commonage.domain.statuses import Measurement, ProcessOwner
from commonage.domain.workloads import State
from commonage.ports.clock import Clock
from commonage.ports.metrics import Metrics, Sample

log = logging.getLogger(__name__)
TIDY_EVERY_S = 60.0


@dataclass(slots=True)
class Sampling:
    """One loop for all sites; `devices` are the GPUs of all nodes. `on_round` is awaited with every round.

    `vram` is the VRAM of each attempt at the last measurement, in MiB.
    """

    engines: Engines
    devices: AllDevices
    live_state: LiveState
    node_views: NodeViews
    metrics: Metrics
    clock: Clock
    every_s: float
    on_round: Callable[[MeasurementRound], Awaitable[None]]
    vram: Mapping[str, int] = field(default_factory=dict, init=False)
    iterations: Iterations = field(init=False)
    _of_attempts: AttemptSamples = field(default_factory=AttemptSamples, init=False)
    _tidied_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.iterations = Iterations("sample", self.clock.now)

    async def run(self) -> None:
        """Sample until cancelled. A source that does not answer is left out of the round."""
        while True:
            began = self.clock.now()
            try:
                await self.tick()
            except (CommonageError, OSError) as error:
                log.warning("this round of samples is lost: %s", error)
            with self.iterations.rest():
                # A site that does not answer makes rounds longer, not rarer.
                await self.clock.sleep(max(self.every_s / 2, self.every_s - (self.clock.now() - began)))

    async def tick(self) -> None:
        now = self.clock.now()
        answers = await self.engines.ask(lambda engine: engine.measure())
        known = self.live_state.of_attempt
        measurements = [one for site, answer in answers.items() for one in answer if known(one.attempt_id, site)]
        round_ = await self._ask_devices(measurements, now)
        allocated = {one.allocation.attempt_id: one.allocation for one in self.live_state.allocated()}
        self.vram = {attempt_id: mib for attempt_id, mib in vram_of(round_).items() if attempt_id in allocated}
        samples = self._of_attempts.of(measurements, now) + of_devices(round_, now)
        samples += of_attempts_on_devices(round_, allocated.values(), now)
        samples += self._of_nodes(now)
        lost: CommonageError | None = None
        try:
            await self.metrics.write(samples)
        except CommonageError as error:
            lost = error
        await self.on_round(round_)  # the watchdog needs the round even if writing it fails
        if lost is not None:
            raise lost
        if now - self._tidied_at >= TIDY_EVERY_S:
            await self.metrics.tidy(now)
            self._tidied_at = now

    async def _ask_devices(self, measurements: Sequence[Measurement], now: float) -> MeasurementRound:
        await self.devices.note_allocations([one.allocation for one in self.live_state.allocated()], self._running())
        found = await self.devices.measure()
        pids, local = unknown_pids(found), self.engines.get(LOCAL_SITE)
        owners: Sequence[ProcessOwner] = await local.owners(pids) if pids and local is not None else ()
        here = attribute(LOCAL_SITE, found, owners, now, measurements)
        round_ = self.devices.add_elsewhere(here, self.clock.now())
        self.node_views.note_measured(round_.samples)
        return round_

    def _running(self) -> list[Allocation]:
        """The allocations of attempts whose program has started, with the time of that start."""
        attempts = (one.attempt for one in self.live_state.in_state(State.RUNNING))
        return [
            replace(one.allocation, at=one.started_at)
            for one in attempts
            if one is not None and one.started_at is not None
        ]

    def _of_nodes(self, now: float) -> list[Sample]:
        samples = []
        for view in self.node_views.all():
            subject, report = f"node:{view.node.key}", view.node.report
            samples.append(
                Sample("allocated_cpu_cores", subject, now, (report.cpus_milli - view.free_cpus_milli) / 1000)
            )
            samples.append(Sample("allocated_memory_mib", subject, now, report.memory_mib - view.free_memory_mib))
            samples += of_node(view.node.key, report, now, is_measured=view.node.state is not NodeState.LOST)
        counts = self.live_state.counts()
        samples.append(Sample("queue_length", "platform", now, self.live_state.queue_length()))
        samples.append(Sample("running", "platform", now, counts.get(State.RUNNING, 0)))
        return samples
