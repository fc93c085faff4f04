"""Simulated GPUs, for a node without any: same inventory, same shares, invented measurements.

Opened by `detect.open_devices`. Everything here is flagged `simulated`, and every client shows that. The measurements
are a smooth, deterministic curve of the time and of the running programs, within each share; nothing is computed. A
test can make an attempt exceed its share, or put a process of no attempt on a GPU.
"""

from __future__ import annotations

import math
import re
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Allocation, Device, Share
from commonage.domain.requests import parse_memory
from commonage.gpu.environment import share_environment
from commonage.ports.devices import Devices, DeviceSample, ProcessMemory

DEFAULT_MODEL = "Simulated GPU"
MAX_DEVICES = 256
MAX_DEVICE_MIB = 16 * 1024 * 1024
RAMP_S = 20.0  # a workload reaches its memory use within this time after its start
WAVE_S = 90.0  # period of the slow wave around which a workload's figures move
IDLE_W, FULL_W = 30.0, 300.0
IDLE_C, FULL_C = 32.0, 78.0

_NAMESPACE = uuid.UUID("6f1c5b0e-9d0b-5c55-8a57-3b9d7a3c1e42")
_DEVICES = re.compile(
    r"(?:(?P<count>\d{1,6})\s*[xX]\s*)?"
    r"(?P<memory>[\d.]+\s*[A-Za-z]+)"
    r"(?::(?P<model>[A-Za-z0-9][\w ./+-]{0,62}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class SimulatedSpec:
    """`count` equal simulated GPUs of `memory_mib` each."""

    count: int
    memory_mib: int
    model: str = DEFAULT_MODEL


DEFAULT_DEVICES = SimulatedSpec(1, 24 * 1024)


def parse_simulated(text: str) -> tuple[SimulatedSpec, ...]:
    """The GPUs of `simulated:2x24GiB`, `simulated:1x80GiB,2x24GiB`, `simulated:2x24GiB:A100`.

    The count may be omitted for one GPU; `simulated` alone is one of 24 GiB. Raises InvalidInput that names the wrong
    part.
    """
    if text.strip().lower() == "simulated":
        return (DEFAULT_DEVICES,)
    prefix, colon, rest = text.strip().partition(":")
    if prefix.strip().lower() != "simulated" or not colon or not rest.strip():
        raise _invalid(text, "is not a list of simulated GPUs")
    devices = tuple(_parse_part(part.strip(), text) for part in rest.split(","))
    if sum(some.count for some in devices) > MAX_DEVICES:
        raise _invalid(text, f"is more than {MAX_DEVICES} GPUs, the most that one node simulates")
    return devices


def _parse_part(part: str, text: str) -> SimulatedSpec:
    match = _DEVICES.fullmatch(part)
    if match is None:
        raise _invalid(text, f"has the part {_short(part)}, which is not a number of GPUs and their memory")
    count = int(match["count"] or 1)
    if count < 1:
        raise _invalid(text, f"asks for no GPU in {_short(part)}; leave the part out, or use --gpus none")
    memory_mib = parse_memory(match["memory"], field="gpus")
    if memory_mib > MAX_DEVICE_MIB:
        raise _invalid(text, f"asks for a GPU of more than {MAX_DEVICE_MIB // 1024} GiB in {_short(part)}")
    return SimulatedSpec(count, memory_mib, (match["model"] or DEFAULT_MODEL).strip())


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _invalid(text: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"gpus {_short(text)} {why}; write it like simulated:2x24GiB or simulated:1x80GiB:A100,2x24GiB",
        field="gpus",
        code="invalid-gpus",
    )


class SimulatedDevices(Devices):
    """Simulated GPUs of the node `node_name`, with the same uuids each time. `now` gives unix seconds.

    `overruns`: the MiB that an attempt holds of each of its GPUs instead of the curve's value.
    `unattributed_processes`: processes of
    no attempt, by device uuid.
    """

    def __init__(self, devices: Sequence[SimulatedSpec], *, node_name: str, now: Callable[[], float]) -> None:
        each = [some for some in devices for _ in range(some.count)]
        self._devices = tuple(
            Device(
                uuid=f"GPU-SIM-{uuid.uuid5(_NAMESPACE, f'{node_name}/{index}')}",
                index=index,
                model=device.model,
                memory_mib=device.memory_mib,
                simulated=True,
                driver="simulated",
            )
            for index, device in enumerate(each)
        )
        self._now = now
        self._allocations: tuple[Allocation, ...] = ()
        self.overruns: dict[str, int] = {}
        self.unattributed_processes: dict[str, tuple[ProcessMemory, ...]] = {}

    def inventory(self) -> Sequence[Device]:
        return self._devices

    def measure(self) -> Sequence[DeviceSample]:
        """An invented sample of each GPU: never above the allocations on it, unless a test sets that."""
        now, allocations = self._now(), self._allocations
        return tuple(self._sample(device, allocations, now) for device in self._devices)

    def _sample(self, device: Device, allocations: Sequence[Allocation], now: float) -> DeviceSample:
        held = [
            (allocation, share)
            for allocation in allocations
            for share in allocation.shares
            if share.device_uuid == device.uuid
        ]
        processes = tuple(
            ProcessMemory(
                pid=None,
                memory_mib=self.overruns.get(allocation.attempt_id, _memory_mib(allocation, share, now)),
                attempt_id=allocation.attempt_id,
                utilisation=round(share.compute_milli / 1000 * _busy(allocation, now), 3),
            )
            for allocation, share in held
        )
        processes += self.unattributed_processes.get(device.uuid, ())
        utilisation = round(min(1.0, sum(process.utilisation or 0.0 for process in processes)), 3)
        used = sum(process.memory_mib or 0 for process in processes)
        return DeviceSample(
            uuid=device.uuid,
            memory_used_mib=min(device.memory_mib, used),
            utilisation=utilisation,
            power_w=round(IDLE_W + (FULL_W - IDLE_W) * utilisation, 1),
            temperature_c=round(IDLE_C + (FULL_C - IDLE_C) * utilisation, 1),
            processes=processes,
        )

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        """As for real GPUs, with COMMONAGE_GPU_SIMULATED=1."""
        return share_environment(shares)

    def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        """Measure these allocations from now on. Those of other nodes' GPUs are ignored."""
        self._allocations = tuple(allocations)


def _memory_mib(allocation: Allocation, share: Share, now: float) -> int:
    """Grows to about 85 % of the share, then moves between 80 and 90 %."""
    return int(share.memory_mib * _ramp(allocation, now) * (0.85 + 0.05 * _wave(allocation, now)))


def _busy(allocation: Allocation, now: float) -> float:
    return _ramp(allocation, now) * (0.75 + 0.2 * _wave(allocation, now))


def _ramp(allocation: Allocation, now: float) -> float:
    """0 at the start, 1 after RAMP_S, smooth between. A clock that was set back gives 0."""
    part = min(1.0, max(0.0, (now - allocation.at) / RAMP_S))
    return part * part * (3 - 2 * part)


def _wave(allocation: Allocation, now: float) -> float:
    """-1..1, of the same period for all, shifted by the attempt so that GPUs do not move in step."""
    shift = zlib.crc32(allocation.attempt_id.encode()) / 2**32
    return math.sin(2 * math.pi * ((now - allocation.at) / WAVE_S + shift))
