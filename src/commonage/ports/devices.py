"""The cards of one machine: what there is, what they measure, what a workload must be told of its share.

Implemented in `commonage.gpus` (real cards, simulated ones, none); called by control, in a thread, for
asking a driver may take long. `commonage.testing.devices_contract` is what an implementation must keep. Who
gets which share is not decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from commonage.domain.errors import EngineFailure, Unavailable
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
    it has drawn: it only rises, until the driver is loaded anew. `throttle` are the reasons why its clocks are low, in
    words; `ecc_*` count memory errors since the driver was loaded, `remapped_*` the rows of memory replaced for good;
    `xid` is the number of the last error message of the driver about it (NVIDIA's Xid).
    """

    uuid: str
    memory_used_mib: int | None
    utilisation: float | None
    power_w: float | None = None
    temperature_c: float | None = None
    processes: tuple[ProcessMemory, ...] = ()
    energy_j: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: tuple[str, ...] = ()
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """What an attempt is about to use, and where: its shares, and the folders of its control groups.

    `in_container`: it runs in a container, whose runtime makes the control group and applies what the variables say.
    """

    attempt_id: str
    shares: tuple[Share, ...]
    cgroups: tuple[str, ...] = ()
    in_container: bool = False


class NotConfined(EngineFailure):
    """A share cannot be held at the level that it was given with. The message says why; nothing stays applied."""

    code: ClassVar[str] = "not-confined"


class Devices(Protocol):
    """The cards of this machine. Methods may block (driver calls) and may be called from several threads.

    By default a share is kept by the variables of `environment` alone: nothing is applied, and no fault is remembered.
    """

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
        """The leases whose program runs now; `at` is its start. Real cards ignore them, simulated ones show use."""
        return

    def resume(self, uuid: str | None = None) -> None:
        """An admin says that this card is sound again, or all are: forget faults that are only remembered.

        What is still wrong is found again. Unknown uuids are no error.
        """
        return

    def confine(self, hold: Hold) -> Mapping[str, str]:
        """Have these shares held at their level before the attempt's command runs; gives variables to add for it.

        Idempotent by the attempt's id. What is applied is remembered on disk first, so that it is released after a
        crash. Variables of ours win over the attempt's own, but for PYTHONPATH, which goes before its own.
        Raises NotConfined; then nothing stays applied.
        """
        return {}

    def release(self, attempt_id: str) -> None:
        """The attempt has no process any more: undo what was applied for it. Idempotent, unknown ids are no error."""
        return

    def settle(self, live: Collection[str]) -> None:
        """After a start: these attempts are all that live. What is applied for any other is released."""
        return

    def confined(self) -> Collection[str]:
        """The attempts for which something is applied now."""
        return ()

    def take_warnings(self) -> Sequence[tuple[str, str]]:
        """What happened to attempts since the last call, each with its id and a sentence for its owner."""
        return ()

    def close(self) -> None:
        """Let go of the driver. Idempotent; nothing else is called afterwards."""
        return
