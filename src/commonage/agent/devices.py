"""The agent's access to the GPUs of its node: opens them when there are some, and calls the driver in its own thread.

A driver may take long, or never answer. The last known state is then reported with a fault until the driver answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from commonage.agent.config import AgentConfig
from commonage.domain.errors import CommonageError, InvalidInput
from commonage.domain.nodes import Allocation, Device, Isolation
from commonage.domain.reasons import Reason
from commonage.domain.reasons.devices import GpuDriverSilent
from commonage.domain.reasons.nodes import GpuDriverUnavailable
from commonage.domain.statuses import ProcessOwner
from commonage.gpu.detect import AMD_DRIVER, Opened, share_devices
from commonage.gpu.isolation.devices import Sharing, Wanted
from commonage.gpu.isolation.level import is_nvidia
from commonage.gpu.none import NoDevices
from commonage.gpu.slots import parse_slots
from commonage.ports.devices import Devices, DeviceSample, DevicesUnavailable, ShareAssignment

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_LEVELS = ("auto", *Isolation)
_DRIVER_TIMEOUT_S = 5.0
_REOPEN_AFTER_S = 60.0
_STALE_AFTER_S = 600.0

Owners = Callable[[Collection[int]], Sequence[ProcessOwner]]


class SystemClock:
    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """The GPUs at one moment. `fault`: of the node."""

    devices: tuple[Device, ...] = ()
    samples: tuple[DeviceSample, ...] = ()
    owners: tuple[ProcessOwner, ...] = ()
    fault: Reason | None = None


class AgentDevices:
    """The GPUs of this node, opened as the site's settings say. Raises InvalidInput for settings that are not valid."""

    def __init__(self, config: AgentConfig) -> None:
        if config.isolation not in _LEVELS:
            raise InvalidInput(f"isolation is {config.isolation!r}: set it to one of {', '.join(_LEVELS)}")
        self._config = config
        self._sharing = Sharing(
            Path(config.state) / "gpus",
            cast(Wanted, config.isolation),
            parse_slots(config.slots),
            in_containers=True,
            preload=Path(config.preload) if config.preload else None,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="devices")
        self._devices: Devices = NoDevices()
        self._opened = False
        self._reopen_at = 0.0
        self._open_fault: Reason | None = None
        self._no_gpus = ""
        self._last = DeviceSnapshot()
        self._querying: asyncio.Future[DeviceSnapshot] | None = None
        self._stale: dict[str, float] = {}
        self._withheld_reason: Reason | None = None

    def set_withheld_reason(self, reason: Reason | None) -> None:
        """Set why containers on this node get no NVIDIA GPU; None if they do."""
        self._withheld_reason = reason

    @property
    def is_silent(self) -> bool:
        """True while a driver call has not returned. All other driver calls wait for it."""
        return self._querying is not None

    async def snapshot(self, owners: Owners) -> DeviceSnapshot:
        """The current state, or the last one with a fault while the driver does not answer.

        `owners` looks up processes.
        """
        if self._querying is None:
            self._querying = asyncio.ensure_future(self._in_driver_thread(lambda: self._query(owners)))
        done, _ = await asyncio.wait({self._querying}, timeout=_DRIVER_TIMEOUT_S)
        if not done:
            silent = tuple(_with_fault(GpuDriverSilent(), device) for device in self._last.devices)
            return replace(self._last, devices=silent, samples=())
        finished, self._querying = self._querying, None
        self._last = finished.result()
        return self._last

    def _query(self, owners: Owners) -> DeviceSnapshot:
        self._open()
        try:
            devices = tuple(self._withhold(one) for one in self._devices.inventory())
            began = time.time()
            samples = tuple(self._devices.measure())
        except DevicesUnavailable as error:
            return DeviceSnapshot(fault=GpuDriverUnavailable(error=error.message))
        pids = {one.pid for sample in samples for one in sample.processes if one.attempt_id is None and one.pid}
        # A process that began after the driver was asked is not the process that the driver saw.
        process_owners = tuple(one for one in owners(pids) if one.started_at <= began) if pids else ()
        return DeviceSnapshot(devices, samples, process_owners, self._open_fault)

    def _withhold(self, device: Device) -> Device:
        if self._withheld_reason is None or device.simulated or not is_nvidia(device):
            return device
        return _with_fault(self._withheld_reason, device)

    def _open(self) -> None:
        """Open the GPUs. Without GPUs, retry from time to time: a driver may be installed later."""
        if self._opened or time.monotonic() < self._reopen_at:
            return
        self._reopen_at = time.monotonic() + _REOPEN_AFTER_S
        try:
            opened = self._detect()
        except CommonageError as error:
            self._open_fault = None if self._config.gpus == "auto" else GpuDriverUnavailable(error=error.message)
            if error.message != self._no_gpus:
                _log.info("no GPUs: %s", error.message)
            self._no_gpus = error.message
            return
        _log.info("%s", opened.said)
        self._devices, self._opened, self._open_fault = opened.devices, True, None
        # The live attempts are not known yet: keep all holds until their containers have been missing for long.
        self._devices.settle(self._devices.enforced())

    def _detect(self) -> Opened:
        def opened(wanted: str) -> Opened:
            return share_devices(wanted, self._sharing, node_name=self._config.node, clock=SystemClock())

        if self._config.gpus != "auto":
            return opened(self._config.gpus)
        # Nothing is simulated here unless the settings ask for it.
        try:
            return opened("nvml")
        except DevicesUnavailable:
            if not AMD_DRIVER.exists():
                raise
        return opened("amd")

    # --- requests -------------------------------------------------------------------------------------------------

    # As the methods of `Devices`, in the driver's thread.

    async def enforce(self, hold: ShareAssignment) -> Mapping[str, str]:
        return await self._in_driver_thread(lambda: self._devices.enforce(hold))

    async def release(self, attempt_ids: Collection[str]) -> None:
        for attempt_id in attempt_ids:
            await self._in_driver_thread(partial(self._devices.release, attempt_id))

    async def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        await self._in_driver_thread(lambda: self._devices.note_allocations(allocations))

    async def resume(self, uuid: str) -> None:
        await self._in_driver_thread(lambda: self._devices.resume(uuid))

    async def take_warnings(self) -> Sequence[tuple[str, str]]:
        return await self._in_driver_thread(self._devices.take_warnings)

    async def release_stale(self, live: Collection[str], now: float) -> None:
        """Release holds of attempts whose containers have been missing for long, in case their end was not reported.

        `now` is monotonic.
        """
        enforced = await self._in_driver_thread(self._devices.enforced)
        self._stale = {one: self._stale.get(one, now) for one in enforced if one not in live}
        for attempt_id in [one for one, since in self._stale.items() if now - since > _STALE_AFTER_S]:
            _log.warning("attempt %s has ended: its share is released", attempt_id)
            await self.release([attempt_id])

    async def close(self) -> None:
        """Close the driver. A driver that does not answer is abandoned."""
        closing = asyncio.ensure_future(self._in_driver_thread(self._devices.close))
        await asyncio.wait({closing}, timeout=_DRIVER_TIMEOUT_S)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_driver_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _with_fault(fault: Reason, device: Device) -> Device:
    return replace(device, faults=(*device.faults, fault))
