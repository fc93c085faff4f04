"""`commonage doctor gpu` without the output: finds the GPUs, claims the unused ones, tests or measures them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from commonage.domain.nodes import Device, Isolation
from commonage.gpu.detect import open_devices
from commonage.gpu.isolation.cooperative import Cooperative
from commonage.gpu.isolation.driver_limit import DriverLimit
from commonage.gpu.isolation.gpu_locks import GpuLocks
from commonage.gpu.isolation.level import Level
from commonage.gpu.isolation.mig import Mig
from commonage.gpu.isolation.mps import Mps
from commonage.gpu.isolation.mps_daemon import MpsDaemon
from commonage.messages import text
from commonage.server.clock import SystemClock
from commonage.server.doctor.gpu_probes import Places
from commonage.server.doctor.gpu_sharing import Sharing, rate_of
from commonage.server.doctor.gpu_trials import GpuTrials, Trial
from commonage.server.processes.termination import Termination

_PREFIX = "commonage-doctor-"


@dataclass(frozen=True, slots=True)
class RealGpus:
    """The real GPUs of this machine, a text about them, and the free MiB of each by UUID."""

    summary: str
    devices: Sequence[Device]
    free_mib: dict[str, int]


def find_gpus(wanted: str) -> RealGpus:
    """The GPUs of the setting `gpus` without simulated ones. Raises DevicesUnavailable, InvalidInput."""
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
                on_progress(f"GPU {device.label} is not measured. {text(fault)}")
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
    """Claim the GPUs for the time of the block. One that another server allocates is returned with a fault, so that
    its workloads are not disturbed.
    """
    claims = GpuLocks("commonage doctor gpu")
    try:
        found = []
        for device in devices:
            taken = claims.claim(device.parent_uuid or device.uuid)
            found.append(replace(device, faults=(*device.faults, taken)) if taken else device)
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
