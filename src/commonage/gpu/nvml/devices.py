"""The real GPUs of this node, through NVIDIA's management library (nvidia-ml-py).

Opened by `detect.open_devices`. A value that a GPU does not give is None; a GPU that is lost or broken stays in the
inventory with its fault; only a driver that cannot be used at all is an error. A GPU's properties are read in
`inventory`, its health in `health` and `device_faults`, its samples in `sample`. Isolation is not done
here. Nothing is ever changed on a GPU: several servers may read the same one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml

from commonage.domain.nodes import Allocation, Device, Share
from commonage.domain.reasons.devices import GpuDriverFailed, GpuNotListed, MigChangedInUse, MigInstanceRemoved
from commonage.gpu.device_faults import DeviceFaults, ResetMarkers, boot_id
from commonage.gpu.environment import share_environment
from commonage.gpu.nvml import errors
from commonage.gpu.nvml.inventory import Node, cuda_version, devices_of, instances_of, node_of, reset_markers_of
from commonage.gpu.nvml.library import Gpu, Library, Message
from commonage.gpu.nvml.sample import Measuring
from commonage.ports.devices import Devices, DeviceSample, DevicesUnavailable


class NvmlDevices(Devices):
    """GPUs by NVML. Raises DevicesUnavailable, with what to do, if the driver cannot be used.

    `context_mib`: measured size of a CUDA context by device uuid, where known. `faults`: the file in which fatal errors
    are remembered over a restart. `api` replaces pynvml, `now` the clock.
    """

    def __init__(
        self,
        *,
        context_mib: Mapping[str, int] | None = None,
        faults: Path | None = None,
        api: Any = pynvml,
        now: Callable[[], float] = time.time,
    ) -> None:
        # NVML is thread-safe, but not against a shutdown and restart during another thread's call.
        self._lock = threading.Lock()
        self._context_mib = dict(context_mib or {})
        self._library = Library(api)
        self._faults = DeviceFaults(faults, now)
        self._measuring = Measuring()
        self._boot = boot_id()
        self._known: dict[str, tuple[Device, ...]] = {}  # by the uuid of the GPU
        self._trouble = False
        self._held: frozenset[str] = frozenset()
        self._library.open()

    @property
    def versions(self) -> str:
        """For people: `driver 615.10, CUDA 13.1`, as far as the driver reports it."""
        with self._lock:
            driver, cuda = self._library.try_to("nvmlSystemGetDriverVersion"), cuda_version(self._library)
        return ", ".join(
            part for part in (f"driver {driver}" if driver else "", f"CUDA {cuda}" if cuda else "") if part
        )

    def inventory(self) -> Sequence[Device]:
        """Every GPU seen since the start, by index; GPUs that do not work now have a fault.

        A GPU in MIG mode is not listed, its instances are. After an error the library is restarted first: only then are
        lost GPUs found again.
        """
        with self._lock:
            try:
                if self._trouble:
                    self._library.close()
                self._library.open()
                found = self._look_at_all()
            except DevicesUnavailable as error:
                return self._all_at_fault(error)
            self._close_if_broken(found)
            return found

    def measure(self) -> Sequence[DeviceSample]:
        with self._lock:
            try:
                self._library.open()
                gpus = self._gpus()
            except DevicesUnavailable:
                self._trouble = True
                return ()
            self._read_events([gpu for gpu in gpus if isinstance(gpu, Gpu)])
            samples: list[DeviceSample] = []
            for gpu in gpus:
                try:
                    if isinstance(gpu, pynvml.NVMLError):
                        raise gpu
                    samples += self._measuring.samples(gpu, self._faults.last.get(gpu.uuid))
                except pynvml.NVMLError:
                    self._trouble = True
            self._close_if_broken([device for devices in self._known.values() for device in devices])
            return tuple(samples)

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        return share_environment(shares, self._context_mib)

    def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        """Real GPUs measure actual use; this only keeps devices that are held and no longer exist in the inventory."""
        self._held = frozenset(share.device_uuid for allocation in allocations for share in allocation.shares)

    def resume(self, uuid: str | None = None) -> None:
        """Clear the fatal errors of this GPU (or of this MIG instance's), or of all."""
        with self._lock:
            of = {device.uuid: gpu for gpu, devices in self._known.items() for device in devices}
            self._faults.forget(None if uuid is None else of.get(uuid, uuid))

    def close(self) -> None:
        with self._lock:
            self._library.close()

    # --- under the lock ---------------------------------------------------------------------------------------------

    def _gpus(self) -> list[Gpu | pynvml.NVMLError]:
        """All GPUs by index. A GPU that does not answer is represented by its error."""
        found: list[Gpu | pynvml.NVMLError] = []
        for index in range(self._library.whole("nvmlDeviceGetCount")):
            try:
                found.append(self._library.gpu(index))
            except pynvml.NVMLError as error:
                found.append(error)
        return found

    def _look_at_all(self) -> tuple[Device, ...]:
        gpus = self._gpus()
        answering = [gpu for gpu in gpus if isinstance(gpu, Gpu)]
        self._read_events(answering)
        self._trouble = False
        node = node_of(self._library, answering, self._boot)
        seen: dict[str, tuple[Device, ...]] = {}
        lost: list[Device] = []
        for index, gpu in enumerate(gpus):
            try:
                if isinstance(gpu, pynvml.NVMLError):
                    raise gpu
                seen[gpu.uuid] = self._with_those_held(gpu.uuid, devices_of(gpu, node, self._faults))
            except pynvml.NVMLError as error:
                lost += self._at_fault(index, error, node)
        self._known |= seen
        here = [device for devices in seen.values() for device in devices] + lost
        here += self._unlisted({*seen, *(device.parent_uuid or device.uuid for device in lost)}, here)
        return tuple(sorted(here, key=lambda device: (device.index, device.uuid)))

    def _with_those_held(self, gpu: str, here: tuple[Device, ...]) -> tuple[Device, ...]:
        """Adds the held devices of this GPU that no longer exist, because MIG was changed by hand.

        The new instances are made of the same memory, and holders of the old ones may open any of them: until those are
        released, the new ones are not allocated.
        """
        listed = {device.uuid for device in here}
        gone = [one for one in self._known.get(gpu, ()) if one.uuid in self._held and one.uuid not in listed]
        if not gone:
            return here
        parts = [
            one if one.uuid in self._held else replace(one, faults=(*one.faults, MigChangedInUse())) for one in here
        ]
        for one in gone:
            taken = {device.index for device in parts}
            index = next(place for place in itertools.count(one.index) if place not in taken)
            parts.append(replace(one, index=index, faults=(MigInstanceRemoved(),)))
        return tuple(parts)

    def _at_fault(self, index: int, error: Any, node: Node) -> list[Device]:
        """The devices at `index` when it last answered, with its fault."""
        self._trouble = True
        faults = (errors.fault(error, index),)
        for devices in self._known.values():
            if _place(devices) == index:
                return [replace(device, faults=faults) for device in devices]
        unknown = Device(f"GPU-UNREADABLE-{index}", index, "unreadable GPU", 0, faults=faults, driver=node.driver)
        return [unknown]

    def _unlisted(self, gpus: set[str], here: Sequence[Device]) -> list[Device]:
        """GPUs that were listed before. Others may have their index by now, so they come after those."""
        gone = [device for gpu, devices in self._known.items() if gpu not in gpus for device in devices]
        self._trouble = self._trouble or bool(gone)
        taken = {device.index for device in here}
        found = []
        for device in gone:
            index = device.index if device.index not in taken else max(taken) + 1
            taken.add(index)
            found.append(replace(device, index=index, faults=(GpuNotListed(search="Xid"),)))
        return found

    def _all_at_fault(self, error: DevicesUnavailable) -> Sequence[Device]:
        self._trouble = True
        if not self._known:
            raise error
        faults = (GpuDriverFailed(error=error.message),)
        return tuple(replace(device, faults=faults) for devices in self._known.values() for device in devices)

    def _read_events(self, gpus: Sequence[Gpu]) -> None:
        """Read the driver's events since the last time."""
        by_uuid = {gpu.uuid: gpu for gpu in gpus}
        for gpu in gpus:
            self._library.listen(gpu)
        for message in self._library.messages():
            self._note_event(message, by_uuid.get(message.gpu))

    def _note_event(self, message: Message, gpu: Gpu | None) -> None:
        driver = str(self._library.try_to("nvmlSystemGetDriverVersion") or "")
        instance = None
        try:
            if gpu is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            markers = reset_markers_of(gpu, driver, self._boot)
            if message.gpu_instance is not None:
                ids = (message.gpu_instance, message.compute_instance)
                found = (one for one in instances_of(gpu) if (one.gpu_instance, one.compute_instance) == ids)
                instance = next((one.uuid for one in found), None)
        except pynvml.NVMLError:  # it is gone by now, and gives no more data
            markers = ResetMarkers(self._boot, driver)
        self._faults.note_xid(message.gpu, message.number, markers, instance)

    def _close_if_broken(self, devices: Sequence[Device]) -> None:
        """Close NVML while a GPU waits for a reset, except for moments.

        `nvidia-smi --gpu-reset` is refused while any process has NVML open. Xids of that time are missed, the GPUs' own
        health data is not.
        """
        if any(device.faults for device in devices):
            self._trouble = True
            self._library.close()


def _place(devices: Sequence[Device]) -> int:
    """The index of the GPU that these devices are, or are instances of."""
    return int(devices[0].label.partition(":")[0])
