"""`commonage doctor gpu` without the output: finds the GPUs, claims the unused ones, tests or measures them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Device, Isolation, Share
from commonage.gpu.detect import open_devices
from commonage.gpu.environment import share_environment
from commonage.gpu.isolation.cooperative import Cooperative
from commonage.gpu.isolation.driver_limit import DriverLimit
from commonage.gpu.isolation.gpu_locks import GpuLocks
from commonage.gpu.isolation.level import Level
from commonage.gpu.isolation.mig import Mig
from commonage.gpu.isolation.mps import Mps
from commonage.gpu.isolation.mps_daemon import MpsDaemon
from commonage.ports.devices import ShareAssignment
from commonage.server.bootstrap import SystemClock
from commonage.server.doctor.gpu_probes import Answer, Burning, Place, Places, Termination, all_of, ask
from commonage.server.doctor.gpu_trials import GpuTrials, Trial

TOGETHER = (2, 4, 8)
_MIN_SHARE_MIB = 1024
_ATTACKS = 5
_PREFIX = "commonage-doctor-"


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
        holds: list[ShareAssignment] = []
        places = []
        try:
            for number in range(count):
                place = self._places.make(f"doctor-{os.getpid()}-{number}")
                hold = ShareAssignment(place.name, (share,), place.groups)
                holds.append(hold)
                with self._termination.interruptible():
                    applied = level.apply(hold)
                places.append(replace(place, variables={**share_environment([share]), **applied}))
            yield places
        finally:
            for hold in holds:
                level.release(hold)
            self._places.clear()


def rate_of(answer: Answer) -> float:
    """Kernels per second; 0 if none completed."""
    seconds = float(answer.get("seconds", 0.0))
    return float(answer.get("launches", 0)) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RealGpus:
    """The real GPUs of this machine, a text about them, and the free MiB of each by UUID."""

    summary: str
    devices: Sequence[Device]
    free_mib: dict[str, int]


def find_gpus(wanted: str) -> RealGpus:
    opened = open_devices(wanted, node_name="doctor", clock=SystemClock())
    try:
        devices = [device for device in opened.devices.inventory() if not device.simulated]
        used = {sample.uuid: sample.memory_used_mib or 0 for sample in opened.devices.measure()}
        return RealGpus(
            opened.said, devices, {device.uuid: device.memory_mib - used.get(device.uuid, 0) for device in devices}
        )
    finally:
        opened.devices.close()


def try_all(
    found: RealGpus,
    wanted: Sequence[Isolation] = tuple(Isolation),
    *,
    places: Places | None = None,
    levels: Sequence[Level] | None = None,
    library: str = "",
) -> Iterator[Trial]:
    """Run the trials at the requested levels on all GPUs that are not in use. Removes everything it creates."""
    termination = Termination()
    with (
        termination.watched(),
        closing(places or Places.here()) as there,
        claimed(found.devices) as devices,
        _folder() as folder,
    ):
        all_levels = levels or _levels(folder)
        chosen = [level for level in all_levels if level.isolation in wanted]
        yield from GpuTrials(devices, chosen, there, found.free_mib, termination, library).run()


def measure_all(
    found: RealGpus, wanted: Sequence[Isolation], seconds: float, on_progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measure the cost of sharing at the requested levels, for each whole GPU that is not in use."""
    termination = Termination()
    whole = [device for device in found.devices if device.parent_uuid is None]
    measured = []
    with (
        termination.watched(),
        closing(Places.here()) as places,
        claimed(whole) as devices,
        _folder() as folder,
    ):
        levels = [level for level in _levels(folder) if level.isolation in wanted]
        for device in devices:
            for fault in device.faults:
                on_progress(f"GPU {device.label} is not measured: it {fault}")
            if not device.faults:
                sharing = Sharing(device, places, seconds, termination)
                measured.append(_measure(device, sharing, levels, on_progress))
    return measured


def _measure(
    device: Device, sharing: Sharing, levels: Sequence[Level], on_progress: Callable[[str], None]
) -> dict[str, Any]:
    alone = sharing.alone()
    together, beside, left_out = [], [], []
    for level in levels:
        why = level.available(device)
        if why:
            left_out.append({"level": level.isolation.value, "why": why})
            continue
        on_progress(f"  GPU {device.label}, {level.isolation} …")
        together += [asdict(one) for one in sharing.together(level, rate_of(alone))]
        beside.append(asdict(sharing.beside(level)))
    return {
        "device": f"{device.label}: {device.model}", "driver": device.driver, "alone": rate_of(alone),
        "error": alone["error"],
        "together": together, "beside": beside, "left_out": left_out,
    }  # fmt: skip


@contextmanager
def claimed(devices: Sequence[Device]) -> Iterator[list[Device]]:
    """Claim the GPUs for the time of the block. One that another server allocates is returned with a fault, so that
    its workloads are not disturbed.
    """
    claims = GpuLocks("commonage doctor gpu")
    try:
        found = []
        for device in devices:
            taken = claims.claim(device.parent_uuid or device.uuid)
            faults = (f"{taken}; end that server and its work first",) if taken else ()
            found.append(replace(device, faults=(*device.faults, *faults)))
            if not taken:
                _end_leftovers(device.uuid)
        yield found
    finally:
        claims.close()


def _levels(folder: Path) -> tuple[Level, ...]:
    return DriverLimit(), Mig(), Mps(folder / "mps"), Cooperative()


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for the trials. Its path is short, because the sockets of MPS need that."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_leftovers(uuid: str) -> None:
    """End the MPS daemon of a run that was killed. The claim on the GPU proves that no live run owns the daemon."""
    for place in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/mps/*"):
        folder, daemon = place.parents[1], MpsDaemon.in_folder(place)
        if daemon.uuid == uuid and folder.lstat().st_uid == os.geteuid():
            daemon.stop()
            shutil.rmtree(folder, ignore_errors=True)
