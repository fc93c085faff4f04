"""The cards of one machine: what there is, what they measure, what a workload must be told of its share.

Implemented in `commonage.gpus` (real cards, simulated ones, none); called by control, in a thread, for
asking a driver may take long. `commonage.testing.devices_contract` is what an implementation must keep. Who
gets which share is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from commonage.domain.errors import Unavailable
from commonage.domain.fleet import Device, Lease, Share


class DevicesUnavailable(Unavailable):
    """The driver of the cards cannot be used: absent, broken, or not for us. The message says what to do."""

    code: ClassVar[str] = "devices-unavailable"


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """VRAM held by one process on one device, the CUDA context included, and the part of the last moments in which it
    computed there, 0..1. None where the driver does not tell.

    `attempt_id` is set only where it is known without looking (simulated cards, which have no real
    processes and so no `pid`); on real cards the watcher finds the attempt from the pid.
    """

    pid: int | None
    memory_mib: int | None
    attempt_id: str | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """What one device measures now. A figure that the card or its driver does not give is None, never a
    guess.

    `utilisation` is the part of the last moments in which it computed, 0..1. `energy_j` is the card's own count of what
    it has drawn: it only rises, until the driver is loaded anew.
    """

    uuid: str
    memory_used_mib: int | None
    utilisation: float | None
    power_w: float | None = None
    temperature_c: float | None = None
    processes: tuple[ProcessMemory, ...] = ()
    energy_j: float | None = None


class Devices(Protocol):
    """The cards of this machine. Methods may block (driver calls) and may be called from several threads."""

    def inventory(self) -> Sequence[Device]:
        """Every card, by index. One that was lost or is broken stays listed, with its fault.

        Raises DevicesUnavailable only while not one card was ever seen.
        """
        ...

    def measure(self) -> Sequence[DeviceSample]:
        """A sample of every card that answers now; others are left out, and `inventory` says why."""
        ...

    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        """The variables for a workload that holds these shares; without any, those that hide all cards."""
        ...

    def note_held(self, leases: Sequence[Lease]) -> None:
        """All leases of this machine now. Real cards ignore them; simulated ones measure what they hold."""
        ...

    def close(self) -> None:
        """Let go of the driver. Idempotent; nothing else is called afterwards."""
        ...
