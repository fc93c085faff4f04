"""Measures the cost of sharing a GPU: several shares against one alone, and a neighbor next to a greedy program.

Used by `commonage doctor gpu --measure`. Each share is applied at its level as for a workload and runs the probe's
kernel, which needs only the driver. The GPUs must not be in use meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Device, Isolation, Share
from commonage.gpu.environment import share_environment
from commonage.gpu.isolation.level import Level
from commonage.ports.devices import ShareAssignment
from commonage.server.doctor.gpu_probes import Answer, Burning, Place, Places, all_of, ask
from commonage.server.processes.termination import Termination

TOGETHER = (2, 4, 8)
_MIN_SHARE_MIB = 1024
_ATTACKS = 5


@dataclass(frozen=True, slots=True)
class Together:
    """Kernels per second of `count` equal shares at once: in total, slowest and fastest; `error` if one failed.

    `of_one` is the total divided by the rate of a single workload on the whole GPU.
    """

    level: str
    count: int
    total: float
    slowest: float
    fastest: float
    of_one: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Beside:
    """A neighbor's kernels per second in its half of the GPU: alone, and while the other half allocates too much
    memory.

    `got_mib` is the most memory that the other half got, of `share_mib`.
    """

    level: str
    alone: float
    meanwhile: float
    got_mib: int
    share_mib: int
    error: str = ""


class Sharing:
    """Measurements on one GPU, `seconds` for each figure. `library` is the path of the CUDA library, for tests."""

    def __init__(
        self,
        device: Device,
        places: Places,
        seconds: float,
        termination: Termination,
        library: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._device, self._places, self._seconds = device, places, seconds
        self._termination, self._library, self._sleep = termination, library, sleep

    def alone(self) -> Answer:
        """One workload on the whole GPU, without limits."""
        device = self._device
        whole = Share(device.uuid, device.index, device.model, device.memory_mib, 1000, True, device.memory_mib)
        place = Place("alone", variables=share_environment([whole]))
        return self._ask(place, "burn", "--seconds", str(self._seconds))

    def together(self, level: Level, one_alone: float, counts: Sequence[int] = TOGETHER) -> Iterator[Together]:
        """2, 4 and 8 shares at once, as far as the GPU is large enough."""
        name = level.isolation.value
        for count in counts:
            if self._device.memory_mib // count < _MIN_SHARE_MIB:
                return
            try:
                with self._held(level, count) as places:
                    answers = self._burn(places)
            except EngineFailure as error:
                yield Together(name, count, 0.0, 0.0, 0.0, 0.0, error.message)
                continue
            rates = [rate_of(one) for one in answers]
            errors = "; ".join(dict.fromkeys(str(one["error"]) for one in answers if one["error"]))
            of_one = sum(rates) / one_alone if one_alone else 0.0
            yield Together(name, count, sum(rates), min(rates), max(rates), of_one, errors)

    def beside(self, level: Level) -> Beside:
        """A neighbor computes while the program next to it repeatedly allocates all memory it can get."""
        name, share_mib = level.isolation.value, self._device.memory_mib // 2
        try:
            with self._held(level, 2) as (tried, neighbour):
                (before,) = self._burn([neighbour])
                with self._burning([neighbour]) as (burning,):
                    most = str(share_mib + share_mib // 2)
                    fills = [self._ask(tried, "fill", "--max-mib", most) for _ in range(_ATTACKS)]
                    with self._termination.interruptible():
                        meanwhile = burning.end()
        except EngineFailure as error:
            return Beside(name, 0.0, 0.0, 0, share_mib, error.message)
        got = max(int(one.get("allocated_mib", 0)) for one in fills)
        return Beside(name, rate_of(before), rate_of(meanwhile), got, share_mib, str(meanwhile["error"]))

    def _burn(self, places: Sequence[Place]) -> list[Answer]:
        with self._burning(places) as burning, self._termination.interruptible():
            self._sleep(self._seconds)
            return all_of(burning)

    def _ask(self, place: Place, *words: str) -> Answer:
        with self._termination.interruptible():
            return ask(place, *words, library=self._library)

    @contextmanager
    def _burning(self, places: Sequence[Place]) -> Iterator[list[Burning]]:
        """Run a program that computes in each place; all have ended when the block ends."""
        burning: list[Burning] = []
        try:
            for place in places:
                with self._termination.interruptible():
                    burning.append(Burning(place, 0, self._library))
            yield burning
        finally:
            for one in burning:
                one.kill()

    @contextmanager
    def _held(self, level: Level, count: int) -> Iterator[list[Place]]:
        """`count` places, each with an equal share; released at the end."""
        device, memory = self._device, self._device.memory_mib // count
        share = Share(
            device.uuid, device.index, device.model, memory, 1000 // count, False, device.memory_mib, False,
            Isolation(level.isolation),
        )  # fmt: skip
        assignments: list[ShareAssignment] = []
        places = []
        try:
            for number in range(count):
                place = self._places.make(f"doctor-{os.getpid()}-{number}")
                assignment = ShareAssignment(place.name, (share,), place.groups)
                assignments.append(assignment)
                with self._termination.interruptible():
                    applied = level.apply(assignment)
                places.append(replace(place, variables={**share_environment([share]), **applied}))
            yield places
        finally:
            for assignment in assignments:
                level.release(assignment)
            self._places.clear()


def rate_of(answer: Answer) -> float:
    """Kernels per second; 0 if none completed."""
    seconds = float(answer.get("seconds", 0.0))
    return float(answer.get("launches", 0)) / seconds if seconds > 0 else 0.0
