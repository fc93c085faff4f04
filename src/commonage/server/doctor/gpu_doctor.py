"""Tests the enforcement of GPU shares on this machine, or measures the cost of sharing.

Called by `commonage doctor gpu`. The GPUs must not be in use meanwhile. Each share is applied at its level as for a
workload, and runs the probe's kernel, which needs only the driver.
"""

from __future__ import annotations

import os
import shutil
import tempfile
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
from commonage.gpu.isolation.preload import Preload
from commonage.messages import text
from commonage.server.bootstrap import SystemClock
from commonage.server.doctor.gpu_probes import Answer, Bench, Burning, Place, Places, Termination
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
    """A neighbor's kernels per second in its half of the GPU: alone, and while the other half allocates too much.

    `got_mib` is the most memory that the other half got, of `share_mib`.
    """

    level: str
    alone: float
    meanwhile: float
    got_mib: int
    share_mib: int
    error: str = ""


class Sharing:
    """Measurements on one GPU, `seconds` for each figure."""

    def __init__(self, device: Device, bench: Bench, seconds: float) -> None:
        self._device, self._bench, self._seconds = device, bench, seconds

    def alone(self) -> Answer:
        """One workload on the whole GPU, without limits."""
        device = self._device
        whole = Share(device.uuid, device.index, device.model, device.memory_mib, 1000, True, device.memory_mib)
        place = Place("alone", variables=share_environment([whole]))
        return self._bench.ask(place, "burn", "--seconds", str(self._seconds))

    def together(self, level: Level, one_alone: float, counts: Sequence[int] = TOGETHER) -> Iterator[Together]:
        """Measure equal shares at once, for each of `counts` until a share would be smaller than _MIN_SHARE_MIB."""
        name = level.isolation.value
        for count in counts:
            if self._device.memory_mib // count < _MIN_SHARE_MIB:
                return
            names = [str(number) for number in range(count)]
            try:
                with self._bench.held(level, self._share(level, count), names) as places:
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
            with self._bench.held(level, self._share(level, 2), ("tried", "neighbour")) as (tried, neighbour):
                (before,) = self._burn([neighbour])
                with self._burning([neighbour]) as (burning,):
                    most = str(share_mib + share_mib // 2)
                    fills = [self._bench.ask(tried, "fill", "--max-mib", most) for _ in range(_ATTACKS)]
                    (meanwhile,) = self._bench.end([burning])
        except EngineFailure as error:
            return Beside(name, 0.0, 0.0, 0, share_mib, error.message)
        got = max(int(one.get("allocated_mib", 0)) for one in fills)
        return Beside(name, rate_of(before), rate_of(meanwhile), got, share_mib, str(meanwhile["error"]))

    def _burn(self, places: Sequence[Place]) -> list[Answer]:
        with self._burning(places) as burning:
            return self._bench.end(burning, self._seconds)

    @contextmanager
    def _burning(self, places: Sequence[Place]) -> Iterator[list[Burning]]:
        """Run a program that computes in each place; all have ended when the block ends."""
        burning: list[Burning] = []
        try:
            for place in places:
                burning.append(self._bench.burn(place))
            yield burning
        finally:
            for one in burning:
                one.kill()

    def _share(self, level: Level, count: int) -> Share:
        """One of `count` equal shares."""
        device, memory = self._device, self._device.memory_mib // count
        return Share(
            device.uuid, device.index, device.model, memory, 1000 // count, False, device.memory_mib, False,
            Isolation(level.isolation),
        )  # fmt: skip


def rate_of(answer: Answer) -> float:
    """Kernels per second; 0 if none completed."""
    seconds = float(answer.get("seconds", 0.0))
    return float(answer.get("launches", 0)) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RealGpus:
    """The real GPUs of this machine, a text about them, and the free MiB of each by UUID; the site's interposer."""

    summary: str
    devices: Sequence[Device]
    free_mib: dict[str, int]
    preload: Path | None = None


def find_gpus(wanted: str, preload: Path | None = None) -> RealGpus:
    opened = open_devices(wanted, node_name="doctor", clock=SystemClock())
    try:
        devices = [device for device in opened.devices.inventory() if not device.simulated]
        used = {sample.uuid: sample.memory_used_mib or 0 for sample in opened.devices.measure()}
        free = {device.uuid: device.memory_mib - used.get(device.uuid, 0) for device in devices}
        return RealGpus(opened.said, devices, free, preload)
    finally:
        opened.devices.close()


@contextmanager
def _bench(
    devices: Sequence[Device], places: Places | None = None, library: str = ""
) -> Iterator[tuple[Bench, list[Device], Path]]:
    """A bench, the claimed GPUs, and a folder, whose path is short because the sockets of MPS need that."""
    termination = Termination()
    with (
        termination.watched(),
        closing(places or Places.here()) as there,
        claimed(devices) as mine,
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder,
    ):
        yield Bench(there, termination, library), mine, Path(folder)


def try_all(
    found: RealGpus,
    wanted: Sequence[Isolation] = tuple(Isolation),
    *,
    places: Places | None = None,
    levels: Sequence[Level] | None = None,
    library: str = "",
) -> Iterator[Trial]:
    """Run the trials at the requested levels on all GPUs that are not in use. Removes everything it creates."""
    with _bench(found.devices, places, library) as (bench, devices, folder):
        chosen = [level for level in levels or _levels(folder, found.preload) if level.isolation in wanted]
        yield from GpuTrials(devices, chosen, bench, found.free_mib).run()


def measure_all(
    found: RealGpus, wanted: Sequence[Isolation], seconds: float, on_progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measure the cost of sharing at the requested levels, for each whole GPU that is not in use."""
    whole = [device for device in found.devices if device.parent_uuid is None]
    measured = []
    with _bench(whole) as (bench, devices, folder):
        levels = [level for level in _levels(folder, found.preload) if level.isolation in wanted]
        for device in devices:
            for fault in device.faults:
                on_progress(f"GPU {device.label} is not measured. {text(fault)}")
            if not device.faults:
                measured.append(_measure(device, Sharing(device, bench, seconds), levels, on_progress))
    return measured


def _measure(
    device: Device, sharing: Sharing, levels: Sequence[Level], on_progress: Callable[[str], None]
) -> dict[str, Any]:
    alone = sharing.alone()
    together, beside, left_out = [], [], []
    for level in levels:
        why = level.why_unavailable(device)
        if why:
            left_out.append({"level": level.isolation.value, "why": text(why)})
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
    """Claim the GPUs for the time of the block. One that another server allocates is returned with a fault."""
    with closing(GpuLocks("commonage doctor gpu")) as claims:
        mine = []
        for device in devices:
            taken = claims.claim(device.parent_uuid or device.uuid)
            mine.append(replace(device, faults=(*device.faults, taken)) if taken else device)
            if not taken:
                _end_leftovers(device.uuid)
        yield mine


def _levels(folder: Path, preload: Path | None) -> tuple[Level, ...]:
    return DriverLimit(), Mig(), Mps(folder / "mps"), Preload(folder / "preload", preload), Cooperative()


def _end_leftovers(uuid: str) -> None:
    """End the MPS daemon of a run that was killed. The claim on the GPU proves that no live run owns the daemon."""
    for place in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/mps/*"):
        folder, daemon = place.parents[1], MpsDaemon.in_folder(place)
        if daemon.uuid == uuid and folder.lstat().st_uid == os.geteuid():
            daemon.stop()
            shutil.rmtree(folder, ignore_errors=True)
